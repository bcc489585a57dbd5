package stack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/rdma-netstack/rdma-netstack/dv"
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
	return p, checkAddress(p)
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

// checkAddress refuses what cannot be the address of a host on an Ethernet.
func checkAddress(p netip.Prefix) error {
	a := p.Addr()
	switch {
	case !a.IsValid():
		return errors.New("an address is empty; give one such as 192.0.2.10/24 or 2001:db8::10/64")
	case a.Is4In6():
		return fmt.Errorf("address %s is an IPv4 address in IPv6 form; write it as %s", a,
			a.Unmap())
	case a.IsUnspecified(), a.IsMulticast():
		return fmt.Errorf("address %s cannot belong to one host; "+
			"give this host's own unicast address", a)
	case a.IsLoopback():
		return fmt.Errorf("address %s is loopback, which every stack has already; "+
			"give an address of the link's subnet", a)
	case hasEnds(p) && a == p.Masked().Addr():
		return fmt.Errorf("address %s is the subnet itself; "+
			"give a host address inside it, for example %s/%d", p, a.Next(), p.Bits())
	case hasEnds(p) && a == lastAddr(p):
		return fmt.Errorf("address %s is the subnet's broadcast address; "+
			"give a host address inside the subnet", p)
	}
	return nil
}

// hasEnds says whether the first and last address of p's subnet are not hosts.
func hasEnds(p netip.Prefix) bool { return p.Addr().Is4() && p.Bits() >= 0 && p.Bits() < 31 }

// lastAddr returns the highest address of an IPv4 subnet.
func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Addr().As4()
	for i := p.Bits(); i < 32; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	return netip.AddrFrom4(b)
}

// toAddress converts to netstack's form; the zero netip.Addr becomes netstack's "any".
func toAddress(a netip.Addr) tcpip.Address {
	switch {
	case a.Is4():
		return tcpip.AddrFrom4(a.As4())
	case a.Is6():
		return tcpip.AddrFrom16(a.As16())
	}
	return tcpip.Address{}
}

// fromAddress converts from netstack's form; "any" becomes the zero netip.Addr.
func fromAddress(a tcpip.Address) netip.Addr {
	switch a.Len() {
	case header.IPv4AddressSize:
		return netip.AddrFrom4(a.As4())
	case header.IPv6AddressSize:
		return netip.AddrFrom16(a.As16())
	}
	return netip.Addr{}
}

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

// defaultAddressTimeout gives the default of Config.AddressTimeout.
const defaultAddressTimeout = 15 * time.Second

// configure asks the network for the addresses that cfg wants from it, and starts the goroutines
// that keep them. ctx bounds the first part.
func (s *Stack) configure(ctx context.Context) error {
	if s.cfg.SLAAC {
		s.background.Go(func() { s.follow(s.raEvents) })
	}
	limited, cancel := s.clock.WithTimeoutCause(ctx, s.cfg.AddressTimeout, s.unanswered())
	defer cancel()
	if err := s.ask(limited); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return fmt.Errorf("wait for a router, or for the other IP version, on %s: %w",
			s.name, context.Cause(ctx))
	}
	return nil
}

