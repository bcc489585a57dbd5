// Package addrconf owns what a stack is known by on its link: its addresses, which are static,
// leased or made of what routers advertise, its routes, resolvers and groups. It detects
// duplicates, announces and defends addresses, and chooses which of them a packet leaves from.
package addrconf

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/addrlock"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/dhcp"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/env"
)

func toSubnet(p netip.Prefix) (tcpip.Subnet, error) {
	p = p.Masked()
	a := env.ToAddress(p.Addr())
	mask := net.CIDRMask(p.Bits(), a.BitLen())
	return tcpip.NewSubnet(a, tcpip.MaskFromBytes(mask))
}

// Host gives a Manager the stack around it. Its methods may be called from any goroutine.
type Host interface {
	// Listen opens a UDP socket ("udp4", "udp6") on a port of every address.
	Listen(network string, port int) (net.PacketConn, error)
	// SetGroups makes the link take frames to these groups.
	SetGroups(macs []net.HardwareAddr) error
	// LinkUp says whether the link has carrier.
	LinkUp() bool
	// Changed is called when routes, addresses or limits have changed, which sockets keep.
	Changed()
	// UseMTU limits IPv4 packets as a lease says, UseAdvertisedMTU those of IPv6 as a router does.
	UseMTU(mtu uint16)
	UseAdvertisedMTU(mtu uint32)
	// RoutesIPv6 says whether the host is a router of IPv6.
	RoutesIPv6() bool
}

// Config says where addresses and routes come from; stack.Config has the fields.
type Config struct {
	Addresses                          []netip.Prefix
	Gateways                           []netip.Addr
	Routes                             []env.Route
	Auto, DHCPv4, DHCPv6, SLAAC        bool
	NoAnnounce                         bool
	AddressTimeout, DuplicateDetection time.Duration
	DHCP                               dhcp.Config
	Netdev                             *Netdev // nil unless Auto or an address of Config is bare
	Host                               bool    // the addresses are the netdev's own
	SharedMAC                          bool    // the hardware address is Linux's, too
	Successor                          bool    // the process before still has the addresses
}

// Manager owns what a stack is known by on its link: addresses, groups, routes and resolvers, which
// are given, asked for or advertised.
type Manager struct {
	host    Host
	env     *env.Env
	cfg     Config
	locks   addrlock.Locks
	sources Sources // of packets, where nobody names one

	autoconf    autoconf     // routes and resolvers from the network
	raEvents    *raEvents    // what routers advertise, and results of neighbour discovery
	claims      *claims      // uses of our addresses by others
	memberships *memberships // the groups we are in
	dhcp        *dhcp.Clients
	announcer   clock.Timer // repeats the announcement once
	moved       atomic.Bool // to another MAC, or announced at all
	// neighbours on the link have hardware addresses; written before the link is in use
	resolves bool
	changing sync.Mutex // held while a change of addresses is made known
	// setLocalAddresses opens the link's fast path; nil: it has none
	setLocalAddresses func([]netip.Prefix)
}

// New makes a manager without addresses, for the netstack that it is part of: only then e is
// complete.
func New(e *env.Env, h Host, cfg Config) *Manager {
	s := &Manager{env: e, host: h, cfg: cfg, raEvents: newRAEvents(),
		claims:      &claims{shared: cfg.SharedMAC, seen: make(chan claim, claimQueue)},
		memberships: &memberships{changed: make(chan struct{}, 1), joined: map[tcpip.Address]int{}},
		autoconf:    autoconf{logLimit: env.RateLimit{Burst: 10, Period: time.Minute}}}
	s.dhcp = dhcp.New(e, s, cfg.DHCP)
	s.announcer = e.Clock.NewStopped(s.AnnounceAll)
	return s
}

// Stats counts what others do with our addresses, and what the network gave.
type Stats struct {
	Conflicts, Defences, Twins, Moves, ResolversRefused, LeasesAsked, LeasesRefused uint64
}

