package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

// packetHost represents our stack on packet sockets, or on AF_XDP and these.
type packetHost struct{ stack *stack.Stack }

// openPacket makes the server's end on the interface of the process's namespace.
func openPacket(e end) (host, error) {
	backend := stack.BackendPacket
	if e.Link == linkXSK {
		backend = stack.BackendXDP
	}
	s, err := stack.Open(context.Background(), stack.Config{
		NIC:        dv.NIC{Device: port, RxQueues: e.Queues},
		Uplink:     stack.UplinkOptions{Backend: backend, XDP: e.Send},
		Addresses:  []netip.Prefix{serverPrefix},
		Addressing: stack.AddressOptions{DuplicateDetection: -1}, TCP: shortTimeWait(),
	})
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", port, err)
	}
	return &packetHost{s}, nil
}

func (h *packetHost) Listen(port int) (net.Listener, error) {
	return h.stack.Listen("tcp4", fmt.Sprintf(":%d", port))
}

func (h *packetHost) ListenUDP(port int) (net.PacketConn, error) {
	return h.stack.ListenPacket("udp4", fmt.Sprintf(":%d", port))
}

func (h *packetHost) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return h.stack.DialContext(ctx, network, address)
}

// counters are the counters that explain the figures, as for ourHost.
func (h *packetHost) counters() metrics {
	m, sockets, st := metrics{}, h.stack.PacketPort().Stats(), h.stack.Stats()
	for _, q := range sockets.Rx {
		m["rx frames"] += float64(q.Frames)
		m["rx polls"] += float64(q.Hits)
		m["rx calls"] += float64(q.Calls)
		m["rx waits"] += float64(q.Waits)
		m["rx dropped"] += float64(q.Dropped)
	}
	for _, q := range sockets.Tx {
		m["tx packets"] += float64(q.Frames)
		m["tx bytes"] += float64(q.Bytes)
		m["tx calls"] += float64(q.Calls)
		m["tx full"] += float64(q.Full)
		m["tx waited"] += float64(q.Waited)
	}
	m["tcp timeouts"], m["tcp retransmits"] = float64(st.TCPTimeouts), float64(st.TCPRetransmits)
	return m
}

func (h *packetHost) Close() error { return h.stack.Close() }
