// Package hostmode shares the machine's own addresses with the kernel: a stack serves on them, and
// so does Linux.
//
// For each port of a stack [Host] has a socket of the kernel (package backing), which keeps the
// kernel from answering what the stack answers, and serves clients that do not come by the netdev.
// Host also follows what the host's configuration is: the netdev's name, number, MAC and MTU, its
// addresses and routes.
package hostmode

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/internal/backing"
	"github.com/rdma-netstack/rdma-netstack/internal/hostnet"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/env"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/handover"
)

// Stack describes what Host needs of the stack that serves. Its methods may be called by any
// goroutine; FollowMTU, FollowMAC and ReopenNetdev are called by one at a time.
type Stack interface {
	HardwareAddr() net.HardwareAddr
	HasZone(zone string) bool // of an IPv6 address, which names our netdev
	// FollowMTU makes the netdev's MTU, in bytes, the link's.
	FollowMTU(mtu int)
	// FollowMAC makes the MAC of the netdev, so called now, the link's, and says when to try again;
	// 0: it is done.
	FollowMAC(netdev string, mac net.HardwareAddr) (again time.Duration)
	// ReopenNetdev opens packet sockets on a netdev that has been made again. They are the
	// caller's.
	ReopenNetdev(name string) (packet.Netdev, error)
}

// Addresses describes the stack's addresses, which Host keeps equal to the netdev's.
type Addresses interface {
	AddAddress(ctx context.Context, p netip.Prefix) error
	RemoveAddress(p netip.Prefix)
	AbortConnectionsOf(a netip.Addr)
	AddressesChanged()
	Configure(from env.Source, routes []env.Route, resolvers []netip.Addr) error
}

// Rules describes the device whose rules lead frames to the stack's rings.
type Rules interface {
	AddBlock(ctx context.Context, first uint16, addrs ...netip.Addr) error
	RemoveBlock(first uint16, addrs ...netip.Addr) error
	AddRule(ctx context.Context, r dv.HostRule) error
	RemoveRule(r dv.HostRule) error
}

// Host implements stack.Config.Host. [Find] makes it, [Host.Serve] gives it its stack; then all
// methods may be called by any goroutine.
type Host struct {
	env       *env.Env
	stack     Stack
	addresses Addresses
	inherited *handover.Inherited // sockets of the process before; nil: there are none
	first     string              // the name of the netdev when it was found

	netdev  atomic.Pointer[string] // its name, which may change: see rename
	device  atomic.Pointer[backing.Device]
	kernel  Kernel
	sockets Sockets        // nil until the netdev is found
	rules   Rules          // of a device that has one for each port; nil: there is none
	ended   sync.WaitGroup // goroutines that serve what the kernel brings
	ways    ways
	// ruleState says where the rules of ports are; guarded by mu
	ruleState handover.RuleState
	paused    bool // another process accepts and reads from the ports; guarded by mu

	accepted, dialled atomic.Uint64 // connections of the kernel
	received, sent    atomic.Uint64 // datagrams by the kernel

	returned chan struct{} // of capacity 1: a token says that the netdev is there again
	idle     chan struct{} // of capacity 1: a token says that a port waits for connections to end

	closing   sync.Once
	following sync.Mutex // held while the host's configuration is taken over; before mu

	mu   sync.RWMutex
	link packet.Netdev // guarded by mu, as is what follows; nil until the link is there
	past uint64        // frames that links before it have received
	// pastFragments counts FragmentsDropped of links before it
	pastFragments uint64
	again         time.Time // when the netdev was opened again; zero: never
	fragments     fragmentDrops
	block         *block
	toldOfFilters bool              // see tellOfFilters
	addrs         []netip.Prefix    // in use, those of IPv6 without zones
	ports         map[portKey]*Port // see port and forget
	untold        untold
	bindings      map[*Binding]struct{}
	// lookAgain says when giving ports back may next look at all connections
	lookAgain time.Time
	kept      map[kernelConn]struct{} // of the kernel, whose listener may be closed
}

// Find finds the netdev of a NIC, and takes the ports of its addresses from a kernel, which becomes
// Host's; nil: that of the calling thread's network namespace. Changes are noted from before. With
// inherited, sockets of a process that hands over, rules wait for Host.MoveRules.
func Find(k Kernel, nic dv.NIC, c clock.Clock, inherited *handover.Inherited) (h *Host,
	found hostnet.Network, err error) {
	h = &Host{kernel: k, ports: map[portKey]*Port{}, bindings: map[*Binding]struct{}{},
		returned: make(chan struct{}, 1), idle: make(chan struct{}, 1),
		inherited: inherited, ruleState: handover.RulesSettled}
	if inherited != nil {
		h.ruleState = handover.RulesAway
	}
	if found, err = h.findNetdev(nic, c); err != nil {
		return nil, found, errors.Join(err, h.Close())
	}
	return h, found, nil
}

