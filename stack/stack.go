package stack

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"reflect"
	"runtime"
	"slices"
	"sync/atomic"

	gsync "gvisor.dev/gvisor/pkg/sync"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/link/loopback"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/internal/random"
	"github.com/rdma-netstack/rdma-netstack/link/failover"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
	"github.com/rdma-netstack/rdma-netstack/link/rdma"
	"github.com/rdma-netstack/rdma-netstack/link/uplink"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/addrconf"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/dhcp"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/env"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/handover"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/neighbours"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/resolver"
)

// Stack describes one host on one link: its addresses, routes, sockets and counters.
// All methods may be called from any goroutine.
type Stack struct {
	net   *gstack.Stack
	cfg   Config
	env   env.Env // for the parts of the stack
	name  string
	log   *slog.Logger
	clock clock.Clock
	addrs *addrconf.Manager
	names nameLookup
	zones zones

	icmp       *icmpErrors
	neighbours *neighbours.Table // hosts on the link, and what waits for their hardware addresses

	// epoch counts changes of addresses and routes; UDP conns drop cached routes when it moves.
	epoch atomic.Uint64

	link      *rdma.Endpoint // nil: the link is another one
	foreign   *detachable    // that other one, else nil
	acks      heldACKs
	datagrams datagramLink // nil: all datagrams go through netstack
	udp       udpSockets
	conns     openConns
	fields    tcpFields // of netstack, for Sockets

	uplink *uplink.Uplink // nil unless made by Open; closed after the link
	host   *host          // nil unless Config.Host
	outage outage
	mtu    *linkMTU
	health health

	life lifetime

	handover *handover.Handover

	orphans orphans // closed connections with something left to send
	memory  tcpMemory

	listeners *listenerTable
}

// New makes a stack on link, takes the addresses of cfg into use and tells the neighbours.
// The stack owns link from here on: Close closes it, and so does New when it fails.
//
// New returns once every address has passed duplicate detection, see
// [Config.Addressing.DuplicateDetection], and after Config.Addressing.Timeout at the latest if it
// asks the network for addresses. On a link whose neighbours need no resolution (no ARP, such as a
// TUN) nothing is detected or announced.
//
// Where netstack's TCP goes wrong on a network that loses frames, the link of [Open] puts it right
// (docs/netstack-workarounds.md); others do not: on them a connection can stand still for good
// after losses. A program on such a link sets deadlines.
//
// Of gVisor's own links these are known to close in the middle of traffic (tests/e2e/links):
// channel, pipe, alone and below ethernet, veth, alone and below sniffer, packetsocket or waitable,
// and fdbased with readv, recvmmsg or mmap, and sharedmem. xdp's waits for itself when it is
// detached, and sharedmem's server end for one more packet: Close then takes a second, says so in
// the log and leaves the link's goroutines behind. muxed is refused. tun is no link to give here:
// its Device adds an interface to [Stack.Netstack], which Close removes.
func New(link gstack.LinkEndpoint, cfg Config) (*Stack, error) {
	return NewContext(context.Background(), link, cfg)
}