// Stats returns the present values.
func (s *Manager) Stats() Stats {
	asked, refused := s.dhcp.Counts()
	return Stats{s.claims.conflicts.Load(), s.claims.defences.Load(), s.claims.twins.Load(),
		s.claims.moves.Load(), s.raEvents.refused(), asked, refused}
}

// Sources chooses what packets leave from.
func (s *Manager) Sources() *Sources { return &s.sources }

// RouterEvents learns from netstack what routers advertise.
func (s *Manager) RouterEvents() ipv6.NDPDispatcher { return s.raEvents }

// Resolvers returns those that the network has given.
func (s *Manager) Resolvers() []netip.Addr { return s.autoconf.servers() }

// OfNetdev says whether Linux's configuration of the netdev is used.
func (s *Manager) OfNetdev() bool { return s.cfg.Netdev != nil }

// UseMAC notes the link's hardware address, before the link is in use, and when it changes.
func (s *Manager) UseMAC(mac tcpip.LinkAddress) {
	if s.claims.own.Swap(&mac) != nil {
		s.claims.moves.Add(1)
	}
}

// UseLink notes whether neighbours on the link have hardware addresses.
func (s *Manager) UseLink(resolves bool) {
	if s.resolves = resolves; !resolves {
		s.DisableDetection(env.NIC)
	}
}

// TellAddresses sets what is called with the addresses in use whenever they change.
func (s *Manager) TellAddresses(tell func([]netip.Prefix)) { s.setLocalAddresses = tell }

// LinkUp makes the addresses known on a link that carries frames again.
func (s *Manager) LinkUp() {
	s.AnnounceNow()
	if s.cfg.SLAAC {
		s.SolicitRouter()
	}
	s.dhcp.ConfirmLeases()
}

// Close gives up the locks of the addresses, once netstack has ended.
func (s *Manager) Close() {
	s.announcer.Stop()
	s.locks.Close()
}

// HardwareAddr returns the link's own address.
func (s *Manager) HardwareAddr() net.HardwareAddr {
	if info, ok := s.env.Net.SingleNICInfo(env.NIC); ok {
		return net.HardwareAddr(info.LinkAddress)
	}
	return nil
}

// Addrs returns the addresses in use on the link, in ascending order.
func (s *Manager) Addrs() (out []netip.Prefix) {
	for _, a := range s.env.Net.AllAddresses()[env.NIC] {
		p := a.AddressWithPrefix
		if p.Address != header.IPv4Broadcast { // netstack keeps that among our addresses
			out = append(out, netip.PrefixFrom(env.FromAddress(p.Address), p.PrefixLen))
		}
	}
	slices.SortFunc(out, func(a, b netip.Prefix) int { // netstack's order is that of a map
		return a.Addr().Compare(b.Addr())
	})
	return out
}

// Start takes the addresses into use, asks the network for others, and tells the neighbours. ctx
// bounds how long that waits.
func (s *Manager) Start(ctx context.Context, mac tcpip.LinkAddress) error {
	routes, err := s.routeTable()
	if err != nil {
		return err
	}
	s.env.Net.SetRouteTable(routes)
	s.TellGroups()
	s.env.Go(s.guard)
	if err := s.addAddresses(ctx, mac); err != nil {
		return err
	}
	s.AddressesChanged()
	s.AnnounceNow()
	return s.configure(ctx)
}

// DefaultTimeout gives the default of stack.Config.AddressTimeout.
const DefaultTimeout = 15 * time.Second

// configure asks the network for the addresses that cfg wants from it, and starts the goroutines
// that keep them. ctx bounds the first part.
func (s *Manager) configure(ctx context.Context) error {
	if s.cfg.SLAAC {
		s.env.Go(func() { s.follow(s.raEvents) })
	}
	limited, cancel := s.env.Clock.WithTimeoutCause(ctx, s.cfg.AddressTimeout, s.unanswered())
	defer cancel()
	if err := s.askSources(limited); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return fmt.Errorf("wait for a router, or for the other IP version, on %s: %w",
			s.env.Name, context.Cause(ctx))
	}
	return nil
}

