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

// raEvents collects what routers advertise (RFC 4861, RFC 4862, RFC 8106), and the results of
// adding IPv6 addresses. Netstack calls it with locks held, so it only records; the stack's own
// goroutines act on it. It implements ipv6.NDPDispatcher.
//
// Netstack bounds routes, prefixes and addresses made of them to 10 each, and keeps their
// lifetimes: RFC 4862 section 5.5.3 with its rule of two hours.
type raEvents struct {
	mu       sync.Mutex
	routers  []Route // guarded by mu, as are the others up to managed
	prefixes []netip.Prefix
	dns      advertisedDNS
	managed  ipv6.DHCPv6ConfigurationFromNDPRA
	// of addresses that addAddress waits for; guarded by mu
	outcomes map[tcpip.Address]addressOutcome
	changed  chan struct{} // capacity 1

	undecided []netip.Addr  // addresses not probed for and not waited for; guarded by mu
	removable chan struct{} // capacity 1: there are some
}

func newRAEvents() *raEvents {
	return &raEvents{
		outcomes: map[tcpip.Address]addressOutcome{}, changed: make(chan struct{}, 1),
		removable: make(chan struct{}, 1),
	}
}

// expect has the result of adding a reported to outcome, until done is called.
func (n *raEvents) expect(a netip.Addr, outcome addressOutcome) (done func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.outcomes[toAddress(a)] = outcome
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.outcomes, toAddress(a))
	}
}

// advertised records the resolvers that a router advertises.
func (n *raEvents) advertised(m ndpMessage, now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	changed := false
	for _, o := range m.servers {
		changed = n.dns.advertise(m.router, o.servers, o.lasts, now) || changed
	}
	if changed {
		wake(n.changed)
	}
}

// refused is how many resolvers exceeded the bounds.
func (n *raEvents) refused() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dns.refused
}

// update makes a change and wakes the stack's goroutine.
func (n *raEvents) update(change func()) {
	n.mu.Lock()
	change()
	n.mu.Unlock()
	wake(n.changed)
}

// wake puts a token into a channel of capacity one.
func wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// snapshot is what is advertised now, and when the first entry expires; the zero time is never.
func (n *raEvents) snapshot(now time.Time) (routes []Route, dns []netip.Addr, until time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range n.prefixes {
		routes = append(routes, Route{Destination: p})
	}
	n.dns.expire(now)
	return append(routes, n.routers...), n.dns.current(), n.dns.next()
}