func (h *Host) findNetdev(nic dv.NIC, c clock.Clock) (found hostnet.Network, err error) {
	if h.kernel == nil {
		if h.kernel, err = openLinux(); err != nil {
			return found, err
		}
	}
	name, err := h.kernel.FindNetdev(nic)
	if err != nil {
		return found, err
	}
	h.first = name
	h.netdev.Store(&name)
	if found, err = h.kernel.Read(h.Name()); err != nil {
		return found, err
	}
	if len(found.Addresses) == 0 {
		return found, fmt.Errorf("%s has no address: ip address add 192.0.2.10/24 dev %[1]s, "+
			"or give the stack an address of its own in place of Host", h.Name())
	}
	device := backing.Device{Index: found.Index}
	h.device.Store(&device)
	h.sockets = h.kernel.HoldPorts(device, c)
	h.addrs = found.Addresses
	h.block, err = openBlock(firstBlock, h.zonedAddrs(), h.sockets)
	return found, err
}

// Serve makes s the stack that serves. It is called once, before all other methods except Name,
// Index and Close.
func (h *Host) Serve(e *env.Env, s Stack, a Addresses) {
	h.env, h.stack, h.addresses = e, s, a
	if err := h.sockets.Refused(); err != nil {
		e.Log.Warn("each socket of the kernel has a filter of its own, not one that all share: "+
			"closing many takes longer; CAP_BPF while the stack opens would do", "interface",
			e.Name, "sockets", h.sockets.Own(), "error", err)
		h.tellOfFilters(h.sockets.Own())
	}
}

// UseNetdev gives Host the packet sockets that its ports are told to. They are Host's.
func (h *Host) UseNetdev(link packet.Netdev) { h.link = link }

// UseRules makes rules lead the frames to ports to rings, from the next change of ports on.
func (h *Host) UseRules(rules Rules) { h.rules = rules }

// Follow keeps the stack's configuration equal to that of the host until the stack ends.
func (h *Host) Follow() {
	h.env.Go(h.follow)
	h.FollowAgain() // what has changed meanwhile
}

// FollowAgain makes Follow compare the configurations soon. The kernel's sockets get the datagrams
// that rings do not take, so that it is called when rings come or go, too.
func (h *Host) FollowAgain() { env.Notify(h.returned) }

// Name returns what the netdev is called now.
func (h *Host) Name() string { return *h.netdev.Load() }

// Index returns the number of the netdev, which another one has that is made again.
func (h *Host) Index() int { return h.device.Load().Index }

// Stats counts what a stack leaves to the kernel. The fields are those of stack.HostStats.
type Stats struct {
	Netdev              string
	FirstPort, LastPort uint16
	Accepted, Dialled   uint64
	Received, Sent      uint64
	Rules               bool
	Unsteered           uint64
	FragmentsDropped    uint64
}

// Stats returns these counters.
func (h *Host) Stats() Stats {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.stats()
}

// stats returns the counters. mu is held.
func (h *Host) stats() (stats Stats) {
	first := h.block.First
	stats = Stats{Netdev: h.Name(), FirstPort: first, LastPort: first + blockSize - 1,
		Accepted: h.accepted.Load(), Dialled: h.dialled.Load(), Received: h.received.Load(),
		Sent: h.sent.Load(), Rules: h.rules != nil, Unsteered: h.past,
		FragmentsDropped: h.pastFragments}
	link := h.link.Stats()
	for _, q := range link.Rx {
		stats.Unsteered += q.Frames
	}
	stats.FragmentsDropped += link.FragmentsDropped
	return stats
}

// fragmentDrops tells the log, once a minute at most, that fragments were kept in vain.
type fragmentDrops struct {
	told     uint64 // of Stats.FragmentsDropped
	last     time.Time
	logLimit env.RateLimit
}

// errFragmentsDropped says why fragments were dropped.
var errFragmentsDropped = errors.New("fragments to the host's addresses were dropped within " +
	"the last minute: the rest of their datagrams did not come within 30 s (IPv6: 60 s), or more " +
	"than 4 MiB of fragments waited; smaller datagrams need none")

// TellFragments tells the log of fragments that were dropped since the last call.
func (h *Host) TellFragments() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.link == nil {
		return
	}
	f, now := &h.fragments, h.env.Clock.Now()
	dropped := h.stats().FragmentsDropped
	if dropped == f.told {
		return
	}
	more := dropped - f.told
	f.told, f.last = dropped, now
	f.logLimit.Burst, f.logLimit.Period = 1, time.Minute
	if ok, _ := f.logLimit.Allows(now); ok {
		h.env.Log.Warn("fragments are dropped", "interface", h.Name(), "fragments", more,
			"reason", errFragmentsDropped)
	}
}

