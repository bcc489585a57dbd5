package sim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/internal/backing"
	"github.com/rdma-netstack/rdma-netstack/internal/hostnet"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

// kernelModel models the kernel of a host whose own address a stack serves on: how its netdev is
// configured, its sockets for the stack's ports, and what it answers: ARP and neighbour
// solicitations, and who comes to a port that nobody has. Nobody comes to it but by the netdev.
type kernelModel struct {
	net plainHost // what it answers with
	own bool      // each socket has a filter of its own

	mu      sync.Mutex // covers what follows
	name    string
	index   int // of the netdev, rising with each that is made; 1: the loopback device
	gone    bool
	mtu     int // bytes
	mac     net.HardwareAddr
	addrs   []netip.Prefix
	routes  []hostnet.Route
	device  backing.Device // whose packets the sockets do not pass
	sockets map[socketKey]*kernelSocket
	held    bool  // HoldPorts was called, and what it returned is not closed
	closed  bool  // no question is answered any more
	wrong   error // the first violated invariant
	// changedAt holds when the configuration changed last, madeAt when the netdev was made last
	changedAt, madeAt time.Duration
	now               func() time.Duration
	changed           chan struct{} // capacity 1
}

var _ stack.HostKernel = (*kernelModel)(nil)

// socketKey names a port of the host.
type socketKey struct {
	protocol backing.Protocol
	at       netip.AddrPort
}

// loopbackIndex gives the ifindex of lo.
const loopbackIndex = 1

// firstIndex gives the ifindex of the netdev that is there first.
const firstIndex = 2

// newKernelModel makes the kernel of h, whose answers go by send.
func newKernelModel(h *ourHost, now func() time.Duration, send func([]byte)) *kernelModel {
	k := &kernelModel{name: fmt.Sprint("host", h.index), index: firstIndex, mtu: h.mtu, now: now,
		own: h.plan.OwnFilters,
		mac: hardware(h.index), addrs: h.plan.prefixes(h.index),
		sockets: map[socketKey]*kernelSocket{}, changed: make(chan struct{}, 1)}
	k.routes = onLink(k.addrs)
	k.net = plainHost{plan: h.plan, index: h.index, clock: h.clock, mtu: h.mtu,
		seed: h.seed ^ 0x6b65726e656c, transmit: send}
	return k
}

// onLink returns the routes that come with addresses.
func onLink(addrs []netip.Prefix) (routes []hostnet.Route) {
	for _, p := range addrs {
		routes = append(routes, hostnet.Route{Destination: p.Masked()})
	}
	return routes
}

// change changes how the netdev is configured, which the stack is told.
func (k *kernelModel) change(f func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f()
	k.changedAt = k.now()
	notify(k.changed)
}

// FindNetdev implements stack.HostKernel.
func (k *kernelModel) FindNetdev(dv.NIC) (string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.name, nil
}

// Changed implements stack.HostKernel.
func (k *kernelModel) Changed() <-chan struct{} { return k.changed }

// there says why nothing is known of a netdev called name. mu is held.
func (k *kernelModel) there(name string) error {
	switch {
	case k.closed:
		return net.ErrClosed
	case k.gone || name != k.name:
		return fmt.Errorf("there is no %s: %w", name, unix.ENODEV)
	}
	return nil
}

// Read implements stack.HostKernel.
func (k *kernelModel) Read(name string) (hostnet.Network, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.there(name); err != nil {
		return hostnet.Network{}, err
	}
	return hostnet.Network{Name: k.name, Index: k.index, MTU: k.mtu, MAC: slices.Clone(k.mac),
		Up: true, Addresses: slices.Clone(k.addrs), Routes: slices.Clone(k.routes)}, nil
}

// Below implements stack.HostKernel: nothing is below the netdev.
func (k *kernelModel) Below(name string) (hostnet.Below, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return hostnet.Below{MAC: slices.Clone(k.mac)}, k.there(name)
}

// RoutesIPv6 implements stack.HostKernel.
func (k *kernelModel) RoutesIPv6(string) bool { return false }

// LinkAt implements stack.HostKernel.
func (k *kernelModel) LinkAt(index int) (hostnet.Link, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if index != k.index {
		return hostnet.Link{}, unix.ENODEV
	}
	return hostnet.Link{Name: k.name, MAC: slices.Clone(k.mac)}, k.there(k.name)
}