// askSources asks the sources that cfg names for addresses.
func (s *Manager) askSources(ctx context.Context) error {
	if s.cfg.Auto {
		return s.askAll(ctx)
	}
	if s.cfg.DHCPv4 {
		if err := s.dhcp.AcquireV4(ctx); err != nil {
			return err
		}
	}
	if s.cfg.DHCPv6 {
		if err := s.dhcp.AcquireV6(ctx); err != nil {
			return err
		}
	}
	if s.cfg.SLAAC {
		return s.awaitRouter(ctx)
	}
	return nil
}

// dynamic says whether c asks the network for addresses.
func (c Config) dynamic() bool { return c.Auto || c.DHCPv4 || c.DHCPv6 || c.SLAAC }

// Listen implements dhcp.Host.
func (s *Manager) Listen(network string, port int) (net.PacketConn, error) {
	return s.host.Listen(network, port)
}

// Broadcast implements dhcp.Host. A socket can not, as long as there is no address to send from.
func (s *Manager) Broadcast(packet []byte) error {
	return env.AsError("broadcast", s.env.Net.WritePacketToRemote(env.NIC,
		header.EthernetBroadcastAddress, header.IPv4ProtocolNumber, buffer.MakeWithData(packet)))
}

// UseMTU implements dhcp.Host.
func (s *Manager) UseMTU(mtu uint16) { s.host.UseMTU(mtu) }

// unanswered says why there is no address, with what helps.
func (s *Manager) unanswered() error {
	if !s.host.LinkUp() {
		return errors.New("the port's link is down")
	}
	hint := ""
	if s.cfg.Netdev != nil && len(s.cfg.Netdev.Subnets) > 0 {
		hint = fmt.Sprintf(" in one of the networks of %s, %v", s.cfg.Netdev.Netdev,
			s.cfg.Netdev.Subnets)
	}
	return fmt.Errorf("no answer in %v; give an address yourself%s, or set AddressTimeout",
		s.cfg.AddressTimeout, hint)
}

// askAll asks DHCPv4 servers and routers at the same time, for as long as the stack lives, and
// DHCPv6 servers when a router says so. It returns when there is an address of each IP version, or
// of one and otherVersion has passed. Later answers are taken into use when they come.
func (s *Manager) askAll(ctx context.Context) error {
	s.acquireLater(s.dhcp.AcquireV4)
	tick := s.env.Clock.NewTimer(routerPoll)
	defer tick.Stop()
	var first time.Time // when there was an address of one version
	for {
		v4, v6 := s.provided()
		switch {
		case v4 && v6, (v4 || v6) && !first.IsZero() && s.env.Clock.Since(first) > otherVersion:
			return nil
		case (v4 || v6) && first.IsZero():
			first = s.env.Clock.Now()
		}
		select {
		case <-tick.C:
			tick.Reset(routerPoll)
		case <-ctx.Done():
			if v4 || v6 {
				return nil
			}
			return fmt.Errorf("%w, and no router a prefix, on %s: %w", dhcp.ErrNoLease,
				s.env.Name, context.Cause(ctx))
		}
	}
}

// acquireLater asks for an address in the background.
func (s *Manager) acquireLater(acquire func(context.Context) error) {
	s.env.Go(func() {
		if err := acquire(s.env.Ctx); err != nil && s.env.Ctx.Err() == nil {
			s.env.Log.Warn("ask for an address", "interface", s.env.Name, "error", err)
		}
	})
}

// isStatic says whether p is one of cfg's addresses.
func (s *Manager) isStatic(p netip.Prefix) bool {
	for _, c := range s.cfg.Addresses {
		if c.Addr() == p.Addr() {
			return true
		}
	}
	return false
}

// provided says of which IP versions there is an address, given by cfg or by the network, with its
// routes.
func (s *Manager) provided() (v4, v6 bool) {
	v4, ra := len(s.autoconf.routesOf(env.FromDHCPv4)) > 0, len(s.autoconf.routesOf(env.FromRA)) > 0
	for _, p := range s.Addrs() {
		v4 = v4 || p.Addr().Is4() && s.isStatic(p)
		v6 = v6 || p.Addr().Is6() && !p.Addr().IsLinkLocalUnicast() && (ra || s.isStatic(p))
	}
	return v4, v6
}