// FragmentsDropped returns why fragments were dropped if that was told within the last minute.
func (h *Host) FragmentsDropped() error {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if last := h.fragments.last; last.IsZero() || h.env.Clock.Now().Sub(last) > time.Minute {
		return nil
	}
	return errFragmentsDropped
}

// Sockets returns the packet sockets that the ports are told to.
func (h *Host) Sockets() packet.Netdev {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.link
}

// Close gives all ports back to the kernel. Connections that a program has from there stay its own.
// Closing again does nothing, and waits for the first to end.
func (h *Host) Close() (err error) {
	h.closing.Do(func() { err = h.closeAll() })
	return err
}

func (h *Host) closeAll() error {
	var errs []error
	if h.kernel != nil {
		errs = append(errs, h.kernel.Close())
	}
	h.mu.Lock()
	if h.link != nil {
		errs = append(errs, h.link.Close())
	}
	for b := range h.bindings {
		b.end()
	}
	for _, p := range h.ports {
		errs = append(errs, p.close())
	}
	clear(h.ports)
	if h.block != nil {
		errs = append(errs, h.block.Close())
	}
	if h.sockets != nil {
		errs = append(errs, h.sockets.Close())
	}
	h.mu.Unlock()
	h.ended.Wait()
	return errors.Join(errs...)
}

// On an mlx5 device a rule per port of ours leads its frames to rings. Packet sockets of the netdev
// bring the rest (rdma.RingsAndSockets), and all while the device is away. What is made first is
// closed last: the kernel's sockets, rules, netstack's endpoints.

// ClaimBlock makes the device lead the ports to dial from to us, another block of them if a process
// that the kernel does not know of has rules for these, and tells the packet sockets. The ports
// from first to last are what connections are made from.
func (h *Host) ClaimBlock(ctx context.Context) (first, last uint16, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.rules != nil {
		err := h.rules.AddBlock(ctx, h.block.First, h.plainAddrs()...)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			return 0, 0, err
		}
		if err := h.nextBlock(); err != nil {
			return 0, 0, err
		}
	}
	return h.block.First, h.block.First + blockSize - 1, h.tellAllPorts()
}

// manyFilters says how many filters of sockets' own Linux is known to free at once.
const manyFilters = 1000

// tellOfFilters tells the log once when n sockets of the kernel have filters of their own, and
// these are many. mu is held, or nobody else knows h.
func (h *Host) tellOfFilters(n int) {
	if n > manyFilters && !h.toldOfFilters {
		h.toldOfFilters = true
		h.env.Log.Warn("Linux 6.18 may lose its BPF, for every process of this machine, if this "+
			"one is killed: it cannot free so many filters at once; start with CAP_BPF, or have "+
			"fewer addresses or listeners", "interface", h.env.Name, "filters", n)
	}
}

// nextBlock takes another block in place of the present one. mu is held.
func (h *Host) nextBlock() error {
	next, err := openBlock(int(h.block.First)+blockSize, h.zonedAddrs(), h.sockets)
	if err != nil {
		return err
	}
	old := h.block
	h.block = next
	return old.Close()
}

// plainAddrs returns the addresses in use. mu is held, or nobody else knows h.
func (h *Host) plainAddrs() (addrs []netip.Addr) {
	for _, p := range h.addrs {
		addrs = append(addrs, p.Addr())
	}
	return addrs
}

// zonedAddrs returns the addresses in use as the kernel's sockets need them. mu is held, or nobody
// else knows h.
func (h *Host) zonedAddrs() (addrs []netip.Addr) {
	for _, a := range h.plainAddrs() {
		addrs = append(addrs, h.zoned(a))
	}
	return addrs
}

// rule returns the device's for a port of its own.
func (p *Port) rule(priority dv.Priority) dv.HostRule {
	proto := uint8(unix.IPPROTO_TCP)
	if p.key.protocol == backing.UDP {
		proto = unix.IPPROTO_UDP
	}
	return dv.HostRule{Priority: priority, Proto: proto, Addr: p.key.at.Addr(),
		Port: p.key.at.Port()}
}

// steer makes the device lead frames to p to the rings; those of the block's ports go there anyway,
// and none of localhost come by it. mu is held.
func (h *Host) steer(p *Port) error {
	if h.rules == nil {
		return nil
	}
	return h.addRule(p, h.ruleState)
}

// unsteer lets frames to p go to the kernel, and come by packet sockets for as long as it is ours:
// to connections from before. mu is held.
func (h *Host) unsteer(p *Port) error {
	if h.rules == nil || p.ofBlock {
		return nil
	}
	return errors.Join(h.rules.RemoveRule(p.rule(dv.PriorityHandOver)),
		h.rules.RemoveRule(p.rule(dv.PriorityListener)))
}
