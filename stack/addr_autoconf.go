package stack

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// learnedFrom is who told us of routes and resolvers.
type learnedFrom string

const (
	fromDHCPv4 learnedFrom = "DHCPv4"
	fromDHCPv6 learnedFrom = "DHCPv6"
	fromRA     learnedFrom = "router advertisement"
	fromLinux  learnedFrom = "the port's netdev"
)

// precedence is whose routes and resolvers come first.
var precedence = []learnedFrom{fromDHCPv4, fromDHCPv6, fromRA, fromLinux}

// learned is what the network told us while running, by who told it. What cfg says comes first.
type learned struct {
	applying sync.Mutex // held from a change until it is in force; before mu
	lines    seldom     // limits the lines logged about it; guarded by applying

	mu     sync.Mutex
	routes map[learnedFrom][]Route
	dns    map[learnedFrom][]netip.Addr
}

// set replaces what one source has told, and reports whether that is news.
func (l *learned) set(from learnedFrom, routes []Route, dns []netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.routes == nil {
		l.routes, l.dns = map[learnedFrom][]Route{}, map[learnedFrom][]netip.Addr{}
	}
	if slices.Equal(l.routes[from], routes) && slices.Equal(l.dns[from], dns) {
		return false
	}
	l.routes[from], l.dns[from] = routes, dns
	return true
}

// told says whether routes that a source has told are in use.
func (l *learned) told(from learnedFrom) bool {
	l.applying.Lock()
	defer l.applying.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.routes[from]) > 0
}

// router says whether a router that a source has told of is in use.
func (l *learned) router(from learnedFrom) bool {
	l.applying.Lock()
	defer l.applying.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.routes[from], func(r Route) bool { return r.Gateway.IsValid() })
}

func (l *learned) allRoutes() []Route {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []Route
	for _, from := range precedence {
		all = append(all, l.routes[from]...)
	}
	return all
}

func (l *learned) servers() []netip.Addr {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []netip.Addr
	for _, from := range precedence {
		all = append(all, l.dns[from]...)
	}
	return all
}

// learn takes routes and resolvers that a source has told into use, in place of what it told before.
func (s *Stack) learn(from learnedFrom, routes []Route, dns []netip.Addr) error {
	s.learned.applying.Lock()
	defer s.learned.applying.Unlock()
	if !s.learned.set(from, routes, dns) {
		return nil
	}
	table, err := s.routeTable()
	if err != nil {
		return fmt.Errorf("routes from %s: %w", from, err)
	}
	s.net.SetRouteTable(table)
	s.epoch.Add(1)
	if ok, missed := s.learned.lines.allows(time.Now()); ok {
		s.log.Info("learned", "interface", s.name, "from", string(from), "routes", len(routes), "dns", len(dns), "changes_not_logged", missed)
	}
	return nil
}

// adopt takes an address the network gave us into use, once nobody has objected or ctx is done.
func (s *Stack) adopt(ctx context.Context, p netip.Prefix) error {
	if err := s.addAddress(ctx, p); err != nil {
		return err
	}
	s.changed()
	if !s.cfg.NoAnnounce {
		s.Announce()
	}
	return nil
}

// drop ends the use of an address.
func (s *Stack) drop(p netip.Prefix) {
	s.net.RemoveAddress(nicID, toAddress(p.Addr()))
	s.log.Info("address given up", "interface", s.name, "address", p.String())
	s.changed()
}

// changed makes conns forget cached routes and sources, and tells the link our addresses.
func (s *Stack) changed() {
	s.changing.Lock()
	defer s.changing.Unlock()
	addresses := s.Addrs()
	if s.linux != nil {
		if err := s.learn(fromLinux, s.linux.routes(addresses), s.linux.dns); err != nil {
			s.log.Warn("routes of the netdev", "interface", s.name, "error", err)
		}
	}
	s.source.count(addresses)
	s.epoch.Add(1)
	if s.setHosts != nil {
		s.setHosts(addresses)
	}
}
