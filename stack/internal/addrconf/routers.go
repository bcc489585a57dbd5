package addrconf

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/stack/internal/env"
)

// raEvents collects what routers advertise (RFC 4861, RFC 4862, RFC 8106), and the results of
// adding IPv6 addresses. Netstack calls it with locks held, so it only records; the stack's own
// goroutines act on it. It implements ipv6.NDPDispatcher.
//
// Netstack bounds routes, prefixes and addresses made of them to 10 each, and keeps their
// lifetimes: RFC 4862 section 5.5.3 with its rule of two hours.
type raEvents struct {
	mu       sync.Mutex
	routers  []advertisedRoute // guarded by mu, as are the others up to managed
	link     linkParameters
	prefixes []netip.Prefix
	dns      advertisedDNS
	mtu      uint32 // the last one that a router has advertised; 0: none since it was taken
	managed  ipv6.DHCPv6ConfigurationFromNDPRA
	// of addresses that AddAddress waits for; guarded by mu
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

// expect reports the result of adding a to outcome, until done is called.
func (n *raEvents) expect(a netip.Addr, outcome addressOutcome) (done func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.outcomes[env.ToAddress(a)] = outcome
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.outcomes, env.ToAddress(a))
	}
}

// advertised records the resolvers and the MTU that a router advertises.
func (n *raEvents) advertised(m ndpMessage, now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	changed := m.mtu != 0
	if changed {
		n.mtu = m.mtu
	}
	changed = n.link.take(m.link) || changed
	for _, o := range m.servers {
		changed = n.dns.advertise(m.router, o.servers, o.lasts, now) || changed
	}
	if changed {
		env.Notify(n.changed)
	}
}

// takeMTU returns the MTU that a router has advertised, 0 if none has since the last call.
func (n *raEvents) takeMTU() uint32 {
	n.mu.Lock()
	defer n.mu.Unlock()
	mtu := n.mtu
	n.mtu = 0
	return mtu
}

// linkParameters holds what routers advertise of the link (RFC 4861 section 4.2); 0: they have not
// said. A router that withdraws or says 0 leaves what was advertised before, as on Linux
// (ndisc_router_discovery of net/ipv6/ndisc.c).
type linkParameters struct {
	hopLimit              uint8
	reachable, retransmit time.Duration
}

// The least times that Linux takes: HZ/10 and HZ/100.
const leastReachable, leastRetransmit = 100 * time.Millisecond, 10 * time.Millisecond

// parseLinkParameters reads them from the body of an advertisement, of at least 12 bytes.
func parseLinkParameters(body []byte) (l linkParameters) {
	milliseconds := func(b []byte, least time.Duration) time.Duration {
		if n := binary.BigEndian.Uint32(b); n != 0 {
			return max(time.Duration(n)*time.Millisecond, least)
		}
		return 0
	}
	return linkParameters{body[0], milliseconds(body[4:], leastReachable),
		milliseconds(body[8:], leastRetransmit)}
}

// take replaces what told says something of, and reports whether that is a change.
func (l *linkParameters) take(told linkParameters) bool {
	old := *l
	if told.hopLimit != 0 {
		l.hopLimit = told.hopLimit
	}
	if told.reachable != 0 {
		l.reachable = told.reachable
	}
	if told.retransmit != 0 {
		l.retransmit = told.retransmit
	}
	return *l != old
}

// parameters returns what routers have advertised of the link.
func (n *raEvents) parameters() linkParameters {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.link
}

// applyTo makes netstack go by what routers have advertised of the link.
func (l linkParameters) applyTo(net *gstack.Stack) error {
	if l.hopLimit != 0 {
		ttl := tcpip.DefaultTTLOption(l.hopLimit)
		if err := net.SetNetworkProtocolOption(header.IPv6ProtocolNumber, &ttl); err != nil {
			return env.AsError("set the hop limit", err)
		}
	}
	c, err := net.NUDConfigurations(env.NIC, header.IPv6ProtocolNumber)
	if _, none := err.(*tcpip.ErrNotSupported); none {
		return nil // the link's neighbours need no resolution
	}
	if err != nil {
		return env.AsError("read the times of neighbour discovery", err)
	}
	if l.reachable != 0 {
		c.BaseReachableTime = l.reachable
	}
	if l.retransmit != 0 {
		c.RetransmitTimer = l.retransmit
	}
	return env.AsError("set the times of neighbour discovery",
		net.SetNUDConfigurations(env.NIC, header.IPv6ProtocolNumber, c))
}