// awaitRouter waits until a router's prefixes and routes are in use. A link without routers is no
// error: what it advertises is taken into use when one appears.
func (s *Manager) awaitRouter(ctx context.Context) error {
	ctx, cancel := s.env.Clock.WithTimeout(ctx, routerWait)
	defer cancel()
	for !s.routed() {
		if s.env.Clock.Sleep(ctx, routerPoll) != nil {
			s.env.Log.Warn("no router has advertised a prefix", "interface", s.env.Name)
			return nil
		}
	}
	return nil
}

// routed says whether a router's routes are in use, and an address of its prefix unless it leaves
// that to DHCPv6.
func (s *Manager) routed() bool {
	if !slices.ContainsFunc(s.autoconf.routesOf(env.FromRA),
		func(r env.Route) bool { return r.Gateway.IsValid() }) {
		return false
	}
	if s.raEvents.config() == ipv6.DHCPv6ManagedAddress {
		return true
	}
	return slices.ContainsFunc(s.Addrs(), func(p netip.Prefix) bool {
		return p.Addr().Is6() && !p.Addr().IsLinkLocalUnicast() && !s.isStatic(p)
	})
}

// routerWait is three router solicitations, 4 s apart at most, and an answer (RFC 4861 section 10).
const routerWait, routerPoll = 5 * time.Second, 20 * time.Millisecond

// otherVersion says how long one IP version waits for the other: routers answer a solicitation
// within 0.5 s, and detecting duplicates takes as long as Config says.
const otherVersion = 2 * time.Second

// sourcePrecedence lists the sources by the precedence of their routes and resolvers.
var sourcePrecedence = []env.Source{env.FromDHCPv4, env.FromDHCPv6, env.FromRA, env.FromLinux}

// autoconf holds what the network has configured while the stack runs, by source. Config has
// precedence over it.
type autoconf struct {
	applying sync.Mutex    // held from a change until it is in force; locked before mu
	logLimit env.RateLimit // limits the lines logged about changes; guarded by applying

	mu     sync.Mutex
	routes map[env.Source][]env.Route
	dns    map[env.Source][]netip.Addr
}

// set replaces what one source has told, and reports whether that is a change.
func (l *autoconf) set(from env.Source, routes []env.Route, dns []netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.routes == nil {
		l.routes, l.dns = map[env.Source][]env.Route{}, map[env.Source][]netip.Addr{}
	}
	if slices.Equal(l.routes[from], routes) && slices.Equal(l.dns[from], dns) {
		return false
	}
	l.routes[from], l.dns[from] = routes, dns
	return true
}

// routesOf returns the routes of a source. A change of them is in force by then.
func (l *autoconf) routesOf(from env.Source) []env.Route {
	l.applying.Lock()
	defer l.applying.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.routes[from]
}

func (l *autoconf) allRoutes() []env.Route {
	l.mu.Lock()
	defer l.mu.Unlock()
	return inOrder(l.routes)
}

func (l *autoconf) servers() []netip.Addr {
	l.mu.Lock()
	defer l.mu.Unlock()
	return inOrder(l.dns)
}

// inOrder lists what all sources have given, by their precedence.
func inOrder[T any](given map[env.Source][]T) (all []T) {
	for _, from := range sourcePrecedence {
		all = append(all, given[from]...)
	}
	return all
}

// Configure takes routes and resolvers of a source into use, in place of its earlier ones.
func (s *Manager) Configure(from env.Source, routes []env.Route, dns []netip.Addr) error {
	s.autoconf.applying.Lock()
	defer s.autoconf.applying.Unlock()
	if !s.autoconf.set(from, routes, dns) {
		return nil
	}
	table, err := s.routeTable()
	if err != nil {
		return fmt.Errorf("routes from %s: %w", from, err)
	}
	s.env.Net.SetRouteTable(table)
	s.host.Changed()
	if ok, missed := s.autoconf.logLimit.Allows(s.env.Clock.Now()); ok {
		s.env.Log.Info("network configuration", "interface", s.env.Name, "from", string(from),
			"routes",
			len(routes), "dns", len(dns), "changes_not_logged", missed)
	}
	return nil
}

