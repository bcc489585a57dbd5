package stack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/internal/hostnet"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
	"github.com/rdma-netstack/rdma-netstack/link/rdma"
	"github.com/rdma-netstack/rdma-netstack/link/uplink"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/addrconf"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/backing"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/env"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/handover"
)

// host holds what a stack has more that serves on the host's own addresses (Config.Host). The
// kernel has those addresses as well: for each port of ours it has a socket (package backing),
// which keeps it from answering what we answer, and has it serve who does not come by our netdev.
type host struct {
	stack   *Stack
	netdev  atomic.Pointer[string] // its name, which may change: see rename
	device  atomic.Pointer[backing.Device]
	filters *backing.Filters // nil until the netdev is found
	kernel  *hostnet.Kernel
	watcher *hostnet.Watcher
	rules   *rdma.Endpoint // whose device has a rule for each port; nil: there is none
	ended   sync.WaitGroup // goroutines that serve what the kernel brings
	ways    ways
	mac     macFollower
	// ruleState says where the rules of ports are; guarded by mu
	ruleState handover.RuleState
	paused    bool // another process accepts and reads from the ports; guarded by mu

	accepted, dialled atomic.Uint64 // connections of the kernel
	received, sent    atomic.Uint64 // datagrams by the kernel

	returned chan struct{} // of capacity 1: a token says that the netdev is there again
	idle     chan struct{} // of capacity 1: a token says that a port waits for connections to end

	following sync.Mutex // held while the host's configuration is taken over; before mu

	mu   sync.RWMutex
	link packet.Netdev // guarded by mu, as is what follows; nil until the link is there
	past uint64        // frames that links before it have received
	// pastFragments counts FragmentsDropped of links before it
	pastFragments uint64
	again         time.Time // when the netdev was opened again; zero: never
	fragments     fragmentDrops
	block         *backing.Block
	toldOfFilters bool                  // see tellOfFilters
	addrs         []netip.Prefix        // in use, those of IPv6 without zones
	ports         map[hostKey]*hostPort // see port and forget
	untold        untold
	bindings      map[*binding]struct{}
	// lookAgain is when giving ports back may next look at all connections
	lookAgain time.Time
	kept      map[kernelConn]struct{} // of the kernel, whose listener may be closed
}

// Name returns what the netdev is called now.
func (h *host) Name() string { return *h.netdev.Load() }

// HostStats counts what a stack on the host's own addresses leaves to the kernel, see
// [Config.Host].
type HostStats struct {
	// Netdev whose addresses the stack serves on.
	Netdev string
	// FirstPort and LastPort are what connections are made from.
	FirstPort, LastPort uint16
	// Accepted connections that did not come by Netdev, and Dialled ones that did not leave by it.
	Accepted, Dialled uint64
	// Received and Sent datagrams, likewise.
	Received, Sent uint64
	// Rules says whether a device leads our frames to rings. Unsteered frames of ours have come by
	// Netdev's packet sockets all the same: what tells of neighbours, ICMP errors, fragments, and
	// all frames while there is no rule for them. Without Rules these are all.
	Rules     bool
	Unsteered uint64
	// FragmentsDropped counts fragments to these addresses that were kept in vain: the others of
	// their datagram did not come within 30 s, or more than 4 MiB of such waited.
	FragmentsDropped uint64
}

// HostStats returns these counters; ok is false unless [Config.Host] is set.
func (s *Stack) HostStats() (stats HostStats, ok bool) {
	h := s.host
	if h == nil {
		return stats, false
	}
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.stats(), true
}

