package rdma

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
)

// host is a stack on a software NIC.
type host struct {
	nic *simnic.NIC
	dev *dv.Device

	backend backend                             // nil: dev
	netns   interface{ Do(func() error) error } // of overPort
	ep      *Endpoint
	acks    *ACKCoalescer
	stack   *gstack.Stack
	v4      netip.Addr
	v6      netip.Addr
}

// setup is the part of the configuration that tests vary.
type setup struct {
	faults wire.FaultConfig
	lose   func(frame []byte) bool // on the way from either end
	opts   Options
	acks   ACKOptions
	dv     dv.Config // Kernel, Facts and MAC are filled in
	caps   func(*simnic.Caps)
	mtu    int                       // of the ports; 0: 1500
	wire   func(wire.Wire) wire.Wire // put between the first host and the cable
}

// openDevice makes a NIC number n and opens it.
func openDevice(t testing.TB, n byte, s setup) (*simnic.NIC, *dv.Device) {
	t.Helper()
	caps := simnic.DefaultCaps()
	if s.caps != nil {
		s.caps(&caps)
	}
	nic, err := simnic.New(simnic.Config{MAC: net.HardwareAddr{2, 0, 0, 1, 0, n},
		Seed: uint64(n), Caps: caps, MTU: s.mtu})
	if err != nil {
		t.Fatal(err)
	}
	cfg := s.dv
	if SendMemoryPoisoned {
		cfg = cfg.WithSendMemory(SendMemory)
	}
	cfg.Model.Kernel = kernel.Opener(nic)
	cfg.Model.Facts = dv.PortFacts{Name: fmt.Sprint("sim", n), Netdev: fmt.Sprint("net", n),
		MAC: nic.MAC(), MTU: nic.MTU()}
	cfg.MAC = net.HardwareAddr{2, 0, 0, 0, 0, n}
	dev, err := dv.Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Errorf("close device: %v", err)
		}
		if err := nic.Close(); err != nil {
			t.Errorf("close NIC: %v", err)
		}
	})
	return nic, dev
}

// devices makes two devices joined by a cable with faults.
func devices(t testing.TB, s setup) (nics [2]*simnic.NIC, devs [2]*dv.Device) {
	t.Helper()
	checkGoroutines(t)
	for i := range devs {
		nics[i], devs[i] = openDevice(t, byte(i+1), s)
	}
	a, b := wire.Pair()
	if s.faults != (wire.FaultConfig{}) {
		t.Logf("faults %+v", s.faults)
		a = wire.WithFaults(a, s.faults)
	}
	if s.wire != nil {
		a = s.wire(a)
	}
	if s.lose != nil {
		a, b = &losing{a, s.lose}, &losing{b, s.lose}
	}
	for i, wire := range []wire.Wire{a, b} {
		if err := nics[i].ConnectWire(wire); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { wire.Close() })
	}
	return nics, devs
}

// pair makes two hosts joined by a cable.
func pair(t testing.TB, s setup) (a, b *host) {
	t.Helper()
	nics, devs := devices(t, s)
	hosts := [2]*host{}
	for i := range hosts {
		h := &host{
			nic: nics[i], dev: devs[i],
			v4: netip.AddrFrom4([4]byte{10, 9, 0, byte(i + 1)}),
			v6: netip.AddrFrom16([16]byte{0: 0xfd, 15: byte(i + 1)}),
		}
		h.open(t, s)
		hosts[i] = h
	}
	// ARP has no checksum: a neighbour would be at a wrong address for a minute
	if s.faults.Corrupt > 0 {
		hosts[0].knows(t, hosts[1])
		hosts[1].knows(t, hosts[0])
	}
	return hosts[0], hosts[1]
}

// knows adds the hardware address of another host to h's neighbours.
func (h *host) knows(t testing.TB, other *host) {
	t.Helper()
	for _, a := range []netip.Addr{other.v4, other.v6} {
		address, proto := full(a, 0)
		if err := h.stack.AddStaticNeighbor(1, proto, address.Addr,
			other.ep.LinkAddress()); err != nil {
			t.Fatal(err)
		}
	}
}