// UseAddress implements dhcp.Host: it takes an address that the network gave us into use, after
// duplicate detection.
func (s *Manager) UseAddress(ctx context.Context, p netip.Prefix) error {
	if err := s.AddAddress(ctx, p); err != nil {
		return err
	}
	s.AddressesChanged()
	if !s.cfg.NoAnnounce {
		s.AnnounceAll()
	}
	return nil
}

// RemoveAddress ends the use of an address, and says so in the log.
func (s *Manager) RemoveAddress(p netip.Prefix) {
	s.env.Net.RemoveAddress(env.NIC, env.ToAddress(p.Addr()))
	s.env.Log.Info("address given up", "interface", s.env.Name, "address", p.String())
	s.AddressesChanged()
}

// AbortConnectionsOf ends the TCP connections of an address of ours, but for listeners. Their peers
// are told if we still have the address.
func (s *Manager) AbortConnectionsOf(a netip.Addr) {
	for _, ep := range s.env.Net.RegisteredEndpoints() {
		c, ok := ep.(*tcp.Endpoint)
		if !ok || tcp.EndpointState(c.State()) == tcp.StateListen {
			continue
		}
		if local, terr := c.GetLocalAddress(); terr == nil && env.FromAddress(local.Addr) == a {
			c.Abort()
		}
	}
}

// AddressesChanged makes conns forget cached routes and sources, and tells the link our addresses.
func (s *Manager) AddressesChanged() {
	s.changing.Lock()
	defer s.changing.Unlock()
	addresses := s.Addrs()
	if s.cfg.Netdev != nil && !s.cfg.Host {
		if err := s.Configure(env.FromLinux, s.cfg.Netdev.routes(addresses), nil); err != nil {
			s.env.Log.Warn("routes of the netdev", "interface", s.env.Name, "error", err)
		}
	}
	s.sources.count(addresses)
	s.host.Changed()
	if s.setLocalAddresses != nil {
		s.setLocalAddresses(addresses)
	}
	s.TellGroups()
}

// Netdev says how Linux has configured the port's netdev, as it was when the stack was opened.
type Netdev struct {
	dv.Network
}

// ReadNetdev reads how Linux has configured the port of nic, and completes addresses with the
// lengths of its subnets. The result is nil if there is no netdev, and no address needs one.
func ReadNetdev(nic dv.NIC, addresses []netip.Prefix) (*Netdev, []netip.Prefix, error) {
	found, err := dv.NetworkOf(nic)
	if err != nil {
		if i := slices.IndexFunc(addresses, LacksLength); i >= 0 {
			return nil, nil, fmt.Errorf("%w; there is no Linux interface to take it from: %w",
				WithoutLength(addresses[i].Addr()), err)
		}
		return nil, addresses, nil // there is nothing to know
	}
	linux := &Netdev{Network: found}
	// Linux is to lose what it has of a MAC that is its own
	addresses, err = linux.complete(addresses,
		nic.Steering.AllowNetdevMAC || nic.Steering.Promiscuous)
	return linux, addresses, err
}

// complete gives addresses without a prefix length that of their subnet, and refuses addresses of
// the netdev itself unless they are shared.
func (l *Netdev) complete(all []netip.Prefix, shared bool) ([]netip.Prefix, error) {
	all = slices.Clone(all)
	for i, p := range all {
		a := p.Addr()
		if slices.Contains(l.Addresses, a) && !shared {
			return nil,
				fmt.Errorf("address %s is Linux's own on %s: %w; give the slice one of its own", a,
					l.Netdev, env.ErrDuplicateAddress)
		}
		if !LacksLength(p) {
			continue
		}
		at := slices.IndexFunc(l.Subnets, func(s netip.Prefix) bool { return s.Contains(a) })
		if at < 0 && l.onlyOnLink(a) {
			all[i] = netip.PrefixFrom(a, a.BitLen())
			continue
		}
		if at < 0 {
			return nil, fmt.Errorf("%w: %s has no address in its network: %v",
				WithoutLength(a), l.Netdev, l.Subnets)
		}
		all[i] = netip.PrefixFrom(a, l.Subnets[at].Bits())
	}
	return all, nil
}