// LastIndex implements stack.HostKernel.
func (k *kernelModel) LastIndex(name string) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return 0, net.ErrClosed
	}
	if k.gone || name == k.name {
		return loopbackIndex, nil
	}
	return k.index, nil
}

// WayTo implements stack.HostKernel.
func (k *kernelModel) WayTo(to netip.Addr) (hostnet.Way, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	has := func(a netip.Addr) func(netip.Prefix) bool {
		return func(p netip.Prefix) bool { return p.Addr() == a }
	}
	from := slices.IndexFunc(k.addrs, func(p netip.Prefix) bool {
		return p.Addr().Is4() == to.Is4()
	})
	switch {
	case k.closed:
		return hostnet.Way{}, net.ErrClosed
	case k.gone || from < 0:
	case slices.ContainsFunc(k.addrs, has(to)):
		return hostnet.Way{Index: loopbackIndex, Local: true, Source: to}, nil
	case slices.ContainsFunc(k.routes, func(r hostnet.Route) bool {
		return r.Destination.Contains(to)
	}):
		return hostnet.Way{Index: k.index, Source: k.addrs[from].Addr()}, nil
	}
	return hostnet.Way{}, fmt.Errorf("no route to %v: %w", to, unix.ENETUNREACH)
}

// Conns implements stack.HostKernel: the kernel has no connections.
func (k *kernelModel) Conns(func(local, remote netip.AddrPort) bool) ([]hostnet.Conn, error) {
	return nil, nil
}

// Dial implements stack.HostKernel: the kernel reaches nobody otherwise than by the netdev.
func (k *kernelModel) Dial(_ context.Context, _ *net.Dialer, network, _ string) (net.Conn, error) {
	return nil, &net.OpError{Op: "dial", Net: network, Err: unix.ENETUNREACH}
}

// HoldPorts implements stack.HostKernel.
func (k *kernelModel) HoldPorts(d backing.Device, _ clock.Clock) stack.HostSockets {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.device, k.held = d, true
	return kernelSockets{k}
}

// Close implements stack.HostKernel.
func (k *kernelModel) Close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	return nil
}

// receive takes the frames that the netdev has got.
func (k *kernelModel) receive(frames [][]byte) {
	for _, f := range frames {
		if k.wants(f) {
			k.net.receive([][]byte{f})
		}
	}
}

// wants reports whether no socket keeps the kernel from answering a frame, and takes note of one
// that should.
func (k *kernelModel) wants(f []byte) bool {
	to, tells := destinationOf(f)
	if !tells {
		return !isFragment(f)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.sockets[to]
	switch {
	case s == nil:
		return true
	case !s.passes(k.index):
		return false
	}
	k.fail(fmt.Errorf("the kernel's socket of %v port %v got what came by %s, number %d: it "+
		"passes none of %+v", to.protocol, to.at, k.name, k.index, k.device))
	return true
}

// fail takes note of a violated invariant. mu is held.
func (k *kernelModel) fail(err error) {
	if k.wrong == nil {
		k.wrong = err
	}
}

// check reports what was violated.
func (k *kernelModel) check() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.wrong
}

// idle says what is wrong with the ports that the stack holds when it has no connection and no
// listener: those to dial from, for each of its addresses, and no others.
func (k *kernelModel) idle() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	block := map[netip.Addr]int{}
	for key := range k.sockets {
		if key.at.Port() < firstOfBlocks {
			return fmt.Errorf("nothing is left at %v port %v, and the kernel does not have it back",
				key.protocol, key.at)
		}
		block[key.at.Addr()]++
	}
	for _, p := range k.addrs {
		if n := block[p.Addr()]; n != portsOfBlock {
			return fmt.Errorf("%d ports of %v are held, %d are to dial from", n, p, portsOfBlock)
		}
		delete(block, p.Addr())
	}
	if len(block) > 0 {
		return fmt.Errorf("ports of addresses are held that the host does not have: %v", block)
	}
	return nil
}

// left reports what is left when the stack is closed.
func (k *kernelModel) left() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.sockets) > 0 || k.held || !k.closed {
		return fmt.Errorf("the stack is closed, and %d sockets of the kernel are open, ports held "+
			"%v, questions ended %v", len(k.sockets), k.held, k.closed)
	}
	return errors.Join(k.wrong, k.net.left())
}

// Where the ports to dial from are, and how many a stack has of an address, of TCP and UDP.
const (
	firstOfBlocks = 0xf000
	portsOfBlock  = 2 * 256
)