// refused returns how many resolvers exceeded the bounds.
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
	env.Notify(n.changed)
}

// snapshot returns what is advertised now, and when the first entry expires; the zero time is
// never.
func (n *raEvents) snapshot(now time.Time) (routes []env.Route, dns []netip.Addr, until time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range n.prefixes {
		routes = append(routes, env.Route{Destination: p})
	}
	n.dns.expire(now)
	preferred := slices.SortedStableFunc(slices.Values(n.routers),
		func(a, b advertisedRoute) int { return b.rank - a.rank })
	for _, r := range preferred { // of equals the one that was known first, as on Linux
		routes = append(routes, r.Route)
	}
	return routes, n.dns.current(), n.dns.next()
}

// config returns what routers say DHCPv6 has to offer.
func (n *raEvents) config() ipv6.DHCPv6ConfigurationFromNDPRA {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.managed
}

func fromSubnet(s tcpip.Subnet) netip.Prefix {
	return netip.PrefixFrom(env.FromAddress(s.ID()), s.Prefix())
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
	preference header.NDPRoutePreference) {
	r := advertisedRoute{env.Route{Destination: fromSubnet(dest), Gateway: env.FromAddress(router)},
		preferenceRank(preference)}
	n.update(func() {
		at := slices.IndexFunc(n.routers,
			func(o advertisedRoute) bool { return o.Route == r.Route })
		if at < 0 {
			n.routers = append(n.routers, r)
		} else {
			n.routers[at] = r
		}
	})
}

// advertisedRoute describes a route that a router advertises.
type advertisedRoute struct {
	env.Route
	rank int // the highest is preferred
}

// preferenceRank orders the preferences of routes and routers (RFC 4191 section 2.1).
func preferenceRank(p header.NDPRoutePreference) int {
	switch p {
	case header.HighRoutePreference:
		return 1
	case header.LowRoutePreference:
		return -1
	}
	return 0
}

