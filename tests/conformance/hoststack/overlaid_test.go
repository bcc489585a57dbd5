//go:build linux && rdma_overlay

package hoststack

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/unmodified"
)

// TestOverlaidSameAsKernel runs every behaviour on package net's own types, whose sockets are those
// of stacks: make test-unmodified builds this test by rdma-netstack test.
func TestOverlaidSameAsKernel(t *testing.T) {
	need.Long(t, "each case on the kernel and through package net on a slice, 30 s")
	hookOverlaid(t)
	reasons := map[string]string{}
	for name, why := range byDesign {
		reasons[name] = why
	}
	for name, why := range byDesignOverlaid {
		reasons[name] = why
	}
	delete(reasons, "sockets/SyscallConn")
	compareAll(t, "addresses of their own, through package net", overlaidWorld, reasons, 1)
}

// TestOverlaidControlSameAsKernel runs the behaviours of control messages likewise, whose options
// are set by setsockopt(2).
func TestOverlaidControlSameAsKernel(t *testing.T) {
	hookOverlaid(t)
	for _, b := range controlOnWire {
		t.Run(b.name, func(t *testing.T) {
			want := b.on(wiredKernel(t))
			w := wiredStack(t)
			w.sockets = overlaid{programOf(w.sockets.(netstack).Stack)}
			compare(t, byDesignOnWire[b.name], want, b.on(w))
		})
	}
}

// hookOverlaid has package net open sockets by the program that asks, until the test's end.
func hookOverlaid(t *testing.T) {
	t.Helper()
	net.RDMASetHooks(&net.RDMAHooks{
		Open:           openOverlaid,
		InterfaceAddrs: func(*net.Interface) ([]net.Addr, bool) { return nil, false },
		FromFile: func(*os.File) (net.RDMASocket, bool) {
			return nil, false
		},
		NoteRaw: func(string) {},
	})
	t.Cleanup(func() { net.RDMASetHooks(nil) })
}

// overlaidWorld makes a stackWorld whose sockets are opened through package net.
func overlaidWorld(t *testing.T) *world {
	w := stackWorld(t)
	w.server = overlaid{programOf(w.server.(netstack).Stack)}
	w.client = overlaid{programOf(w.client.(netstack).Stack)}
	return w
}

func programOf(st *stack.Stack) *unmodified.Program {
	return unmodified.For(st, &unmodified.Config{NoLocalhost: true}, slog.New(slog.DiscardHandler))
}

// byProgram marks the context of sockets that are a program's.
type byProgram struct{}

// calling names the program for which a function of package net without a context is called.
var calling struct {
	sync.Mutex
	program *unmodified.Program
}

func openOverlaid(ctx context.Context, network string, laddr, raddr net.Addr,
	control func(syscall.RawConn) error) (net.RDMASocket, net.Conn, error) {
	p, ok := ctx.Value(byProgram{}).(*unmodified.Program)
	if !ok {
		p = calling.program
	}
	if p == nil {
		return nil, nil, nil
	}
	s, c, err := p.Open(ctx, network, laddr, raddr, control)
	if s == nil {
		return nil, c, err
	}
	return s, c, err
}

// overlaid opens sockets of a stack by package net.
type overlaid struct{ *unmodified.Program }

func (o overlaid) context(ctx context.Context) context.Context {
	return context.WithValue(ctx, byProgram{}, o.Program)
}

// call runs a function without a context.
func call[T any](o overlaid, f func() (T, error)) (T, error) {
	calling.Lock()
	defer calling.Unlock()
	calling.program = o.Program
	defer func() { calling.program = nil }()
	return f()
}

func (o overlaid) Listen(network, address string) (net.Listener, error) {
	return new(net.ListenConfig).Listen(o.context(context.Background()), network, address)
}

func (o overlaid) ListenTCP(network string, laddr *net.TCPAddr) (tcpListener, error) {
	return call(o, func() (tcpListener, error) { return kernel{}.ListenTCP(network, laddr) })
}

func (o overlaid) ListenPacket(network, address string) (net.PacketConn, error) {
	return new(net.ListenConfig).ListenPacket(o.context(context.Background()), network, address)
}

func (o overlaid) ListenUDP(network string, laddr *net.UDPAddr) (udpConn, error) {
	return call(o, func() (udpConn, error) { return kernel{}.ListenUDP(network, laddr) })
}

func (o overlaid) ListenMulticastUDP(network string, group *net.UDPAddr) (udpConn, error) {
	return call(o, func() (udpConn, error) {
		return kernel{}.ListenMulticastUDP(network, group)
	})
}

func (o overlaid) ListenShared(network, address string) (net.Listener, error) {
	return shared.Listen(o.context(context.Background()), network, address)
}

func (o overlaid) ListenPacketShared(network, address string) (net.PacketConn, error) {
	return shared.ListenPacket(o.context(context.Background()), network, address)
}

func (o overlaid) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return kernel{}.DialContext(o.context(ctx), network, address)
}

func (o overlaid) DialFrom(ctx context.Context, local net.Addr, timeout time.Duration,
	network, address string) (net.Conn, error) {
	return kernel{}.DialFrom(o.context(ctx), local, timeout, network, address)
}

func (o overlaid) DialShared(ctx context.Context, local net.Addr, network,
	address string) (net.Conn, error) {
	return kernel{}.DialShared(o.context(ctx), local, network, address)
}

func (o overlaid) DialerTCP(ctx context.Context, network string,
	laddr, raddr netip.AddrPort) (tcpConn, error) {
	return kernel{}.DialerTCP(o.context(ctx), network, laddr, raddr)
}

func (o overlaid) DialerUDP(ctx context.Context, network string,
	laddr, raddr netip.AddrPort) (udpConn, error) {
	return kernel{}.DialerUDP(o.context(ctx), network, laddr, raddr)
}

func (o overlaid) DialTCP(network string, laddr, raddr *net.TCPAddr) (tcpConn, error) {
	return call(o, func() (tcpConn, error) { return kernel{}.DialTCP(network, laddr, raddr) })
}

func (o overlaid) DialUDP(network string, laddr, raddr *net.UDPAddr) (udpConn, error) {
	return call(o, func() (udpConn, error) { return kernel{}.DialUDP(network, laddr, raddr) })
}

// byKernel gives the reason where localhost has to do with it.
const byKernel = "localhost, and dials to no address, are the kernel's, whose listeners these " +
	"are not; programs listen on both"

// byDesignOverlaid gives the reasons for behaviours that differ through package net only.
var byDesignOverlaid = map[string]string{
	"tcp dial/wildcards mean this host":                     byKernel,
	"addresses/from one address of our own to another":      byKernel,
	"addresses/TCP from loopback to an address of our own":  byKernel,
	"addresses/dialling a wildcard listener's own address":  byKernel,
	"addresses/DialTCP and DialUDP to the wildcard address": byKernel,
	"tcp data/errors of ReadFrom and WriteTo": "the error of a part names its network with the " +
		"family, tcp4, as package net has asked for",
	"tcp close/every method after Close": "as errors of ReadFrom and WriteTo",
}
