package stack

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
)

// routerNews collects what routers advertise (RFC 4861, RFC 4862, RFC 8106). Netstack calls it with locks held, so it
// only takes note; the stack's own goroutine acts on it. It implements ipv6.NDPDispatcher.
type routerNews struct {
	mu       sync.Mutex
	routers  []Route // guarded by mu
	prefixes []netip.Prefix
	dns      []netip.Addr
	managed  ipv6.DHCPv6ConfigurationFromNDPRA
	changed  chan struct{} // capacity 1
}

func newRouterNews() *routerNews { return &routerNews{changed: make(chan struct{}, 1)} }

// note changes the picture and wakes the stack's goroutine.
func (n *routerNews) note(change func()) {
	n.mu.Lock()
	change()
	n.mu.Unlock()
	select {
	case n.changed <- struct{}{}:
	default:
	}
}

// picture is what is known now.
func (n *routerNews) picture() (routes []Route, dns []netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range n.prefixes {
		routes = append(routes, Route{Destination: p})
	}
	return append(routes, n.routers...), slices.Clone(n.dns)
}

// config is what addresses routers say DHCPv6 has.
func (n *routerNews) config() ipv6.DHCPv6ConfigurationFromNDPRA {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.managed
}

func fromSubnet(s tcpip.Subnet) netip.Prefix {
	return netip.PrefixFrom(fromAddress(s.ID()), s.Prefix())
}

func add[T comparable](list []T, v T) []T {
	if slices.Contains(list, v) {
		return list
	}
	return append(list, v)
}

func remove[T comparable](list []T, v T) []T {
	return slices.DeleteFunc(slices.Clone(list), func(o T) bool { return o == v })
}

// OnOffLinkRouteUpdated implements ipv6.NDPDispatcher.
func (n *routerNews) OnOffLinkRouteUpdated(_ tcpip.NICID, dest tcpip.Subnet, router tcpip.Address, _ header.NDPRoutePreference) {
	n.note(func() {
		n.routers = add(n.routers, Route{Destination: fromSubnet(dest), Gateway: fromAddress(router)})
	})
}

// OnOffLinkRouteInvalidated implements ipv6.NDPDispatcher.
func (n *routerNews) OnOffLinkRouteInvalidated(_ tcpip.NICID, dest tcpip.Subnet, router tcpip.Address) {
	n.note(func() {
		n.routers = remove(n.routers, Route{Destination: fromSubnet(dest), Gateway: fromAddress(router)})
	})
}

// OnOnLinkPrefixDiscovered implements ipv6.NDPDispatcher.
func (n *routerNews) OnOnLinkPrefixDiscovered(_ tcpip.NICID, p tcpip.Subnet) {
	n.note(func() { n.prefixes = add(n.prefixes, fromSubnet(p)) })
}

// OnOnLinkPrefixInvalidated implements ipv6.NDPDispatcher.
func (n *routerNews) OnOnLinkPrefixInvalidated(_ tcpip.NICID, p tcpip.Subnet) {
	n.note(func() { n.prefixes = remove(n.prefixes, fromSubnet(p)) })
}

// OnRecursiveDNSServerOption implements ipv6.NDPDispatcher.
func (n *routerNews) OnRecursiveDNSServerOption(_ tcpip.NICID, servers []tcpip.Address, lifetime time.Duration) {
	n.note(func() {
		for _, a := range servers {
			if lifetime == 0 {
				n.dns = remove(n.dns, fromAddress(a))
			} else {
				n.dns = add(n.dns, fromAddress(a))
			}
		}
	})
}

// OnDHCPv6Configuration implements ipv6.NDPDispatcher.
func (n *routerNews) OnDHCPv6Configuration(_ tcpip.NICID, c ipv6.DHCPv6ConfigurationFromNDPRA) {
	n.note(func() { n.managed = c })
}

// OnAutoGenAddress implements ipv6.NDPDispatcher: it is told of an address being made of a prefix.
func (n *routerNews) OnAutoGenAddress(tcpip.NICID, tcpip.AddressWithPrefix) gstack.AddressDispatcher {
	return newsOfAddress{n}
}

// OnAutoGenAddressDeprecated implements ipv6.NDPDispatcher.
func (n *routerNews) OnAutoGenAddressDeprecated(tcpip.NICID, tcpip.AddressWithPrefix) {
	n.note(func() {})
}

// OnAutoGenAddressInvalidated implements ipv6.NDPDispatcher.
func (n *routerNews) OnAutoGenAddressInvalidated(tcpip.NICID, tcpip.AddressWithPrefix) {
	n.note(func() {})
}

// OnDuplicateAddressDetectionResult implements ipv6.NDPDispatcher; addresses report theirs themselves.
func (n *routerNews) OnDuplicateAddressDetectionResult(tcpip.NICID, tcpip.Address, gstack.DADResult) {
}

// OnDNSSearchListOption implements ipv6.NDPDispatcher. Search domains are a matter of the resolver's configuration.
func (n *routerNews) OnDNSSearchListOption(tcpip.NICID, []string, time.Duration) {}

// newsOfAddress tells of an address made of a prefix. It implements gstack.AddressDispatcher.
type newsOfAddress struct{ news *routerNews }

// OnChanged implements gstack.AddressDispatcher.
func (a newsOfAddress) OnChanged(gstack.AddressLifetimes, gstack.AddressAssignmentState) {
	a.news.note(func() {})
}

// OnRemoved implements gstack.AddressDispatcher.
func (a newsOfAddress) OnRemoved(gstack.AddressRemovalReason) { a.news.note(func() {}) }

// follow keeps routes and resolvers as routers advertise them, until the stack ends. The first time one says that DHCPv6 has
// addresses, or resolvers, it is asked, if cfg leaves that to routers.
func (s *Stack) follow(n *routerNews) {
	ask := s.cfg.Auto
	for {
		select {
		case <-n.changed:
		case <-s.ctx.Done():
			return
		}
		routes, dns := n.picture()
		if err := s.learn(fromRA, routes, dns); err != nil {
			s.log.Warn("what a router advertises", "interface", s.name, "error", err)
		}
		s.changed()
		switch config := n.config(); {
		case ask && config == ipv6.DHCPv6ManagedAddress:
			ask = false
			s.rentLater(newDHCP6)
		case ask && config == ipv6.DHCPv6OtherConfigurations:
			ask = false
			s.background.Go(s.beInformed)
		}
	}
}
