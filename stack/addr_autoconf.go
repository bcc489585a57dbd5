package stack

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

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

// autoconf is what the network has configured while the stack runs, by source. Config has
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
		if err := s.applyAutoconf(fromLinux, s.netdev.routes(addresses), s.netdev.dns); err != nil {
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