// NewContext is [New] that gives up when ctx is done, with an error that says what it was waiting
// for. ctx bounds the making of the stack only.
func NewContext(ctx context.Context, link gstack.LinkEndpoint, cfg Config) (*Stack, error) {
	if link == nil {
		return nil,
			errors.New("the link is nil; " +
				"give a gVisor LinkEndpoint, or use Open for an RDMA device")
	}
	if err := refusal(link); err != nil {
		link.Close()
		return nil, err
	}
	if cfg.Host {
		link.Close()
		return nil, errors.New("with Host a netdev is needed: use Open")
	}
	if cfg.Filter != nil {
		link.Close()
		return nil, errors.New("a link given to New is not filtered by Config.Filter: use Open, " +
			"or give the filter to the link, as rdma.Options.Filter")
	}
	s, err := build(cfg, nil)
	if err != nil {
		link.Close()
		return nil, err
	}
	if err := s.attach(ctx, link); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// build makes a stack that has no link yet. linux may be nil.
func build(cfg Config, linux *addrconf.Netdev) (*Stack, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	if i := slices.IndexFunc(cfg.Addresses, addrconf.LacksLength); i >= 0 {
		return nil, addrconf.WithoutLength(cfg.Addresses[i].Addr())
	}
	if cfg.Host {
		cfg.Addresses = cfg.hostAddresses
	}
	mtu, mtus := new(linkMTU), newPathMTUs(cfg.Clock, random.From(cfg.Random))
	icmp := newICMPErrors(mtus)
	hosts := neighbours.NewTable(cfg.Clock, cfg.Logger, cfg.Name)
	s := &Stack{
		mtu: mtu, icmp: icmp, neighbours: hosts,
		cfg: cfg, name: cfg.Name, log: cfg.Logger,
		clock:  cfg.Clock,
		fields: findTCPFields(reflect.TypeFor[tcp.Endpoint]()),
	}
	s.life.begin()
	s.env = env.Env{Name: s.name, Log: s.log, Clock: s.clock, Random: random.From(cfg.Random),
		Ctx: s.life.ctx, Go: s.life.background.Go}
	s.addrs = addrconf.New(&s.env, addressHost{s}, cfg.addresses(linux))
	mtu.stack = s
	index := 0
	if ifi, err := net.InterfaceByName(cfg.netdevName); err == nil {
		index = ifi.Index
	}
	s.zones = zones{name: s.name, netdev: cfg.netdevName, index: func() int {
		if s.host != nil {
			return s.host.Index()
		}
		return index
	}}
	var err error
	s.names.rank = s.rankDestination
	if s.names.dns, err = resolver.New(s.resolverConfig()); err != nil {
		return nil, err
	}
	if s.net, err = newNetstack(cfg, s.addrs, hosts, mtu, icmp); err != nil {
		return nil, err
	}
	s.env.Net = s.net
	s.conns.net = s.net
	s.conns.starts = slowStarts{clock: cfg.Clock, net: s.net, fields: &s.fields}
	s.orphans = orphans{clock: cfg.Clock, fields: &s.fields}
	s.memory.init(s)
	s.fields.report(s.log)
	if cfg.Filter != nil {
		cfg.Filter.LogTo(s.log)
		cfg.Filter.Spare(func() []netip.Addr { return lifelinesOf(s) })
		cfg.Filter.SparePeers(func() []netip.Addr { return s.conns.peers(s.addrs.Addrs()) })
	}
	cfg.adoptPrefixes()
	s.health.init(cfg.Clock, cfg.HealthChanged)
	s.udp.stats = s.net.Stats().UDP
	s.listeners = newListenerTable()
	s.handover = handover.New(&s.env, handoverLocal{s}, cfg.predecessor())
	icmp.stack.Store(s)
	return s, nil
}

// lifelinesOf returns the resolvers and the routers that this host lives on.
func lifelinesOf(s *Stack) []netip.Addr {
	all := s.names.dns.Servers()
	for _, r := range s.net.GetRouteTable() {
		if a, ok := netip.AddrFromSlice(r.Gateway.AsSlice()); ok {
			all = append(all, a)
		}
	}
	return all
}

// Netstack returns the gVisor stack underneath, for what this package has no method for. Endpoints
// made there are closed by Close too.
func (s *Stack) Netstack() *gstack.Stack { return s.net }

// Name returns the interface's name, which link-local addresses carry as their zone.
func (s *Stack) Name() string { return s.name }

// HardwareAddr returns the link's own address.
func (s *Stack) HardwareAddr() net.HardwareAddr { return s.addrs.HardwareAddr() }

// Addrs returns the addresses in use on the link, the link-local one included, loopback not, in
// ascending order: those of IPv4 first.
func (s *Stack) Addrs() []netip.Prefix { return s.addrs.Addrs() }

// newEndpoint makes an endpoint and hands it to use while Close is kept out.
// If use fails, the endpoint is closed.
func (s *Stack) newEndpoint(transport tcpip.TransportProtocolNumber, f family,
	use func(tcpip.Endpoint, *waiter.Queue) error) error {
	leave, err := s.life.enter()
	if err != nil {
		return err
	}
	defer leave()
	q := new(waiter.Queue)
	ep, terr := s.net.NewEndpoint(transport, f.protocol(), q)
	if terr != nil {
		return syscallError("socket", terr)
	}
	if f == inet6 {
		ep.SocketOptions().SetV6Only(true)
	}
	s.markDefault(ep)
	if transport == tcp.ProtocolNumber {
		limitSegments(ep, s.cfg.TCP.ReceiveBuffer.Default)
	}
	if err := use(ep, q); err != nil {
		ep.Close()
		return err
	}
	return nil
}

// Close ends the stack: listeners, connections and dials in progress fail with net.ErrClosed at
// once, open connections are reset, the link is closed, and every goroutine of the stack has ended
// when Close returns. Further calls wait for the first and return what it returned.
func (s *Stack) Close() error {
	s.end(nil)
	<-s.life.ended
	if s.life.watched != nil {
		<-s.life.watched
	}
	return s.life.err
}

// Done is closed when the stack has ended, by Close or by itself; see [Stack.Err].
func (s *Stack) Done() <-chan struct{} { return s.life.ended }

// Err returns nil while the stack works or after Close, and else says why it ended by itself: its
// device has failed for good, see [UplinkOptions]. Every operation then fails with an error
// that is both net.ErrClosed and this one.
func (s *Stack) Err() error {
	if !s.life.closed.Load() {
		return nil
	}
	return s.life.cause
}

// end takes the stack down, once.
func (s *Stack) end(cause error) {
	if !s.life.end(cause) {
		return
	}
	defer close(s.life.ended)
	if cause != nil {
		s.health.report(reportStack, cause)
	}
	s.life.cancel()
	s.orphans.end()
	s.conns.starts.close()
	s.memory.end()
	s.handover.PartPredecessor()
	s.conns.abortOpen() // resets go out while there is still a link
	if s.foreign != nil {
		s.foreign.stopDelivery()
	}
	s.neighbours.Close()
	for _, id := range []tcpip.NICID{nicID, loopbackID} {
		s.net.RemoveNIC(id)
	}
	s.net.Close()
	abortLeft(s.net)
	s.addrs.Close()
	s.life.background.Wait()
	s.net.Wait()
	s.life.err = s.uplink.Close()
	if s.host != nil {
		s.life.err = errors.Join(s.life.err, s.host.Close())
	}
	s.handover.EndSuccessor()
}

// abortLeft ends what would keep Netstack's Wait waiting: connections in TIME-WAIT, and those whose
// handshake raced with Close.
func abortLeft(g *gstack.Stack) {
	for _, ep := range g.RegisteredEndpoints() {
		ep.Abort()
	}
	for _, ep := range g.CleanupEndpoints() {
		ep.Abort()
	}
}

// addresses returns what the owner of the addresses is to know.
func (c Config) addresses(linux *addrconf.Netdev) addrconf.Config {
	routes := make([]env.Route, len(c.Routes))
	for i, r := range c.Routes {
		routes[i] = env.Route(r)
	}
	return addrconf.Config{Addresses: c.Addresses, Gateways: c.Gateways, Routes: routes,
		Auto: c.Dynamic.has(Auto), DHCPv4: c.Dynamic.has(DHCPv4),
		DHCPv6: c.Dynamic.has(DHCPv6), SLAAC: c.Dynamic.has(SLAAC),
		NoAnnounce: c.Addressing.NoAnnounce, AddressTimeout: c.Addressing.Timeout,
		DuplicateDetection: c.Addressing.DuplicateDetection, Netdev: linux, Host: c.Host,
		DHCP: dhcp.Config{Renewal: c.renewal, Decline: c.declineWait,
			Detection: c.Addressing.DuplicateDetection},
		SharedMAC: c.takesFromLinux() || c.Host,
		Successor: c.Predecessor != nil}
}

// addressHost implements addrconf.Host.
type addressHost struct{ s *Stack }

func (h addressHost) Listen(network string, port int) (net.PacketConn, error) {
	return h.s.ListenUDP(network, &net.UDPAddr{Port: port})
}

func (h addressHost) SetGroups(macs []net.HardwareAddr) error {
	if h.s.link == nil {
		return nil
	}
	return h.s.link.SetGroups(macs)
}

func (h addressHost) LinkUp() bool {
	up, _ := h.s.uplink.LinkState()
	return up
}

func (h addressHost) RoutesIPv6() bool {
	return h.s.host != nil && h.s.host.RoutesIPv6()
}

func (h addressHost) Changed()                    { h.s.epoch.Add(1) }
func (h addressHost) UseMTU(mtu uint16)           { h.s.mtu.useLeased(mtu) }
func (h addressHost) UseAdvertisedMTU(mtu uint32) { h.s.mtu.useAdvertised(mtu) }

// attach gives the stack its interfaces, addresses and routes. ctx bounds how long that waits.
func (s *Stack) attach(ctx context.Context, link gstack.LinkEndpoint) error {
	if err := s.addLoopback(); err != nil {
		link.Close()
		return err
	}
	mac := link.LinkAddress()
	if err := s.addLink(link); err != nil {
		return err
	}
	return s.addrs.Start(ctx, mac)
}

// fastLink is a link with a fast path, which [rdma.Endpoint] is.
type fastLink interface {
	BindStack(*gstack.Stack, tcpip.NICID) error
	SetLocalAddresses([]netip.Prefix)
	SetLocalPrefixes([]netip.Prefix)
	SetDatagramSinks(func(queue int, v6 bool, port uint16) rdma.DatagramSink)
	datagramLink
}

var _ fastLink = (*rdma.Endpoint)(nil)

// addLink makes link the stack's interface; pure ACKs pass through a queueing discipline that lets
// most of them ride on data.
func (s *Stack) addLink(link gstack.LinkEndpoint) error {
	s.addrs.UseMAC(link.LinkAddress())
	b, ours := link.(fastLink)
	if !ours {
		s.foreign = &detachable{link, s.log, s.clock, new(gsync.Gate), new(gsync.Gate)}
		link = s.foreign.endpoint()
	}
	opts := gstack.NICOptions{Name: s.name}
	if d := s.cfg.TCP.ACKDelay; d >= 0 {
		s.acks.by = rdma.NewACKCoalescer(link, rdma.ACKOptions{Delay: d, Clock: s.clock,
			Random: s.cfg.Random})
		opts.QDisc = s.acks.by
	}
	if s.link, _ = link.(*rdma.Endpoint); s.link != nil {
		if err := s.link.SelfTest(); err != nil {
			s.log.Warn("this version of gVisor lacks what the link uses", "interface", s.name,
				"error", err)
		}
	}
	if err := s.net.CreateNICWithOptions(nicID, link, opts); err != nil {
		return env.AsError("create interface "+s.name, err)
	}
	s.addrs.UseLink(link.Capabilities()&gstack.CapabilityResolutionRequired != 0)
	if !ours {
		return nil
	}
	if !s.cfg.NoFastPath {
		b.SetLocalPrefixes(s.cfg.local)
		s.addrs.TellAddresses(b.SetLocalAddresses)
		s.datagrams = b
		b.SetDatagramSinks(s.udp.ports.find)
	}
	return b.BindStack(s.net, nicID)
}

func (s *Stack) addLoopback() error {
	if err := s.net.CreateNICWithOptions(loopbackID, loopback.New(),
		gstack.NICOptions{Name: "lo"}); err != nil {
		return env.AsError("create interface lo", err)
	}
	s.addrs.DisableDetection(loopbackID)
	for _, p := range []netip.Prefix{netip.MustParsePrefix("127.0.0.1/8"),
		netip.MustParsePrefix("::1/128")} {
		if err := s.net.AddProtocolAddress(loopbackID, env.ProtocolAddress(p),
			gstack.AddressProperties{}); err != nil {
			return env.AsError("add address "+p.String(), err)
		}
	}
	// As on Linux, all that is sent to an address of ours passes lo, whatever its source; lo itself
	// has only its own.
	return env.AsError("make lo take packets for all our addresses",
		s.net.SetPromiscuousMode(loopbackID, true))
}

// Open opens the RDMA device cfg.NIC and makes a stack on its queues. Where that names a netdev
// without an mlx5 device, packet sockets take their place, with a line in the log: see
// [UplinkOptions]. ctx bounds opening only; the error then says what it was waiting for.
//
// If the device fails or is removed later, the stack goes on, on packet sockets or on nothing until
// a device is there again: see [UplinkOptions].
func Open(ctx context.Context, cfg Config) (*Stack, error) {
	if cfg.NIC.TxQueues == 0 {
		cfg.NIC.TxQueues = sendQueues(cfg.NIC.RxQueues, runtime.GOMAXPROCS(0))
	}
	if cfg.Host {
		return openHost(ctx, cfg)
	}
	cfg.adopt()
	bare := slices.ContainsFunc(cfg.Addresses, addrconf.LacksLength)
	linux, all, err := addrconf.ReadNetdev(cfg.NIC, cfg.Addresses) // before the device is touched
	if err != nil {
		return nil, err
	}
	if cfg.Addresses = all; linux != nil {
		cfg.netdevName = linux.Netdev
	}
	if !bare && !cfg.Dynamic.has(Auto) {
		linux = nil
	}
	s, err := build(cfg, linux)
	if err != nil {
		return nil, err
	}
	if err := s.open(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// maxSendQueues bounds the default of NIC.TxQueues: each queue takes up to 1 MiB of pinned memory.
const maxSendQueues = 8

// sendQueues returns the default of NIC.TxQueues: twice the processors. netstack sends with a
// connection locked, and its goroutines look at a locked connection again and again. So a
// goroutine that waits for the lock of a send queue costs others time as well.
func sendQueues(receive, processors int) int {
	if processors == 1 {
		return 1
	}
	return max(receive, min(2*processors, maxSendQueues))
}

// open gives s a device and its link. What it has opened is closed by Close, if not by itself.
func (s *Stack) open(ctx context.Context) error {
	cfg := s.uplinkConfig()
	err := s.cfg.checkDriver(&cfg.NIC)
	if err != nil {
		return err
	}
	if s.uplink, err = uplink.Open(ctx, cfg); err != nil {
		return err
	}
	link := s.uplink.Endpoint()
	if err = s.addrs.Lock(s.uplink.FirstInterface()); err == nil {
		err = s.handover.Join(link, s.uplink.FirstDevice())
	}
	if err != nil {
		link.Close()
		return err
	}
	if err := s.attach(ctx, link); err != nil {
		return err
	}
	s.uplink.Keep()
	startMACFollower(s)
	s.mtu.follow()
	if !s.uplink.LinkUp() {
		s.health.report(reportLink, errLinkDown)
	}
	s.life.watched = make(chan struct{})
	go s.watch()
	return nil
}

// markDefault makes an endpoint send with the configured traffic class.
func (s *Stack) markDefault(ep tcpip.Endpoint) {
	if s.cfg.DSCP != 0 {
		mark(ep, int(s.cfg.DSCP)<<2)
	}
}

// resolverConfig returns what the resolver of a stack works with. The machine's resolv.conf counts
// if the stack uses Linux's configuration and the program names no file of its own.
func (s *Stack) resolverConfig() resolver.Config {
	files := resolver.Files{ResolvConf: s.cfg.ResolvConf}
	if s.addrs.OfNetdev() {
		files.Machine = hostResolvConf
	}
	dial := func(ctx context.Context, network, server string) (net.Conn, error) {
		to, err := netip.ParseAddrPort(server)
		if err != nil {
			return nil, err
		}
		return s.Dialer().dialOne(ctx, network, resolvedAddr{to.Addr().Unmap(), int(to.Port())})
	}
	return resolver.Config{Clock: s.clock, Servers: s.cfg.DNS, Learned: s.addrs.Resolvers,
		Dial: dial, Files: files}
}

// rankDestination says what we can do with a destination (after RFC 6724 section 6, rules 1, 2 and
// 6): lowest are those with a route and a source address of the same scope, IPv6 before IPv4.
func (s *Stack) rankDestination(ip netip.Addr) int {
	r, err := s.findRoute(routeKey{remote: toAddress(ip.WithZone(""))})
	if err != nil {
		return 3
	}
	defer r.Release()
	switch {
	case env.OnLink(r.LocalAddress()) && !env.OnLink(r.RemoteAddress()):
		return 2
	case ip.Is4():
		return 1
	}
	return 0
}

// Resolver looks names up with the servers and the resolv.conf options of [Config] over this stack.
// It is package net's own resolver with our transport, for all types of records. It takes
// /etc/hosts, nsswitch.conf and search domains from the machine; dials of this package use the
// search domains of Config.ResolvConf instead.
func (s *Stack) Resolver() *net.Resolver { return s.names.dns.Net() }

// Device returns the RDMA device underneath, for its counters; nil if the stack was made by [New]
// or is on packet sockets, or while the device is away. It belongs to the stack, which closes it
// when it fails: another one takes its place. On a bond of ports with a device each it is the one
// that sends; Devices has all.
func (s *Stack) Device() *dv.Device { return s.uplink.Device() }

// Devices returns the RDMA devices underneath, of a bond all, in its order.
func (s *Stack) Devices() []*dv.Device { return s.uplink.Devices() }

// LinkStatus says what the uplink is, and what has become of its device; the zero
// value if the stack ends with its device, or was made by [New].
func (s *Stack) LinkStatus() failover.Status {
	return s.uplink.Status()
}

// PacketPort returns the packet sockets underneath, for their counters; nil if there are none at
// work, or what Config.Uplink.OpenInterface has made. It belongs to the stack.
func (s *Stack) PacketPort() packet.Netdev { return s.uplink.PacketPort() }