// ask asks the sources that cfg names for addresses.
func (s *Stack) ask(ctx context.Context) error {
	if s.cfg.Auto {
		return s.auto(ctx)
	}
	if s.cfg.DHCPv4 {
		if err := s.acquireLease(ctx, newDHCP4); err != nil {
			return err
		}
	}
	if s.cfg.DHCPv6 {
		if err := s.acquireLease(ctx, newDHCP6); err != nil {
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

// unanswered is why there is no address, with what helps.
func (s *Stack) unanswered() error {
	if up, _ := s.uplink.LinkState(); !up {
		return errors.New("the port's link is down")
	}
	hint := ""
	if s.netdev != nil && len(s.netdev.Subnets) > 0 {
		hint = fmt.Sprintf(" in one of the networks of %s, %v", s.netdev.Netdev, s.netdev.Subnets)
	}
	return fmt.Errorf("no answer in %v; give an address yourself%s, or set AddressTimeout",
		s.cfg.AddressTimeout, hint)
}

// auto asks DHCPv4 servers and routers at the same time, for as long as the stack lives, and DHCPv6
// servers when a router says so. It returns when there is an address of each IP version, or of one
// and otherVersion has passed. Later answers are taken into use when they come.
func (s *Stack) auto(ctx context.Context) error {
	s.acquireLeaseLater(newDHCP4)
	tick := s.clock.NewTimer(routerPoll)
	defer tick.Stop()
	var first time.Time // when there was an address of one version
	for {
		v4, v6 := s.provided()
		switch {
		case v4 && v6, (v4 || v6) && !first.IsZero() && s.clock.Since(first) > otherVersion:
			return nil
		case (v4 || v6) && first.IsZero():
			first = s.clock.Now()
		}
		select {
		case <-tick.C:
			tick.Reset(routerPoll)
		case <-ctx.Done():
			if v4 || v6 {
				return nil
			}
			return fmt.Errorf("%w, and no router a prefix, on %s: %w", ErrNoLease,
				s.name, context.Cause(ctx))
		}
	}
}

// acquireLeaseLater is acquireLease in the background.
func (s *Stack) acquireLeaseLater(open func(*Stack) (dhcpClient, error)) {
	s.background.Go(func() {
		if err := s.acquireLease(s.ctx, open); err != nil && s.ctx.Err() == nil {
			s.log.Warn("ask for an address", "interface", s.name, "error", err)
		}
	})
}

// provided says of which IP versions there is an address, given by cfg or by the network, with its
// routes.
func (s *Stack) provided() (v4, v6 bool) {
	v4, ra := s.autoconf.hasRoutes(fromDHCPv4), s.autoconf.hasRoutes(fromRA)
	for _, p := range s.Addrs() {
		v4 = v4 || p.Addr().Is4() && s.static(p)
		v6 = v6 || p.Addr().Is6() && !p.Addr().IsLinkLocalUnicast() && (ra || s.static(p))
	}
	return v4, v6
}

// awaitRouter waits until a router's prefixes and routes are in use. A link without routers is no
// error: what it advertises is taken into use when one appears.
func (s *Stack) awaitRouter(ctx context.Context) error {
	ctx, cancel := s.clock.WithTimeout(ctx, routerWait)
	defer cancel()
	for !s.routed() {
		if s.clock.Sleep(ctx, routerPoll) != nil {
			s.log.Warn("no router has advertised a prefix", "interface", s.name)
			return nil
		}
	}
	return nil
}

// routed says whether a router's routes are in use, and an address of its prefix unless it leaves
// that to DHCPv6.
func (s *Stack) routed() bool {
	if !s.autoconf.hasRouter(fromRA) {
		return false
	}
	if s.raEvents.config() == ipv6.DHCPv6ManagedAddress {
		return true
	}
	return slices.ContainsFunc(s.Addrs(), func(p netip.Prefix) bool {
		return p.Addr().Is6() && !p.Addr().IsLinkLocalUnicast() && !s.static(p)
	})
}

// routerWait is three router solicitations, 4 s apart at most, and an answer (RFC 4861 section 10).
const routerWait, routerPoll = 5 * time.Second, 20 * time.Millisecond

// otherVersion says how long one IP version waits for the other: routers answer a solicitation
// within 0.5 s, and detecting duplicates takes as long as Config says.
const otherVersion = 2 * time.Second

// autoconfSource is where routes and resolvers come from.
type autoconfSource string

const (
	fromDHCPv4 autoconfSource = "DHCPv4"
	fromDHCPv6 autoconfSource = "DHCPv6"
	fromRA     autoconfSource = "router advertisement"
	fromLinux  autoconfSource = "the port's netdev"
)

// sourcePrecedence lists the sources by the precedence of their routes and resolvers.
var sourcePrecedence = []autoconfSource{fromDHCPv4, fromDHCPv6, fromRA, fromLinux}

// autoconf holds what the network has configured while the stack runs, by source. Config has
// precedence over it.
type autoconf struct {
	applying sync.Mutex // held from a change until it is in force; locked before mu
	logLimit rateLimit  // limits the lines logged about changes; guarded by applying

	mu     sync.Mutex
	routes map[autoconfSource][]Route
	dns    map[autoconfSource][]netip.Addr
}

// set replaces what one source has told, and reports whether that is a change.
func (l *autoconf) set(from autoconfSource, routes []Route, dns []netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.routes == nil {
		l.routes, l.dns = map[autoconfSource][]Route{}, map[autoconfSource][]netip.Addr{}
	}
	if slices.Equal(l.routes[from], routes) && slices.Equal(l.dns[from], dns) {
		return false
	}
	l.routes[from], l.dns[from] = routes, dns
	return true
}

// hasRoutes says whether routes of a source are in use.
func (l *autoconf) hasRoutes(from autoconfSource) bool {
	l.applying.Lock()
	defer l.applying.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.routes[from]) > 0
}

// hasRouter says whether a route of a source that has a router is in use.
func (l *autoconf) hasRouter(from autoconfSource) bool {
	l.applying.Lock()
	defer l.applying.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.routes[from], func(r Route) bool { return r.Gateway.IsValid() })
}

func (l *autoconf) allRoutes() []Route {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []Route
	for _, from := range sourcePrecedence {
		all = append(all, l.routes[from]...)
	}
	return all
}

func (l *autoconf) servers() []netip.Addr {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []netip.Addr
	for _, from := range sourcePrecedence {
		all = append(all, l.dns[from]...)
	}
	return all
}

// applyAutoconf takes routes and resolvers of a source into use, in place of its earlier ones.
func (s *Stack) applyAutoconf(from autoconfSource, routes []Route, dns []netip.Addr) error {
	s.autoconf.applying.Lock()
	defer s.autoconf.applying.Unlock()
	if !s.autoconf.set(from, routes, dns) {
		return nil
	}
	table, err := s.routeTable()
	if err != nil {
		return fmt.Errorf("routes from %s: %w", from, err)
	}
	s.net.SetRouteTable(table)
	s.epoch.Add(1)
	if ok, missed := s.autoconf.logLimit.allows(s.clock.Now()); ok {
		s.log.Info("network configuration", "interface", s.name, "from", string(from), "routes",
			len(routes), "dns", len(dns), "changes_not_logged", missed)
	}
	return nil
}

// useAddress takes an address that the network gave us into use, after duplicate detection.
func (s *Stack) useAddress(ctx context.Context, p netip.Prefix) error {
	if err := s.addAddress(ctx, p); err != nil {
		return err
	}
	s.addressesChanged()
	if !s.cfg.NoAnnounce {
		s.Announce()
	}
	return nil
}

// removeAddress ends the use of an address, and says so in the log.
func (s *Stack) removeAddress(p netip.Prefix) {
	s.net.RemoveAddress(nicID, toAddress(p.Addr()))
	s.log.Info("address given up", "interface", s.name, "address", p.String())
	s.addressesChanged()
}

// abortConnectionsOf ends the TCP connections of an address of ours, but for listeners. Their peers
// are told if we still have the address.
func (s *Stack) abortConnectionsOf(a netip.Addr) {
	for _, ep := range s.net.RegisteredEndpoints() {
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
func (s *Stack) addressesChanged() {
	s.changing.Lock()
	defer s.changing.Unlock()
	addresses := s.Addrs()
	if s.netdev != nil && s.host == nil {
		if err := s.applyAutoconf(fromLinux, s.netdev.routes(addresses), nil); err != nil {
			s.log.Warn("routes of the netdev", "interface", s.name, "error", err)
		}
	}
	s.addressCounts.count(addresses)
	s.epoch.Add(1)
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
	if incomplete < 0 && !cfg.Auto {
		return nil, nil
	}
	return linux, nil
}

// complete gives addresses without a prefix length that of their subnet, and refuses addresses of
// the netdev itself.
func (l *netdevConfig) complete(cfg Config) ([]netip.Prefix, error) {
	shared := cfg.NIC.AllowNetdevMAC || cfg.NIC.Promiscuous // Linux is to lose what it has
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
		if at < 0 {
			return nil, fmt.Errorf("%w: %s has no address in its network: %v",
				withoutLength(a), l.Netdev, l.Subnets)
		}
		all[i] = netip.PrefixFrom(a, l.Subnets[at].Bits())
	}
	return all, nil
}

// routes returns the default routes over a router that one of our addresses can reach.
func (l *netdevConfig) routes(ours []netip.Prefix) (routes []Route) {
	for _, g := range l.Gateways {
		if slices.ContainsFunc(ours, func(p netip.Prefix) bool { return reaches(p, g) }) {
			routes = append(routes, Route{Destination: netip.PrefixFrom(g, 0).Masked(), Gateway: g})
		}
	}
	return routes
}

// reaches says whether an address of ours makes a router useful: one in its subnet or, where the
// router's is link-local, any that is not.
func reaches(own netip.Prefix, router netip.Addr) bool {
	if router.Is6() && router.IsLinkLocalUnicast() {
		return own.Addr().Is6() && !own.Addr().IsLinkLocalUnicast()
	}
	return own.Contains(router) && own.Addr() != router
}