// onlyOnLink says whether the netdev has a router for a's version of IP and no subnet: its
// addresses are /32 or /128, and its router is on the link.
func (l *Netdev) onlyOnLink(a netip.Addr) bool {
	return slices.ContainsFunc(l.Gateways, func(g netip.Addr) bool { return g.Is4() == a.Is4() }) &&
		!slices.ContainsFunc(l.Subnets,
			func(s netip.Prefix) bool { return s.Addr().Is4() == a.Is4() })
}

// WithoutLength says what is missing from an address.
func WithoutLength(a netip.Addr) error {
	bits := 24
	if a.Is6() {
		bits = 64
	}
	return fmt.Errorf("address %s has no prefix length; write the subnet's, for example %s/%d", a,
		a, bits)
}

// LacksLength says whether p is an address without its prefix length.
func LacksLength(p netip.Prefix) bool { return p.Addr().IsValid() && p.Bits() < 0 }

// routes returns the default routes over a router that one of our addresses can reach.
func (l *Netdev) routes(ours []netip.Prefix) (routes []env.Route) {
	for _, g := range l.Gateways {
		if slices.ContainsFunc(ours, func(p netip.Prefix) bool { return reaches(p, g) }) {
			routes = append(routes, defaultRoute(g))
		}
	}
	return routes
}

// defaultRoute returns the default route over a gateway.
func defaultRoute(g netip.Addr) env.Route {
	return env.Route{Destination: netip.PrefixFrom(g, 0).Masked(), Gateway: g}
}

// reaches says whether an address of ours makes a router useful: one in its subnet, one of no
// subnet, whose routers are on the link, or, where the router's is link-local, any that is not.
func reaches(own netip.Prefix, router netip.Addr) bool {
	if router.Is6() && router.IsLinkLocalUnicast() {
		return own.Addr().Is6() && !own.Addr().IsLinkLocalUnicast()
	}
	if own.IsSingleIP() {
		return own.Addr().Is4() == router.Is4() && own.Addr() != router
	}
	return own.Contains(router) && own.Addr() != router
}

// onLinkAlways lists what never needs a gateway: groups, broadcast and link-local hosts.
var onLinkAlways = []string{"224.0.0.0/4", "255.255.255.255/32", "ff00::/8", "fe80::/10"}

// routeTable lists loopback, what is on the link, cfg's routes and the gateways. Netstack orders
// it.
func (s *Manager) routeTable() ([]tcpip.Route, error) {
	all := []env.Route{}
	for _, p := range onLinkAlways {
		all = append(all, env.Route{Destination: netip.MustParsePrefix(p)})
	}
	if !s.cfg.Host { // whose own routes are all
		for _, p := range s.cfg.Addresses {
			all = append(all, env.Connected(p))
		}
	}
	all = append(all, s.cfg.Routes...)
	for _, g := range s.cfg.Gateways {
		all = append(all, defaultRoute(g))
	}
	all = append(all, s.autoconf.allRoutes()...)
	s.sources.useRoutes(all)
	table := make([]tcpip.Route, 0, len(all)+2)
	for _, p := range []string{"127.0.0.0/8", "::1/128"} {
		subnet, err := toSubnet(netip.MustParsePrefix(p))
		if err != nil {
			return nil, err
		}
		table = append(table, tcpip.Route{Destination: subnet, NIC: env.Loopback})
	}
	for _, r := range all {
		subnet, err := toSubnet(r.Destination)
		if err != nil {
			return nil, fmt.Errorf("route to %s: %w", r.Destination, err)
		}
		table = append(table, tcpip.Route{Destination: subnet, Gateway: env.ToAddress(r.Gateway),
			SourceHint: s.sources.hint(r), NIC: env.NIC, MTU: uint32(r.MTU)})
	}
	return table, nil
}
