package sim

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/link/ethernet"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
	"github.com/rdma-netstack/rdma-netstack/internal/netclock"
)

// plainHost is gVisor's netstack as it is: the peer of ours, without any code of ours in it.
type plainHost struct {
	plan  HostPlan
	index int
	port  *port
	clock *timers
	mtu   int
	seed  uint64
	link  *channel.Endpoint
	stack *gstack.Stack
	// transmit sends a frame, in place of the port's put
	transmit func(frame []byte)
}

// plainQueue is how many packets the link holds until the scheduler takes them.
const plainQueue = 1 << 14

func (h *plainHost) up(context.Context) error {
	if err := h.build(); err != nil {
		return err
	}
	h.transmit = h.port.put
	h.port.connect(h.receive)
	return nil
}

// build makes the netstack.
func (h *plainHost) build() error {
	h.link = channel.New(plainQueue, uint32(h.mtu+header.EthernetMinimumSize),
		tcpip.LinkAddress(hardware(h.index)))
	h.link.LinkEPCapabilities |= gstack.CapabilityResolutionRequired
	if h.plan.SoftwareGSO {
		h.link.SupportedGSOKind = gstack.GVisorGSOSupported
	}
	random := clocktest.Random(h.seed)
	h.stack = gstack.New(gstack.Options{
		Clock: netclock.New(clock.New(h.clock), nil), SecureRNG: random, RandSource: source{random},
		NetworkProtocols: []gstack.NetworkProtocolFactory{ipv4.NewProtocol, arp.NewProtocol,
			ipv6.NewProtocol},
		TransportProtocols: []gstack.TransportProtocolFactory{tcp.NewProtocolCUBIC, udp.NewProtocol,
			icmp.NewProtocol4, icmp.NewProtocol6},
	})
	sack := tcpip.TCPSACKEnabled(true)
	if err := h.stack.SetTransportProtocolOption(tcp.ProtocolNumber, &sack); err != nil {
		return fmt.Errorf("switch SACK on: %v", err)
	}
	if err := h.stack.CreateNIC(1, ethernet.New(h.link)); err != nil {
		return fmt.Errorf("create NIC: %v", err)
	}
	for _, p := range h.plan.prefixes(h.index) {
		if err := h.add(p); err != nil {
			return err
		}
	}
	h.stack.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: 1},
		{Destination: header.IPv6EmptySubnet, NIC: 1}})
	return nil
}

// add gives the host one more address.
func (h *plainHost) add(p netip.Prefix) error {
	if err := h.stack.AddProtocolAddress(1, tcpip.ProtocolAddress{Protocol: version(p.Addr()),
		AddressWithPrefix: tcpip.AddressWithPrefix{Address: toAddress(p.Addr()),
			PrefixLen: p.Bits()}}, gstack.AddressProperties{}); err != nil {
		return fmt.Errorf("add address: %v", err)
	}
	return nil
}

func toAddress(a netip.Addr) tcpip.Address { return tcpip.AddrFromSlice(a.AsSlice()) }

// version is the protocol number of an address.
func version(a netip.Addr) tcpip.NetworkProtocolNumber {
	if a.Is6() {
		return ipv6.ProtocolNumber
	}
	return ipv4.ProtocolNumber
}

// receive delivers frames to netstack.
func (h *plainHost) receive(frames [][]byte) {
	for _, f := range frames {
		if len(f) < header.EthernetMinimumSize {
			continue
		}
		pkt := gstack.NewPacketBuffer(gstack.PacketBufferOptions{Payload: buffer.MakeWithData(f)})
		h.link.InjectInbound(tcpip.NetworkProtocolNumber(header.Ethernet(f).Type()), pkt)
		pkt.DecRef()
	}
}

// send gives the switch what netstack has written.
func (h *plainHost) send() {
	if h.link == nil {
		return
	}
	for pkt := h.link.Read(); pkt != nil; pkt = h.link.Read() {
		view := pkt.ToView()
		h.transmit(append([]byte(nil), view.AsSlice()...))
		view.Release()
		pkt.DecRef()
	}
}

func (h *plainHost) full(p netip.AddrPort) tcpip.FullAddress {
	return tcpip.FullAddress{NIC: 1, Addr: toAddress(p.Addr()), Port: p.Port()}
}

func (h *plainHost) listen(at netip.AddrPort) (net.Listener, error) {
	return gonet.ListenTCP(h.stack, h.full(at), version(at.Addr()))
}

func (h *plainHost) dial(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	return gonet.DialContextTCP(ctx, h.stack, h.full(to), version(to.Addr()))
}

// packets opens a socket whose datagrams may be fragmented: by default netstack gives all fragments
// the identification 0. A receiver that has lost one then joins each datagram's to the next one's.
func (h *plainHost) packets(at netip.AddrPort) (net.PacketConn, error) {
	var queue waiter.Queue
	ep, err := h.stack.NewEndpoint(udp.ProtocolNumber, version(at.Addr()), &queue)
	if err != nil {
		return nil, fmt.Errorf("make an endpoint: %v", err)
	}
	if err := ep.SetSockOptInt(tcpip.MTUDiscoverOption, int(tcpip.PMTUDiscoveryDont)); err != nil {
		return nil, fmt.Errorf("allow fragments: %v", err)
	}
	if err := ep.Bind(h.full(at)); err != nil {
		ep.Close()
		return nil, fmt.Errorf("bind: %v", err)
	}
	return gonet.NewUDPConn(&queue, ep), nil
}

func (h *plainHost) check() error { return nil }

func (h *plainHost) connections() []string { return tcpEndpoints(h.stack) }

func (h *plainHost) down() error {
	h.stack.Close()
	for _, ep := range h.stack.CleanupEndpoints() {
		ep.Abort()
	}
	if h.port != nil {
		h.port.connect(nil)
	}
	h.stack.RemoveNIC(1)
	h.stack.Wait()
	h.link.Drain()
	return nil
}

func (h *plainHost) left() error { return h.clock.left() }

// source makes random numbers of a reader. It implements math/rand.Source.
type source struct{ io.Reader }

// Int63 implements math/rand.Source.
func (s source) Int63() int64 {
	var b [8]byte
	_, _ = s.Read(b[:])
	return int64(binary.LittleEndian.Uint64(b[:]) >> 1)
}

// Seed implements math/rand.Source. It has no effect: the reader has its seed.
func (s source) Seed(int64) {}