func (h *host) open(t testing.TB, s setup) {
	t.Helper()
	if h.backend == nil {
		h.backend = rings{h.dev}
	}
	ep, err := newEndpoint(h.backend, s.opts)
	if err != nil {
		t.Fatal(err)
	}
	h.ep, h.acks = ep, NewACKCoalescer(ep, s.acks)
	h.stack = newStack()
	h.attach(t)
	t.Cleanup(func() {
		ep.Close()
		h.stack.RemoveNIC(1)
		h.stack.Close()
		for _, ep := range h.stack.CleanupEndpoints() {
			ep.Abort()
		}
		h.stack.Wait()
	})
}

func newStack() *gstack.Stack {
	st := gstack.New(gstack.Options{
		NetworkProtocols: []gstack.NetworkProtocolFactory{ipv4.NewProtocol,
			ipv6.NewProtocol, arp.NewProtocol},
		TransportProtocols: []gstack.TransportProtocolFactory{tcp.NewProtocolCUBIC, udp.NewProtocol,
			icmp.NewProtocol4, icmp.NewProtocol6},
	})
	buffers := tcpip.TCPReceiveBufferSizeRangeOption{Min: 4 << 10, Default: 1 << 20, Max: 8 << 20}
	st.SetTransportProtocolOption(tcp.ProtocolNumber, &buffers)
	return st
}

// attach creates the NIC with its addresses.
func (h *host) attach(t testing.TB) {
	t.Helper()
	if err := h.stack.CreateNICWithOptions(1, h.ep, gstack.NICOptions{QDisc: h.acks}); err != nil {
		t.Fatal(err)
	}
	if err := h.ep.BindStack(h.stack, 1); err != nil {
		t.Fatal(err)
	}
	for proto, a := range map[tcpip.NetworkProtocolNumber]netip.Addr{ipv4.ProtocolNumber: h.v4,
		ipv6.ProtocolNumber: h.v6} {
		address := tcpip.ProtocolAddress{Protocol: proto,
			AddressWithPrefix: tcpip.AddressWithPrefix{Address: tcpip.AddrFromSlice(a.AsSlice()),
				PrefixLen: 24}}
		if err := h.stack.AddProtocolAddress(1, address, gstack.AddressProperties{}); err != nil {
			t.Fatal(err)
		}
	}
	h.stack.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: 1},
		{Destination: header.IPv6EmptySubnet, NIC: 1}})
}

func full(a netip.Addr, port uint16) (tcpip.FullAddress, tcpip.NetworkProtocolNumber) {
	proto := ipv4.ProtocolNumber
	if a.Is6() {
		proto = ipv6.ProtocolNumber
	}
	return tcpip.FullAddress{NIC: 1, Addr: tcpip.AddrFromSlice(a.AsSlice()), Port: port}, proto
}

func (h *host) listen(t testing.TB, a netip.Addr, port uint16) net.Listener {
	t.Helper()
	address, proto := full(a, port)
	ln, err := gonet.ListenTCP(h.stack, address, proto)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln
}

func (h *host) dial(t testing.TB, a netip.Addr, port uint16) net.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	address, proto := full(a, port)
	conn, err := gonet.DialContextTCP(ctx, h.stack, address, proto)
	for ctx.Err() == nil && unreachable(err) {
		conn, err = gonet.DialContextTCP(ctx, h.stack, address, proto)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// unreachable reports that address resolution failed: three requests without an answer, as happens
// on a bad cable. A client then dials again.
func unreachable(err error) bool {
	return err != nil && strings.Contains(err.Error(), (&tcpip.ErrHostUnreachable{}).String())
}

func (h *host) udp(t testing.TB, local, remote netip.AddrPort) *gonet.UDPConn {
	t.Helper()
	var l, r *tcpip.FullAddress
	var proto tcpip.NetworkProtocolNumber
	if local.IsValid() {
		a, p := full(local.Addr(), local.Port())
		l, proto = &a, p
	}
	if remote.IsValid() {
		a, p := full(remote.Addr(), remote.Port())
		r, proto = &a, p
	}
	conn, err := gonet.DialUDP(h.stack, l, r, proto)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// echo serves connections that return what they receive.
func echo(ln net.Listener) {
	for {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		go func() {
			io.Copy(conn, conn)
			conn.Close()
		}()
	}
}

// checkGoroutines fails the test if it leaves goroutines of this package behind.
func checkGoroutines(t testing.TB) {
	t.Cleanup(func() {
		const ours = "link/rdma.(*worker).run"
		buf := make([]byte, 1<<20)
		if stacks := string(buf[:runtime.Stack(buf, true)]); containsTimes(stacks, ours) > 0 {
			t.Errorf("workers left behind:\n%s", stacks)
		}
	})
}
