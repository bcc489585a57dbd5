package stack

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
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/addrlock"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/dhcp"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/env"
)

// ParseAddress reads one address of ours as a user writes it, address and prefix length:
// "192.0.2.10/24" or "2001:db8::10/64". Without a length it is for [Open] to find, see
// [Config.Addresses]. The error is one sentence that says how to write it.
func ParseAddress(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if a, bare := netip.ParseAddr(s); bare == nil && a.Zone() == "" {
		p, err = netip.PrefixFrom(a, -1), nil
	}
	if err != nil {
		return netip.Prefix{},
			fmt.Errorf("address %q is not of the form 192.0.2.10/24 or 2001:db8::10/64", s)
	}
	return p, env.CheckAddress(p)
}

// withoutLength says what is missing from an address.
func withoutLength(a netip.Addr) error {
	bits := 24
	if a.Is6() {
		bits = 64
	}
	return fmt.Errorf("address %s has no prefix length; write the subnet's, for example %s/%d", a,
		a, bits)
}

// lacksLength says whether p is an address without its prefix length.
func lacksLength(p netip.Prefix) bool { return p.Addr().IsValid() && p.Bits() < 0 }

func toAddress(a netip.Addr) tcpip.Address { return env.ToAddress(a) }

func fromAddress(a tcpip.Address) netip.Addr { return env.FromAddress(a) }

func toSubnet(p netip.Prefix) (tcpip.Subnet, error) {
	p = p.Masked()
	a := toAddress(p.Addr())
	mask := net.CIDRMask(p.Bits(), a.BitLen())
	return tcpip.NewSubnet(a, tcpip.MaskFromBytes(mask))
}

// protocolOf returns the network protocol that carries a.
func protocolOf(a netip.Addr) tcpip.NetworkProtocolNumber {
	if a.Is4() {
		return header.IPv4ProtocolNumber
	}
	return header.IPv6ProtocolNumber
}

// addressManager owns what a stack is known by on its link: addresses, groups, routes and
// resolvers, which are given, asked for or advertised.
type addressManager struct {
	stack *Stack
	env   *env.Env
	cfg   *Config
	locks addrlock.Locks

	autoconf autoconf  // routes and resolvers from the network
	raEvents *raEvents // what routers advertise, and results of neighbour discovery
	claims   *claims   // uses of our addresses by others

	memberships *memberships // the groups we are in
	// neighbours on the link have hardware addresses; written before the link is in use
	resolves bool
	netdev   *netdevConfig // nil unless Auto is asked for or an address of Config is bare

	changing          sync.Mutex           // held while a change of addresses is made known
	setLocalAddresses func([]netip.Prefix) // opens the link's fast path; nil: it has none
	announcer         clock.Timer          // repeats the announcement once
	dhcp              *dhcp.Clients
}

// defaultAddressTimeout gives the default of Config.Addressing.Timeout.
const defaultAddressTimeout = 15 * time.Second

// configure asks the network for the addresses that cfg wants from it, and starts the goroutines
// that keep them. ctx bounds the first part.
func (s *addressManager) configure(ctx context.Context) error {
	if s.cfg.Dynamic.has(SLAAC) {
		s.env.Go(func() { s.follow(s.raEvents) })
	}
	limited, cancel := s.env.Clock.WithTimeoutCause(ctx, s.cfg.Addressing.Timeout, s.unanswered())
	defer cancel()
	if err := s.ask(limited); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return fmt.Errorf("wait for a router, or for the other IP version, on %s: %w",
			s.env.Name, context.Cause(ctx))
	}
	return nil
}

// ask asks the sources that cfg names for addresses.
func (s *addressManager) ask(ctx context.Context) error {
	if s.cfg.Dynamic.has(Auto) {
		return s.auto(ctx)
	}
	if s.cfg.Dynamic.has(DHCPv4) {
		if err := s.dhcp.AcquireV4(ctx); err != nil {
			return err
		}
	}
	if s.cfg.Dynamic.has(DHCPv6) {
		if err := s.dhcp.AcquireV6(ctx); err != nil {
			return err
		}
	}
	if s.cfg.Dynamic.has(SLAAC) {
		return s.awaitRouter(ctx)
	}
	return nil
}