// stats returns the counters. mu is held.
func (h *host) stats() (stats HostStats) {
	first := h.block.First
	stats = HostStats{Netdev: h.Name(), FirstPort: first, LastPort: first + backing.BlockSize - 1,
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
	told     uint64 // of HostStats.FragmentsDropped
	last     time.Time
	logLimit env.RateLimit
}

// errFragmentsDropped says why fragments were dropped.
var errFragmentsDropped = errors.New("fragments to the host's addresses were dropped within " +
	"the last minute: the rest of their datagrams did not come within 30 s (IPv6: 60 s), or more " +
	"than 4 MiB of fragments waited; smaller datagrams need none")

// tellFragments tells the log of fragments that were dropped since the last call.
func (h *host) tellFragments() {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.link == nil {
		return
	}
	f, now := &h.fragments, h.stack.clock.Now()
	dropped := h.stats().FragmentsDropped
	if dropped == f.told {
		return
	}
	more := dropped - f.told
	f.told, f.last = dropped, now
	f.logLimit.Burst, f.logLimit.Period = 1, time.Minute
	if ok, _ := f.logLimit.Allows(now); ok {
		h.stack.log.Warn("fragments are dropped", "interface", h.Name(), "fragments", more,
			"reason", errFragmentsDropped)
	}
}

// fragmentsDropped returns errFragmentsDropped if that has been told within the last minute.
func (h *host) fragmentsDropped() error {
	if h == nil {
		return nil
	}
	h.mu.RLock()
	defer h.mu.RUnlock()
	if last := h.fragments.last; last.IsZero() || h.stack.clock.Now().Sub(last) > time.Minute {
		return nil
	}
	return errFragmentsDropped
}

// errFragmentsLost says what a device lacks in host mode. The log says so when it is opened.
var errFragmentsLost = errors.New("no rule of the device can leave fragments to Linux: it " +
	"may take the first of a datagram, which is lost then")

// losesFragments says whether a device may take the first fragment of a datagram, whose others
// come by packet sockets.
func (h *host) losesFragments() bool {
	return h != nil && slices.ContainsFunc(h.stack.Devices(), func(d *dv.Device) bool {
		return !d.Caps().RulesToLinux
	})
}

// validateHost refuses what the host decides.
func (c Config) validateHost() error {
	switch {
	case !c.Host:
		return nil
	case len(c.Addresses) > 0 || c.dynamic():
		return errors.New("with Host the addresses are the netdev's; leave out all others")
	case len(c.Gateways) > 0 || len(c.Routes) > 0:
		return errors.New("with Host the routes are the netdev's; leave out Gateways and Routes")
	case c.NIC.MAC != nil || c.NIC.Steering.AllowNetdevMAC || c.NIC.Steering.Promiscuous:
		return errors.New("with Host the MAC is the netdev's; " +
			"leave out MAC, AllowNetdevMAC and Promiscuous")
	case c.NIC.VLAN != 0:
		return fmt.Errorf("VLAN %d: the host's addresses in a VLAN are on a netdev of its own; "+
			"name that as NIC.Device", c.NIC.VLAN)
	case c.NIC.Model.Kernel != nil && c.NIC.Model.Facts.Netdev == "":
		return errors.New("with Host a netdev of this machine is needed: name that of NIC.Model " +
			"in NIC.Model.Facts.Netdev")
	case c.Uplink.OpenInterface != nil:
		return errors.New("with Host packet sockets of the netdev are needed; leave out " +
			"OpenInterface")
	case c.Uplink.Fallback != "":
		return errors.New("with Host packet sockets of the netdev carry the frames while its " +
			"device is away; leave out Fallback")
	}
	return nil
}

// openHost makes a stack on the host's own addresses.
func openHost(ctx context.Context, cfg Config) (*Stack, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	h := &host{ports: map[hostKey]*hostPort{}, bindings: map[*binding]struct{}{},
		returned: make(chan struct{}, 1), idle: make(chan struct{}, 1),
		ruleState: handover.RulesSettled}
	if cfg.Predecessor != nil {
		h.ruleState = handover.RulesAway
	}
	found, err := h.findNetdev(cfg)
	if err != nil {
		return nil, errors.Join(err, h.close())
	}
	cfg.hostAddresses, cfg.NIC.Device = found.Addresses, h.Name()
	cfg.netdevName = h.Name()
	// the kernel has done so
	cfg.Addressing.DuplicateDetection, cfg.Addressing.NoAnnounce = -1, true
	s, err := build(cfg, &addrconf.Netdev{Network: dv.Network{Netdev: h.Name()}})
	if err != nil {
		return nil, errors.Join(err, h.close())
	}
	s.host, h.stack, h.mac.s = h, s, s
	if err := h.filters.Refused(); err != nil {
		s.log.Warn("each socket of the kernel has a filter of its own, not one that all share: "+
			"closing many takes longer; CAP_BPF while the stack opens would do", "interface",
			s.name, "sockets", h.filters.Own(), "error", err)
		h.tellOfFilters(h.filters.Own())
	}
	if err := h.open(ctx, found); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// findNetdev finds the netdev, and takes the ports of its addresses. Changes are noted from before.
func (h *host) findNetdev(cfg Config) (found hostnet.Network, err error) {
	network, err := dv.NetworkOf(cfg.NIC)
	if err != nil {
		return found, err
	}
	h.netdev.Store(&network.Netdev)
	if h.watcher, err = hostnet.Watch(); err != nil {
		return found, err
	}
	if h.kernel, err = hostnet.Open(); err != nil {
		return found, err
	}
	if found, err = h.kernel.Read(h.Name()); err != nil {
		return found, err
	}
	if len(found.Addresses) == 0 {
		return found, fmt.Errorf("%s has no address: ip address add 192.0.2.10/24 dev %[1]s, "+
			"or give the stack an address of its own in place of Host", h.Name())
	}
	device := backing.Device{Index: found.Index}
	h.device.Store(&device)
	h.filters = backing.NewFilters(device, cfg.Clock)
	h.addrs = found.Addresses
	var addrs []netip.Addr
	for _, a := range h.plainAddrs() {
		addrs = append(addrs, h.zoned(a))
	}
	h.block, err = backing.OpenBlock(backing.FirstBlock, addrs, h.filters)
	return found, err
}

// open gives the stack its link and the configuration of the host.
func (h *host) open(ctx context.Context, found hostnet.Network) error {
	s := h.stack
	s.addrs.Sources().Kernel = h.source
	link, err := h.openLink(ctx)
	if err != nil {
		return err
	}
	err = h.claimBlock(ctx)
	if err == nil {
		err = s.handover.Join(link, s.uplink.FirstDevice())
	}
	if err != nil {
		link.Close()
		return err
	}
	if err := s.attach(ctx, link); err != nil {
		return err
	}
	if err := h.useRoutes(found.Routes); err != nil {
		return err
	}
	s.uplink.Keep()
	s.life.background.Go(h.follow)
	env.Notify(h.returned) // what has changed meanwhile
	if !s.uplink.LinkUp() {
		s.health.report(reportLink, errLinkDown)
	}
	s.life.watched = make(chan struct{})
	go s.watch()
	return nil
}

// Sockets returns the packet sockets that the ports are told to.
func (h *host) Sockets() packet.Netdev {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.link
}

// netdevGone returns what is closed when the netdev is removed with which the stack ends; nil: it
// ends with none.
func (h *host) netdevGone() <-chan struct{} {
	if h == nil || h.stack.uplink.IsKept() {
		return nil
	}
	return h.Sockets().Done()
}

// close gives all ports back to the kernel. Connections that a program has from there stay its own.
func (h *host) close() error {
	var errs []error
	if h.watcher != nil {
		errs = append(errs, h.watcher.Close())
	}
	if h.kernel != nil {
		h.kernel.Close()
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
	if h.filters != nil {
		errs = append(errs, h.filters.Close())
	}
	h.mu.Unlock()
	h.ended.Wait()
	return errors.Join(errs...)
}

// On an mlx5 device a rule per port of ours leads its frames to rings. Packet sockets of the netdev
// bring the rest (rdma.RingsAndSockets), and all while the device is away. What is made first is
// closed last: the kernel's sockets, rules, netstack's endpoints.

// openLink opens packet sockets on the netdev, and beside them the rings of its device, if it has
// one.
func (h *host) openLink(ctx context.Context) (link *rdma.Endpoint, err error) {
	s := h.stack
	cfg := s.uplinkConfig()
	cfg.Host = h
	if err := s.cfg.checkDriver(&cfg.NIC); err != nil {
		return nil, err
	}
	if h.link, err = cfg.OpenNetdev(cfg.PortConfig()); err != nil {
		return nil, err
	}
	if s.uplink, err = uplink.Open(ctx, cfg); err != nil {
		return nil, err
	}
	link = s.uplink.Endpoint()
	if s.uplink.HasRings() {
		h.rules = link
	}
	return link, nil
}

// claimBlock has the device lead the ports to dial from to us, another block of them if a process
// that the kernel does not know of has rules for these, and tells the link.
func (h *host) claimBlock(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.rules != nil {
		err := h.rules.AddBlock(ctx, h.block.First, h.plainAddrs()...)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			return err
		}
		if err := h.nextBlock(); err != nil {
			return err
		}
	}
	if err := h.tellAllPorts(); err != nil {
		return err
	}
	first := h.block.First
	return env.AsError("set ephemeral ports",
		h.stack.net.SetPortRange(first, first+backing.BlockSize-1))
}

// manyFilters says how many filters of sockets' own Linux is known to free at once.
const manyFilters = 1000

// tellOfFilters tells the log once when n sockets of the kernel have filters of their own, and
// these are many. mu is held, or nobody else knows h.
func (h *host) tellOfFilters(n int) {
	if n > manyFilters && !h.toldOfFilters {
		h.toldOfFilters = true
		h.stack.log.Warn("Linux 6.18 may lose its BPF, for every process of this machine, if this "+
			"one is killed: it cannot free so many filters at once; start with CAP_BPF, or have "+
			"fewer addresses or listeners", "interface", h.stack.name, "filters", n)
	}
}

// nextBlock takes another block in place of the present one. mu is held.
func (h *host) nextBlock() error {
	var addrs []netip.Addr
	for _, a := range h.plainAddrs() {
		addrs = append(addrs, h.zoned(a))
	}
	next, err := backing.OpenBlock(int(h.block.First)+backing.BlockSize, addrs, h.filters)
	if err != nil {
		return err
	}
	old := h.block
	h.block = next
	return old.Close()
}

// plainAddrs returns the addresses in use. mu is held, or nobody else knows h.
func (h *host) plainAddrs() (addrs []netip.Addr) {
	for _, p := range h.addrs {
		addrs = append(addrs, p.Addr())
	}
	return addrs
}

// rule returns the device's for a port of its own.
func (p *hostPort) rule(priority dv.Priority) dv.HostRule {
	proto := uint8(unix.IPPROTO_TCP)
	if p.key.protocol == backing.UDP {
		proto = unix.IPPROTO_UDP
	}
	return dv.HostRule{Priority: priority, Proto: proto, Addr: p.key.at.Addr(),
		Port: p.key.at.Port()}
}

// steer has the device lead frames to p to the rings; those of the block's ports go there anyway,
// and none of localhost come by it. mu is held.
func (h *host) steer(p *hostPort) error {
	if h.rules == nil {
		return nil
	}
	return h.addRule(p, h.ruleState)
}

// unsteer has frames to p go to the kernel, and come by packet sockets for as long as it is ours:
// to connections from before. mu is held.
func (h *host) unsteer(p *hostPort) error {
	if h.rules == nil || p.ofBlock {
		return nil
	}
	return errors.Join(h.rules.RemoveRule(p.rule(dv.PriorityHandOver)),
		h.rules.RemoveRule(p.rule(dv.PriorityListener)))
}
