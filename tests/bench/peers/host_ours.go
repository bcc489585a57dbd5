package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/plain"
)

// ourHost is our stack on a software ConnectX.
type ourHost struct {
	stack *stack.Stack
	nic   *simnic.NIC
}

// openOurs makes the server's end: the NIC connected to the interface of the process's namespace,
// or to a TAP that is made there.
func openOurs(e end) (host, error) {
	var w wire.Wire
	if _, err := net.InterfaceByName(port); err == nil {
		p, err := wire.OpenPacket(port)
		if err != nil {
			return nil, err
		}
		w = p
	} else {
		t, err := wire.OpenTAP(port)
		if err != nil {
			return nil, err
		}
		w = t
	}
	return newOurs(e, w, serverPrefix, serverMAC)
}

// netdevMAC is the address of the netdev of the NIC's port, which is connected to nothing.
var netdevMAC = net.HardwareAddr{0x02, 0x00, 0x5e, 0x00, 0x53, 0x20}

func newOurs(e end, wire wire.Wire, at netip.Prefix, mac net.HardwareAddr) (*ourHost, error) {
	nic, err := simnic.New(simnic.Config{MAC: netdevMAC})
	if err != nil {
		return nil, errors.Join(err, wire.Close())
	}
	if err := nic.ConnectWire(wire); err != nil {
		return nil, errors.Join(err, wire.Close(), nic.Close())
	}
	if e.InPlace {
		if err := stack.ZeroCopySend(); err != nil {
			return nil, errors.Join(err, nic.Close())
		}
	}
	s, err := stack.Open(context.Background(), stack.Config{
		NIC: dv.NIC{
			Model: dv.Model{Kernel: kernel.Opener(nic), Facts: dv.PortFacts{Name: "sim",
				Netdev: "sim0", MAC: nic.MAC(), MTU: nic.MTU()}},
			MAC: mac, RxQueues: e.Queues,
			Rings: dv.Rings{DelayDrop: true}, // as in "serve --device sim"
		},
		Addresses:  []netip.Prefix{at},
		Addressing: stack.AddressOptions{DuplicateDetection: -1},
		TCP:        shortTimeWait(),
	})
	if err != nil {
		return nil, errors.Join(err, nic.Close())
	}
	return &ourHost{s, nic}, nil
}

func (h *ourHost) Listen(port int) (net.Listener, error) {
	return h.stack.Listen("tcp4", fmt.Sprintf(":%d", port))
}

func (h *ourHost) ListenUDP(port int) (net.PacketConn, error) {
	return h.stack.ListenPacket("udp4", fmt.Sprintf(":%d", port))
}

func (h *ourHost) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return h.stack.DialContext(ctx, network, address)
}

// shortTimeWait returns options with which a closed connection keeps its port as briefly as those
// of plain.
func shortTimeWait() stack.TCPOptions {
	return stack.TCPOptions{Netstack: []tcpip.SettableTransportProtocolOption{
		new(tcpip.TCPTimeWaitTimeoutOption(plain.TimeWait))}}
}

// counters are the counters that explain the figures: completions per poll, frames per packet,
// losses.
func (h *ourHost) counters() metrics {
	m := metrics{}
	device := h.stack.Device().Stats()
	for _, q := range device.Rx {
		m["rx frames"] += float64(q.Packets)
		m["rx polls"] += float64(q.Hits)
		m["rx events"] += float64(q.Events)
	}
	for _, q := range device.Tx {
		m["tx packets"] += float64(q.Packets)
		m["tx doorbells"] += float64(q.Doorbells)
		m["tx stalls"] += float64(q.Stalls)
		m["tx in place"] += float64(q.InPlace)
		m["tx lso"] += float64(q.LSO)
	}
	st, nic := h.stack.Stats(), h.nic.Counters()
	m["rx delivered"], m["rx superseded"] = float64(st.RxPackets),
		float64(h.stack.LinkStats().RxSupersededACKs)
	m["tcp timeouts"], m["tcp retransmits"] = float64(st.TCPTimeouts), float64(st.TCPRetransmits)
	m["nic out of buffer"], m["nic lost on wire"] = float64(nic.Drops.OutOfBuffer),
		float64(nic.Drops.WireUnplugged)
	return m
}

func (h *ourHost) Close() error { return errors.Join(h.stack.Close(), h.nic.Close()) }