// dynamic says whether c asks the network for addresses.
func (c Config) dynamic() bool { return c.Dynamic != 0 }

// HardwareAddr implements dhcp.Host.
func (s *addressManager) HardwareAddr() net.HardwareAddr { return s.stack.HardwareAddr() }

// Listen implements dhcp.Host.
func (s *addressManager) Listen(network string, port int) (net.PacketConn, error) {
	return s.stack.ListenUDP(network, &net.UDPAddr{Port: port})
}

// Broadcast implements dhcp.Host. A socket can not, as long as there is no address to send from.
func (s *addressManager) Broadcast(packet []byte) error {
	return asError("broadcast", s.env.Net.WritePacketToRemote(nicID,
		header.EthernetBroadcastAddress, ipv4Protocol, buffer.MakeWithData(packet)))
}

// UseMTU implements dhcp.Host.
func (s *addressManager) UseMTU(mtu uint16) { s.stack.mtu.useLeased(mtu) }

// unanswered is why there is no address, with what helps.
func (s *addressManager) unanswered() error {
	if up, _ := s.stack.uplink.LinkState(); !up {
		return errors.New("the port's link is down")
	}
	hint := ""
	if s.netdev != nil && len(s.netdev.Subnets) > 0 {
		hint = fmt.Sprintf(" in one of the networks of %s, %v", s.netdev.Netdev, s.netdev.Subnets)
	}
	return fmt.Errorf("no answer in %v; give an address yourself%s, or set AddressTimeout",
		s.cfg.Addressing.Timeout, hint)
}