// OnOffLinkRouteInvalidated implements ipv6.NDPDispatcher.
func (n *raEvents) OnOffLinkRouteInvalidated(_ tcpip.NICID,
	dest tcpip.Subnet, router tcpip.Address) {
	r := env.Route{Destination: fromSubnet(dest), Gateway: env.FromAddress(router)}
	n.update(func() {
		n.routers = slices.DeleteFunc(slices.Clone(n.routers),
			func(o advertisedRoute) bool { return o.Route == r })
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
// HeardNDP.
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
		n.undecided = append(n.undecided, env.FromAddress(a))
		env.Notify(n.removable)
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

// followPause gives the least time between two updates: routers may advertise at any rate.
const followPause = 50 * time.Millisecond

// follow keeps routes and resolvers as routers advertise them, until the stack ends. With
// Config.Auto it starts DHCPv6 when an advertisement first says that it has addresses, or
// resolvers.
func (s *Manager) follow(n *raEvents) {
	ask, link := s.cfg.Auto, linkParameters{}
	over := s.env.Clock.NewTimer(0)
	over.Stop()
	for {
		select {
		case <-n.changed:
		case <-over.C:
		case <-s.env.Ctx.Done():
			return
		}
		if mtu := n.takeMTU(); mtu != 0 {
			s.host.UseAdvertisedMTU(mtu)
		}
		if now := n.parameters(); now != link {
			link = now
			if err := link.applyTo(s.env.Net); err != nil {
				s.env.Log.Warn("what a router advertises of the link", "interface", s.env.Name,
					"error", err)
			}
			s.host.Changed() // headers of datagrams are kept with the hop limit
		}
		routes, dns, until := n.snapshot(s.env.Clock.Now())
		if !until.IsZero() {
			over.Reset(s.env.Clock.Until(until))
		}
		if err := s.Configure(env.FromRA, routes, dns); err != nil {
			s.env.Log.Warn("what a router advertises", "interface", s.env.Name, "error", err)
		}
		s.AddressesChanged()
		switch config := n.config(); {
		case ask && config == ipv6.DHCPv6ManagedAddress:
			ask = false
			s.acquireLater(s.dhcp.AcquireV6)
		case ask && config == ipv6.DHCPv6OtherConfigurations:
			ask = false
			s.env.Go(s.dhcp.RefreshInfo)
		}
		if s.env.Clock.Sleep(s.env.Ctx, followPause) != nil {
			return
		}
	}
}

// HeardNDP compares the sender of pkt, which came by nic, with our addresses if it is a message of
// neighbour discovery, and notes what a router advertises. Such messages are never fragmented (RFC
// 6980).
func (s *Manager) HeardNDP(pkt *gstack.PacketBuffer, nic gstack.NetworkInterface) {
	h, ok := pkt.Data().PullUp(header.IPv6MinimumSize + header.ICMPv6MinimumSize)
	if !ok || !isNDP(header.ICMPv6(h[header.IPv6MinimumSize:])) {
		return
	}
	ip := header.IPv6(pkt.Data().AsRange().ToSlice())
	end := header.IPv6MinimumSize + int(ip.PayloadLength())
	if end > len(ip) {
		return
	}
	m, ok := parseNDP(ip.SourceAddress(), ip.DestinationAddress(),
		header.ICMPv6(ip[header.IPv6MinimumSize:end]))
	if !ok {
		return
	}
	if link := pkt.LinkHeader().Slice(); len(m.mac) == 0 &&
		len(link) >= header.EthernetMinimumSize {
		m.mac = header.Ethernet(link).SourceAddress()
	}
	s.claims.checkNDP(m, nic)
	if s.cfg.SLAAC && (len(m.servers) > 0 || m.mtu != 0 || m.link != linkParameters{}) {
		s.raEvents.advertised(m, s.env.Clock.Now())
	}
}

// isNDP says whether it is a message that parseNDP knows.
func isNDP(m header.ICMPv6) bool {
	switch m.Type() {
	case header.ICMPv6RouterAdvert, header.ICMPv6NeighborSolicit, header.ICMPv6NeighborAdvert:
		return true
	}
	return false
}

// checkNDP compares the sender with our addresses.
func (c *claims) checkNDP(m ndpMessage, nic gstack.NetworkInterface) {
	switch {
	case len(c.hardware()) == 0 || len(m.mac) == 0:
	case m.mac == c.hardware():
		c.twin()
	case m.holds != tcpip.Address{} && nic.CheckLocalAddress(header.IPv6ProtocolNumber, m.holds):
		c.conflict(m.holds, m.mac)
	}
}

// ndpMessage holds what matters of a message of neighbour discovery.
type ndpMessage struct {
	mac     tcpip.LinkAddress // the sender's, as its option says; empty: it has none
	holds   tcpip.Address     // what the sender says is its address; the zero value: nothing
	router  netip.Addr        // who advertises servers
	servers []advertisedServers
	mtu     uint32 // that a router advertises; 0: none
	link    linkParameters
}

// advertisedServers is one option for resolvers of a router's advertisement (RFC 8106 section 5.1).
type advertisedServers struct {
	servers []netip.Addr
	lasts   time.Duration // from when it comes; header.NDPInfiniteLifetime: for ever
}

// parseNDP parses a message that came with a hop limit of 255. What RFC 4861 sections 6.1.2, 7.1.1
// and 7.1.2 call invalid is not ok, nor are messages of other types.
func parseNDP(from, to tcpip.Address, icmp header.ICMPv6) (m ndpMessage, ok bool) {
	if len(icmp) < header.ICMPv6HeaderSize || icmp.Code() != 0 ||
		icmp.Checksum() != header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: icmp,
			Src: from, Dst: to}) {
		return m, false
	}
	body := icmp.MessageBody()
	switch icmp.Type() {
	case header.ICMPv6NeighborAdvert:
		if len(body) >= header.NDPNAMinimumSize {
			na := header.NDPNeighborAdvert(body)
			m.holds = na.TargetAddress()
			return m, m.options(na.Options())
		}
	case header.ICMPv6NeighborSolicit:
		if len(body) >= header.NDPNSMinimumSize {
			if from != header.IPv6Any {
				m.holds = from
			}
			return m, m.options(header.NDPNeighborSolicit(body).Options())
		}
	case header.ICMPv6RouterAdvert:
		if len(body) >= header.NDPRAMinimumSize && header.IsV6LinkLocalUnicastAddress(from) {
			m.holds, m.router = from, env.FromAddress(from)
			options := header.NDPRouterAdvert(body).Options()
			m.mtu, m.link = advertisedMTU(options), parseLinkParameters(body)
			return m, m.options(options)
		}
	}
	return m, false
}

// ParseSolicitation reads a packet with a neighbour solicitation that came with a hop limit of 255:
// who asks, for which address, and its hardware address. Not ok: it is invalid, or does not say so.
func ParseSolicitation(packet header.IPv6) (from, target tcpip.Address, mac tcpip.LinkAddress,
	ok bool) {
	end := header.IPv6MinimumSize + int(packet.PayloadLength())
	if end > len(packet) {
		return from, target, "", false
	}
	from = packet.SourceAddress()
	icmp := header.ICMPv6(packet[header.IPv6MinimumSize:end])
	m, ok := parseNDP(from, packet.DestinationAddress(), icmp)
	if !ok || icmp.Type() != header.ICMPv6NeighborSolicit || m.holds != from || len(m.mac) == 0 {
		return from, target, "", false
	}
	return from, header.NDPNeighborSolicit(icmp.MessageBody()).TargetAddress(), m.mac, true
}

// options reads the options of a message, and reports whether they are well-formed.
func (m *ndpMessage) options(o header.NDPOptions) bool {
	it, err := o.Iter(true)
	if err != nil {
		return false
	}
	for {
		opt, done, err := it.Next()
		switch {
		case err != nil:
			return false
		case done:
			return true
		}
		switch opt := opt.(type) {
		case header.NDPSourceLinkLayerAddressOption:
			m.mac = opt.EthernetAddress()
		case header.NDPTargetLinkLayerAddressOption:
			m.mac = opt.EthernetAddress()
		case header.NDPRecursiveDNSServer:
			m.resolvers(opt)
		}
	}
}

// advertisedMTU returns what the last MTU option says (RFC 4861 section 4.6.4), 0 if there is none.
// netstack's iterator passes them over.
func advertisedMTU(options []byte) (mtu uint32) {
	const mtuOption, unit, size = 5, 8, 8
	for len(options) >= unit {
		length := int(options[1]) * unit
		if length == 0 || length > len(options) {
			return mtu
		}
		if options[0] == mtuOption && length == size {
			mtu = binary.BigEndian.Uint32(options[4:])
		}
		options = options[length:]
	}
	return mtu
}

func (m *ndpMessage) resolvers(opt header.NDPRecursiveDNSServer) {
	given, err := opt.Addresses()
	if err != nil {
		return
	}
	told := advertisedServers{lasts: opt.Lifetime()}
	for _, a := range given {
		told.servers = append(told.servers, env.FromAddress(a))
	}
	m.servers = append(m.servers, told)
}

// Bounds of what is remembered of advertised resolvers (RFC 8106 section 5.3.1 leaves them to the
// host; three is the least).
const (
	maxRouters          = 16
	maxServersPerRouter = 8
	maxServersUsed      = 8 // of all routers; each that is dead makes a lookup slower
)

// advertisedDNS are the resolvers that routers advertise, each until its lifetime is over. It is
// not safe for concurrent use.
type advertisedDNS struct {
	routers []routerDNS // by when they were first heard
	refused uint64      // resolvers beyond the bounds
}

// routerDNS holds the resolvers of one router.
type routerDNS struct {
	router  netip.Addr
	servers []serverUntil
}

// serverUntil describes a resolver and when it expires; the zero time is never.
type serverUntil struct {
	addr  netip.Addr
	until time.Time
}

// advertise takes one option of a router's advertisement, and reports whether the set has changed
// or an entry expires sooner.
func (d *advertisedDNS) advertise(router netip.Addr, servers []netip.Addr, lasts time.Duration,
	now time.Time) (changed bool) {
	changed = d.expire(now)
	if lasts == 0 {
		return d.withdraw(router, servers) || changed
	}
	var until time.Time
	if lasts < header.NDPInfiniteLifetime {
		until = now.Add(lasts)
	}
	for _, a := range servers {
		changed = d.add(router, serverUntil{a, until}) || changed
	}
	return changed
}

// add puts a resolver in, or prolongs or shortens its time.
func (d *advertisedDNS) add(router netip.Addr, s serverUntil) (changed bool) {
	r := d.of(router)
	if r == nil {
		d.refused++
		return false
	}
	at := slices.IndexFunc(r.servers, func(o serverUntil) bool { return o.addr == s.addr })
	switch {
	case at >= 0:
		old := r.servers[at].until
		r.servers[at] = s
		return !s.until.IsZero() && (old.IsZero() || s.until.Before(old))
	case len(r.servers) == maxServersPerRouter:
		d.refused++
		return false
	}
	r.servers = append(r.servers, s)
	return true
}

// of finds what a router has advertised, or makes room for it; nil if there is none.
func (d *advertisedDNS) of(router netip.Addr) *routerDNS {
	at := slices.IndexFunc(d.routers, func(r routerDNS) bool { return r.router == router })
	if at < 0 && len(d.routers) == maxRouters {
		return nil
	}
	if at < 0 {
		at = len(d.routers)
		d.routers = append(d.routers, routerDNS{router: router})
	}
	return &d.routers[at]
}

// withdraw forgets resolvers of a router.
func (d *advertisedDNS) withdraw(router netip.Addr, servers []netip.Addr) bool {
	return d.remove(func(r netip.Addr, s serverUntil) bool {
		return r == router && slices.Contains(servers, s.addr)
	})
}

// expire removes the resolvers whose lifetime is over.
func (d *advertisedDNS) expire(now time.Time) bool {
	return d.remove(func(_ netip.Addr, s serverUntil) bool {
		return !s.until.IsZero() && !s.until.After(now)
	})
}

// remove forgets resolvers, and routers without any, and reports whether there were some.
func (d *advertisedDNS) remove(which func(router netip.Addr, s serverUntil) bool) (some bool) {
	for i := range d.routers {
		r := &d.routers[i]
		n := len(r.servers)
		r.servers = slices.DeleteFunc(r.servers,
			func(s serverUntil) bool { return which(r.router, s) })
		some = some || len(r.servers) < n
	}
	d.routers = slices.DeleteFunc(d.routers, func(r routerDNS) bool { return len(r.servers) == 0 })
	return some
}

// current returns the resolvers to use: those of the router that has been there longest first.
func (d *advertisedDNS) current() (all []netip.Addr) {
	for _, r := range d.routers {
		for _, s := range r.servers {
			if len(all) < maxServersUsed && !slices.Contains(all, s.addr) {
				all = append(all, s.addr)
			}
		}
	}
	return all
}

// next is when the first of them is over; the zero time is never.
func (d *advertisedDNS) next() (first time.Time) {
	for _, r := range d.routers {
		for _, s := range r.servers {
			if !s.until.IsZero() && (first.IsZero() || s.until.Before(first)) {
				first = s.until
			}
		}
	}
	return first
}