// config is what routers say DHCPv6 has to offer.
func (n *raEvents) config() ipv6.DHCPv6ConfigurationFromNDPRA {
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
func (n *raEvents) OnOffLinkRouteUpdated(_ tcpip.NICID, dest tcpip.Subnet, router tcpip.Address,
	_ header.NDPRoutePreference) {
	n.update(func() {
		n.routers = add(n.routers,
			Route{Destination: fromSubnet(dest), Gateway: fromAddress(router)})
	})
}

// OnOffLinkRouteInvalidated implements ipv6.NDPDispatcher.
func (n *raEvents) OnOffLinkRouteInvalidated(_ tcpip.NICID,
	dest tcpip.Subnet, router tcpip.Address) {
	n.update(func() {
		n.routers = remove(n.routers,
			Route{Destination: fromSubnet(dest), Gateway: fromAddress(router)})
	})
}

// OnOnLinkPrefixDiscovered implements ipv6.NDPDispatcher.
func (n *raEvents) OnOnLinkPrefixDiscovered(_ tcpip.NICID, p tcpip.Subnet) {
	n.update(func() { n.prefixes = add(n.prefixes, fromSubnet(p)) })
}

// OnOnLinkPrefixInvalidated implements ipv6.NDPDispatcher.
func (n *raEvents) OnOnLinkPrefixInvalidated(_ tcpip.NICID, p tcpip.Subnet) {
	n.update(func() { n.prefixes = remove(n.prefixes, fromSubnet(p)) })
}

// OnRecursiveDNSServerOption implements ipv6.NDPDispatcher. It does not say which router it is; see
// ndpWatch.
func (n *raEvents) OnRecursiveDNSServerOption(tcpip.NICID, []tcpip.Address, time.Duration) {}

// OnDHCPv6Configuration implements ipv6.NDPDispatcher.
func (n *raEvents) OnDHCPv6Configuration(_ tcpip.NICID, c ipv6.DHCPv6ConfigurationFromNDPRA) {
	n.update(func() { n.managed = c })
}

// OnAutoGenAddress implements ipv6.NDPDispatcher: netstack makes an address of a prefix.
func (n *raEvents) OnAutoGenAddress(tcpip.NICID, tcpip.AddressWithPrefix) gstack.AddressDispatcher {
	return addressEvents{n}
}

// OnAutoGenAddressDeprecated implements ipv6.NDPDispatcher.
func (n *raEvents) OnAutoGenAddressDeprecated(tcpip.NICID, tcpip.AddressWithPrefix) {
	n.update(func() {})
}

// OnAutoGenAddressInvalidated implements ipv6.NDPDispatcher.
func (n *raEvents) OnAutoGenAddressInvalidated(tcpip.NICID, tcpip.AddressWithPrefix) {
	n.update(func() {})
}

// OnDuplicateAddressDetectionResult implements ipv6.NDPDispatcher. An address that could not be
// probed for stays tentative, and netstack panics at the next message about it: it has to be
// removed.
func (n *raEvents) OnDuplicateAddressDetectionResult(_ tcpip.NICID,
	a tcpip.Address, r gstack.DADResult) {
	n.mu.Lock()
	defer n.mu.Unlock()
	outcome, awaited := n.outcomes[a]
	if err := dadError(r); awaited && err != nil {
		outcome.report(err)
	}
	if _, failed := r.(*gstack.DADError); failed && !awaited {
		n.undecided = append(n.undecided, fromAddress(a))
		wake(n.removable)
	}
}

// takeUndecided returns the addresses to be removed, and forgets them.
func (n *raEvents) takeUndecided() []netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := n.undecided
	n.undecided = nil
	return all
}

// OnDNSSearchListOption implements ipv6.NDPDispatcher. Search domains are a matter of the
// resolver's configuration.
func (n *raEvents) OnDNSSearchListOption(tcpip.NICID, []string, time.Duration) {}

// addressEvents reports changes of an address made of a prefix. It implements
// gstack.AddressDispatcher.
type addressEvents struct{ events *raEvents }

// OnChanged implements gstack.AddressDispatcher.
func (a addressEvents) OnChanged(gstack.AddressLifetimes, gstack.AddressAssignmentState) {
	a.events.update(func() {})
}

// OnRemoved implements gstack.AddressDispatcher.
func (a addressEvents) OnRemoved(gstack.AddressRemovalReason) { a.events.update(func() {}) }

// followPause is the least time between two updates: routers may advertise at any rate.
const followPause = 50 * time.Millisecond

// follow keeps routes and resolvers as routers advertise them, until the stack ends. With
// Config.Auto it starts DHCPv6 when an advertisement first says that it has addresses, or
// resolvers.
func (s *Stack) follow(n *raEvents) {
	ask := s.cfg.Auto
	over := s.clock.NewTimer(0)
	over.Stop()
	for {
		select {
		case <-n.changed:
		case <-over.C:
		case <-s.ctx.Done():
			return
		}
		routes, dns, until := n.snapshot(s.clock.Now())
		if !until.IsZero() {
			over.Reset(s.clock.Until(until))
		}
		if err := s.applyAutoconf(fromRA, routes, dns); err != nil {
			s.log.Warn("what a router advertises", "interface", s.name, "error", err)
		}
		s.addressesChanged()
		switch config := n.config(); {
		case ask && config == ipv6.DHCPv6ManagedAddress:
			ask = false
			s.acquireLeaseLater(newDHCP6)
		case ask && config == ipv6.DHCPv6OtherConfigurations:
			ask = false
			s.background.Go(s.refreshDHCP6Info)
		}
		if !s.pause(s.ctx, followPause) {
			return
		}
	}
}