// auto asks DHCPv4 servers and routers at the same time, for as long as the stack lives, and DHCPv6
// servers when a router says so. It returns when there is an address of each IP version, or of one
// and otherVersion has passed. Later answers are taken into use when they come.
func (s *addressManager) auto(ctx context.Context) error {
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
func (s *addressManager) acquireLater(acquire func(context.Context) error) {
	s.env.Go(func() {
		if err := acquire(s.env.Ctx); err != nil && s.env.Ctx.Err() == nil {
			s.env.Log.Warn("ask for an address", "interface", s.env.Name, "error", err)
		}
	})
}

// static says whether p is one of cfg's addresses.
func (s *addressManager) static(p netip.Prefix) bool {
	for _, c := range s.cfg.Addresses {
		if c.Addr() == p.Addr() {
			return true
		}
	}
	return false
}

// provided says of which IP versions there is an address, given by cfg or by the network, with its
// routes.
func (s *addressManager) provided() (v4, v6 bool) {
	v4, ra := len(s.autoconf.routesOf(env.FromDHCPv4)) > 0, len(s.autoconf.routesOf(env.FromRA)) > 0
	for _, p := range s.stack.Addrs() {
		v4 = v4 || p.Addr().Is4() && s.static(p)
		v6 = v6 || p.Addr().Is6() && !p.Addr().IsLinkLocalUnicast() && (ra || s.static(p))
	}
	return v4, v6
}

// awaitRouter waits until a router's prefixes and routes are in use. A link without routers is no
// error: what it advertises is taken into use when one appears.
func (s *addressManager) awaitRouter(ctx context.Context) error {
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
func (s *addressManager) routed() bool {
	if !slices.ContainsFunc(s.autoconf.routesOf(env.FromRA),
		func(r env.Route) bool { return r.Gateway.IsValid() }) {
		return false
	}
	if s.raEvents.config() == ipv6.DHCPv6ManagedAddress {
		return true
	}
	return slices.ContainsFunc(s.stack.Addrs(), func(p netip.Prefix) bool {
		return p.Addr().Is6() && !p.Addr().IsLinkLocalUnicast() && !s.static(p)
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
	applying sync.Mutex // held from a change until it is in force; locked before mu
	logLimit rateLimit  // limits the lines logged about changes; guarded by applying

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
func (s *addressManager) Configure(from env.Source, routes []env.Route, dns []netip.Addr) error {
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
	s.stack.epoch.Add(1)
	if ok, missed := s.autoconf.logLimit.allows(s.env.Clock.Now()); ok {
		s.env.Log.Info("network configuration", "interface", s.env.Name, "from", string(from),
			"routes",
			len(routes), "dns", len(dns), "changes_not_logged", missed)
	}
	return nil
}

// UseAddress implements dhcp.Host: it takes an address that the network gave us into use, after
// duplicate detection.
func (s *addressManager) UseAddress(ctx context.Context, p netip.Prefix) error {
	if err := s.addAddress(ctx, p); err != nil {
		return err
	}
	s.addressesChanged()
	if !s.cfg.Addressing.NoAnnounce {
		s.announceAll()
	}
	return nil
}

// RemoveAddress ends the use of an address, and says so in the log.
func (s *addressManager) RemoveAddress(p netip.Prefix) {
	s.env.Net.RemoveAddress(nicID, toAddress(p.Addr()))
	s.env.Log.Info("address given up", "interface", s.env.Name, "address", p.String())
	s.addressesChanged()
}

// AbortConnectionsOf ends the TCP connections of an address of ours, but for listeners. Their peers
// are told if we still have the address.
func (s *addressManager) AbortConnectionsOf(a netip.Addr) {
	for _, ep := range s.env.Net.RegisteredEndpoints() {
		c, ok := ep.(*tcp.Endpoint)
		if !ok || tcp.EndpointState(c.State()) == tcp.StateListen {
			continue
		}
		if local, terr := c.GetLocalAddress(); terr == nil && fromAddress(local.Addr) == a {
			c.Abort()
		}
	}
}

// addressesChanged makes conns forget cached routes and sources, and tells the link our addresses.
func (s *addressManager) addressesChanged() {
	s.changing.Lock()
	defer s.changing.Unlock()
	addresses := s.stack.Addrs()
	if s.netdev != nil && s.stack.host == nil {
		if err := s.Configure(env.FromLinux, s.netdev.routes(addresses), nil); err != nil {
			s.env.Log.Warn("routes of the netdev", "interface", s.env.Name, "error", err)
		}
	}
	s.stack.sources.count(addresses)
	s.stack.epoch.Add(1)
	if s.setLocalAddresses != nil {
		s.setLocalAddresses(addresses)
	}
	s.tellGroups()
}

// netdevConfig is how Linux has configured the port's netdev, as it was when the stack was opened.
type netdevConfig struct {
	dv.Network
}

// readNetdevConfig reads how Linux has configured the port, and completes cfg's addresses with the
// lengths of its subnets. The result is nil if cfg uses nothing else of it.
func readNetdevConfig(cfg *Config) (*netdevConfig, error) {
	incomplete := slices.IndexFunc(cfg.Addresses, lacksLength)
	found, err := dv.NetworkOf(cfg.NIC)
	if err != nil {
		if incomplete >= 0 {
			return nil, fmt.Errorf("%w; there is no Linux interface to take it from: %w",
				withoutLength(cfg.Addresses[incomplete].Addr()), err)
		}
		return nil, nil // there is nothing to know
	}
	cfg.netdevName = found.Netdev
	linux := &netdevConfig{Network: found}
	if cfg.Addresses, err = linux.complete(*cfg); err != nil {
		return nil, err
	}
	if incomplete < 0 && !cfg.Dynamic.has(Auto) {
		return nil, nil
	}
	return linux, nil
}

// complete gives addresses without a prefix length that of their subnet, and refuses addresses of
// the netdev itself.
func (l *netdevConfig) complete(cfg Config) ([]netip.Prefix, error) {
	shared := cfg.takesFromLinux()
	all := slices.Clone(cfg.Addresses)
	for i, p := range all {
		a := p.Addr()
		if slices.Contains(l.Addresses, a) && !shared {
			return nil,
				fmt.Errorf("address %s is Linux's own on %s: %w; give the slice one of its own", a,
					l.Netdev, ErrDuplicateAddress)
		}
		if !lacksLength(p) {
			continue
		}
		at := slices.IndexFunc(l.Subnets, func(s netip.Prefix) bool { return s.Contains(a) })
		if at < 0 && l.onlyOnLink(a) {
			all[i] = netip.PrefixFrom(a, a.BitLen())
			continue
		}
		if at < 0 {
			return nil, fmt.Errorf("%w: %s has no address in its network: %v",
				withoutLength(a), l.Netdev, l.Subnets)
		}
		all[i] = netip.PrefixFrom(a, l.Subnets[at].Bits())
	}
	return all, nil
}

// onlyOnLink says whether the netdev has a router for a's version of IP and no subnet: its
// addresses are /32 or /128, and its router is on the link.
func (l *netdevConfig) onlyOnLink(a netip.Addr) bool {
	return slices.ContainsFunc(l.Gateways, func(g netip.Addr) bool { return g.Is4() == a.Is4() }) &&
		!slices.ContainsFunc(l.Subnets,
			func(s netip.Prefix) bool { return s.Addr().Is4() == a.Is4() })
}

// routes returns the default routes over a router that one of our addresses can reach.
func (l *netdevConfig) routes(ours []netip.Prefix) (routes []env.Route) {
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

// sources chooses the address that a packet leaves from if nobody names one, as Linux does.
// Netstack takes the address that has most leading bits in common with the destination.
//
// IPv4 (net/ipv4/devinet.c inet_select_addr): the source of the route if it has one, else the first
// address in whose subnet the next hop is, else the first. IPv6 (net/ipv6/addrconf.c
// ipv6_get_saddr_eval, RFC 6724 section 5): the source of the route, else the best by destination.
type sources struct {
	several4, several6 atomic.Bool // there is more than one address to choose from
	// kernel returns the choice of the kernel whose addresses these are; nil: they are not one's.
	// It is written before the link is in use.
	kernel func(remote netip.Addr) netip.Addr
	// toAll is the hint for packets to IPv4 groups and to all hosts, which Linux sends by the
	// default route, though on the link; nil: none.
	toAll atomic.Pointer[tcpip.Address]
}

// count notes of each family whether it has several addresses, once they have changed.
func (s *sources) count(all []netip.Prefix) {
	var v4, v6 int
	for _, p := range all {
		switch {
		case p.Addr().Is4():
			v4++
		case !p.Addr().IsLinkLocalUnicast():
			v6++
		}
	}
	s.several4.Store(v4 > 1)
	s.several6.Store(v6 > 1)
}

// ambiguous says whether an answer to from, which sent to the address to, might leave from another
// address by itself.
func (s *sources) ambiguous(from, to tcpip.Address) bool {
	if to.Len() == header.IPv4AddressSize {
		return s.several4.Load() && !header.IsV4LoopbackAddress(to)
	}
	return s.several6.Load() || onLink(from) != onLink(to)
}

// hint returns what choose4 and choose6 have to know of a route.
func (s *sources) hint(r env.Route) tcpip.Address {
	switch {
	case r.Source.IsValid():
		return toAddress(r.Source)
	case r.Destination.Addr().Is4():
		return toAddress(r.Gateway)
	}
	return tcpip.Address{}
}

// useRoutes takes over what it has to know of the routes, the ones with precedence first.
func (s *sources) useRoutes(all []env.Route) {
	s.toAll.Store(nil)
	for _, r := range all {
		if r.Destination.Bits() == 0 && r.Destination.Addr().Is4() {
			hint := s.hint(r)
			s.toAll.Store(&hint)
			return
		}
	}
}

// AcquireOutgoingPrimaryAddress implements gstack.AddressableEndpoint. hint is [sources.hint] of
// the route.
func (e *ipv4Endpoint) AcquireOutgoingPrimaryAddress(remote, hint tcpip.Address,
	allowExpired bool) gstack.AddressEndpoint {
	if e.sources.several4.Load() {
		a := e.sources.choose4(e.PrimaryAddresses(), remote, hint)
		if ep := acquire(e.ipv4Host, a); ep != nil {
			return ep
		}
	}
	return e.ipv4Host.AcquireOutgoingPrimaryAddress(remote, hint, allowExpired)
}

// AcquireOutgoingPrimaryAddress implements gstack.AddressableEndpoint. hint is [sources.hint] of
// the route.
func (e *ipv6Endpoint) AcquireOutgoingPrimaryAddress(remote, hint tcpip.Address,
	allowExpired bool) gstack.AddressEndpoint {
	if s := e.watch.sources; s.several6.Load() {
		a := s.choose6(e.PrimaryAddresses(), remote, hint, e.deprecated)
		if ep := acquire(e.ipv6Host, a); ep != nil {
			return ep
		}
	}
	return e.ipv6Host.AcquireOutgoingPrimaryAddress(remote, hint, allowExpired)
}

// acquire takes a reference to one of e's addresses; nil: it is no longer one.
func acquire(e gstack.AddressableEndpoint, a tcpip.Address) gstack.AddressEndpoint {
	if a.Len() == 0 {
		return nil
	}
	return e.AcquireAssignedAddress(a, false, gstack.NeverPrimaryEndpoint, false)
}

// deprecated says whether a is to be avoided as a source: its preferred lifetime is over.
func (e *ipv6Endpoint) deprecated(a tcpip.Address) bool {
	ep := acquire(e.ipv6Host, a)
	if ep == nil {
		return false
	}
	defer ep.DecRef()
	return ep.Deprecated()
}

// choose4 returns the address to send to remote from; the zero value: there is none. To an address
// of ours that is the first of its subnet, as fib_add_ifaddr of net/ipv4/fib_frontend.c has it.
func (s *sources) choose4(all []tcpip.AddressWithPrefix, remote, hint tcpip.Address) tcpip.Address {
	if a, ok := s.ofKernel(all, remote); ok {
		return a
	}
	if remote == header.IPv4Broadcast || header.IsV4MulticastAddress(remote) {
		if route := s.toAll.Load(); route != nil && hint.Len() == 0 {
			hint = *route
		}
	}
	if at := indexOf(all, remote); at >= 0 {
		for _, a := range all {
			if a.Subnet() == all[at].Subnet() {
				return a.Address
			}
		}
	}
	if indexOf(all, hint) >= 0 {
		return hint
	}
	for _, a := range all {
		if subnet := a.Subnet(); hint.Len() != 0 && subnet.Contains(hint) {
			return a.Address
		}
	}
	if len(all) > 0 {
		return all[0].Address
	}
	return tcpip.Address{}
}

// ofKernel returns the kernel's choice, if it is one of ours.
func (s *sources) ofKernel(all []tcpip.AddressWithPrefix,
	remote tcpip.Address) (a tcpip.Address, ok bool) {
	if s.kernel != nil && remote.Len() != 0 {
		a = toAddress(s.kernel(fromAddress(remote)))
	}
	return a, indexOf(all, a) >= 0
}

// indexOf returns where an address is in all; -1: nowhere.
func indexOf(all []tcpip.AddressWithPrefix, a tcpip.Address) int {
	return slices.IndexFunc(all, func(o tcpip.AddressWithPrefix) bool { return o.Address == a })
}

// choose6 returns the address to send to remote from; the zero value: there is none, or no
// destination. all is in the order in which they were added; of equals the last is chosen, which
// Linux puts first (ipv6_link_dev_addr of net/ipv6/addrconf.c).
func (s *sources) choose6(all []tcpip.AddressWithPrefix, remote, hint tcpip.Address,
	deprecated func(tcpip.Address) bool) (best tcpip.Address) {
	if remote.Len() == 0 || remote.Unspecified() {
		return best
	}
	if a, ok := s.ofKernel(all, remote); ok {
		return a
	}
	if indexOf(all, hint) >= 0 {
		return hint
	}
	to := fromAddress(remote)
	var least sourceRank
	for _, a := range slices.Backward(all) {
		rank := rankSource(netip.PrefixFrom(fromAddress(a.Address), a.PrefixLen), to,
			deprecated(a.Address))
		if best.Len() == 0 || slices.Compare(rank[:], least[:]) < 0 {
			best, least = a.Address, rank
		}
	}
	return best
}

// sourceRank compares source addresses by the rules of RFC 6724 section 5, the first rule first;
// the least is the best.
type sourceRank [6]int

// rankSource ranks own as the source for packets to remote. Rules 4, 5 and 7 are about what a stack
// does not have: home agents, other interfaces, temporary addresses.
func rankSource(own netip.Prefix, remote netip.Addr, deprecated bool) (r sourceRank) {
	if own.Addr() != remote {
		r[0] = 1
	}
	need, scope := scopeOf(remote), scopeOf(own.Addr())
	if r[1] = scope; scope < need { // too small: the greater the better, and worse than any other
		r[1] = maxScope + need - scope
	}
	if deprecated {
		r[2] = 1
	}
	if labelOf(own.Addr()) != labelOf(remote) {
		r[3] = 1
	}
	if labelOf(own.Addr()) == orchid && labelOf(remote) != orchid { // before rule 8, on Linux
		r[4] = 1
	}
	r[5] = -min(commonBits(own.Addr(), remote), own.Bits())
	return r
}

// maxScope bounds the scopes of groups (RFC 4291 section 2.7).
const maxScope = 15

// scopeOf returns the scope of an IPv6 address in the numbers of groups (RFC 6724 section 3.1).
func scopeOf(a netip.Addr) int {
	const linkLocal, siteLocal, global = 2, 5, 14
	b := a.As16()
	switch {
	case a.IsMulticast():
		return int(b[1] & 0xf)
	case a.IsLinkLocalUnicast(), a.IsLoopback():
		return linkLocal
	case b[0] == 0xfe && b[1]&0xc0 == 0xc0:
		return siteLocal
	}
	return global
}

// orchid labels addresses that stand for keys (RFC 4843).
const orchid = 7

// labelOf returns the label of an IPv6 address by Linux's table (net/ipv6/addrlabel.c): a source
// with the destination's is better.
func labelOf(a netip.Addr) int {
	b := a.As16()
	switch {
	case a.IsLoopback():
		return 0
	case b[0]&0xfe == 0xfc:
		return 5
	case b[0] == 0xfe && b[1]&0xc0 == 0xc0:
		return 11
	case b[0] == 0x20 && b[1] == 0x02:
		return 2
	case b[0] == 0x3f && b[1] == 0xfe:
		return 12
	case b[0] == 0x20 && b[1] == 0x01 && b[2] == 0 && b[3]&0xf0 == 0x10:
		return orchid
	case b[0] == 0x20 && b[1] == 0x01 && b[2] == 0 && b[3] == 0:
		return 6
	case [12]byte(b[:12]) == [12]byte{}:
		return 3
	}
	return 1
}

// commonBits returns how many leading bits two IPv6 addresses have in common.
func commonBits(a, b netip.Addr) int {
	x := toAddress(a)
	return int(x.MatchingPrefix(toAddress(b)))
}

// onLinkAlways lists what never needs a gateway: groups, broadcast and link-local hosts.
var onLinkAlways = []string{"224.0.0.0/4", "255.255.255.255/32", "ff00::/8", "fe80::/10"}

// routeTable lists loopback, what is on the link, cfg's routes and the gateways. Netstack orders
// it.
func (s *addressManager) routeTable() ([]tcpip.Route, error) {
	all := []env.Route{}
	for _, p := range onLinkAlways {
		all = append(all, env.Route{Destination: netip.MustParsePrefix(p)})
	}
	if s.stack.host == nil { // whose own routes are all
		for _, p := range s.cfg.Addresses {
			all = append(all, env.Connected(p))
		}
	}
	for _, r := range s.cfg.Routes {
		all = append(all, env.Route(r))
	}
	for _, g := range s.cfg.Gateways {
		all = append(all, defaultRoute(g))
	}
	all = append(all, s.autoconf.allRoutes()...)
	s.stack.sources.useRoutes(all)
	table := make([]tcpip.Route, 0, len(all)+2)
	for _, p := range []string{"127.0.0.0/8", "::1/128"} {
		subnet, err := toSubnet(netip.MustParsePrefix(p))
		if err != nil {
			return nil, err
		}
		table = append(table, tcpip.Route{Destination: subnet, NIC: loopbackID})
	}
	for _, r := range all {
		subnet, err := toSubnet(r.Destination)
		if err != nil {
			return nil, fmt.Errorf("route to %s: %w", r.Destination, err)
		}
		table = append(table, tcpip.Route{Destination: subnet, Gateway: toAddress(r.Gateway),
			SourceHint: s.stack.sources.hint(r), NIC: nicID, MTU: uint32(r.MTU)})
	}
	return table, nil
}
