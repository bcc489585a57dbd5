package stack

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"github.com/rdma-netstack/rdma-netstack/link/rdma"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/env"
)

// maxRoutes bounds the routes one socket keeps. A server with more peers than that looks some of
// them up again, which costs it a microsecond per datagram.
const maxRoutes = 4096

// routeCache keeps the route to each peer address: netstack's route lookup, source address choice
// and neighbour lookup take three times as long as the rest of sending a datagram.
type routeCache struct {
	mu     sync.RWMutex
	routes map[routeKey]*peerPath // guarded by mu
	epoch  uint64                 // of the stack when routes were found; guarded by mu
	closed bool                   // guarded by mu
}

// peerPath describes a route and the header template of datagrams that take it.
type peerPath struct {
	route    *gstack.Route
	template atomic.Pointer[headerTemplate]
}

type routeKey struct {
	local, remote tcpip.Address
}

// use calls send with the route for key. Routes are released only while nobody is in use.
func (r *routeCache) use(s *Stack, key routeKey, send func(*peerPath) tcpip.Error) tcpip.Error {
	for range 2 {
		if err, ok := r.try(s, key, send); ok {
			return err
		}
		if err := r.find(s, key); err != nil {
			return err
		}
	}
	// A stack whose addresses change between find and try, or whose sockets have more peers than
	// maxRoutes: go without the cache.
	route, err := s.findRoute(key)
	if err != nil {
		return err
	}
	defer route.Release()
	return send(&peerPath{route: route})
}

// try sends if there is a cached route that still works.
func (r *routeCache) try(s *Stack, key routeKey,
	send func(*peerPath) tcpip.Error) (tcpip.Error, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	p := r.routes[key]
	if p == nil || r.epoch != s.epoch.Load() {
		return nil, false
	}
	err := send(p)
	_, stale := err.(*tcpip.ErrInvalidEndpointState) // an address or the interface went away
	return err, !stale
}

// find looks the route for key up and remembers it.
func (r *routeCache) find(s *Stack, key routeKey) tcpip.Error {
	epoch := s.epoch.Load()
	route, err := s.findRoute(key)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		route.Release()
		return nil
	}
	if r.epoch != epoch || r.routes == nil {
		r.release()
		r.routes, r.epoch = make(map[routeKey]*peerPath), epoch
	}
	r.evict(key)
	r.routes[key] = &peerPath{route: route}
	return nil
}

// evict makes room for key. mu is held.
func (r *routeCache) evict(key routeKey) {
	if old := r.routes[key]; old != nil {
		old.route.Release()
		delete(r.routes, key)
	}
	if len(r.routes) < maxRoutes {
		return
	}
	for k, p := range r.routes { // any one: map order is random
		p.route.Release()
		delete(r.routes, k)
		return
	}
}

// release gives all routes back. mu is held.
func (r *routeCache) release() {
	for _, p := range r.routes {
		p.route.Release()
	}
	r.routes = nil
}

// drop ends the cache's use.
func (r *routeCache) drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.release()
}

// knows reports whether datagrams have been sent to a host.
func (r *routeCache) knows(to tcpip.Address) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for key := range r.routes {
		if key.remote == to {
			return true
		}
	}
	return false
}

// forgetTemplates drops all templates: the next datagrams make new ones.
func (r *routeCache) forgetTemplates() {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, p := range r.routes {
		p.template.Store(nil)
	}
}

func (s *Stack) findRoute(key routeKey) (*gstack.Route, tcpip.Error) {
	var nic tcpip.NICID
	if env.OnLink(key.remote) {
		nic = nicID
	}
	protocol := ipv6Protocol
	if key.remote.Len() == 4 {
		protocol = ipv4Protocol
	}
	return s.net.FindRoute(nic, key.local, key.remote, protocol, false /* multicastLoop */)
}

// Between two hosts only ports, lengths and checksums differ from one datagram to the next, and the
// NIC computes the checksums. So a path keeps a template of the headers, and most datagrams go to
// the link directly. One per templateLifetime goes through netstack, which keeps the neighbour
// entry alive.

// templateLifetime says how long a template is used before a datagram goes through netstack again.
const templateLifetime = 100 * time.Millisecond

// maxHeaders gives the longest headers: Ethernet, IPv6, UDP.
const maxHeaders = header.EthernetMinimumSize + header.IPv6MinimumSize + header.UDPMinimumSize

// headerTemplate has the headers of a path's datagrams, with ports, lengths and checksums zero. It
// is not changed once built.
type headerTemplate struct {
	bytes [maxHeaders]byte
	size  int       // bytes used
	ip    int       // where the IP header starts
	v6    bool      // it is an IPv6 header
	limit int       // most bytes of a datagram, its header included
	mtus  uint64    // the version of pathMTUs that limit is of
	moves uint64    // changes of neighbours' hardware addresses before it was built
	built time.Time // it is used for templateLifetime
}

// buildTemplate makes a template from what netstack knows of the route, or returns nil if the
// neighbour is not resolved, the route does not leave through the link, or what takes it may be
// fragmented on the way and so needs an identification.
func (c *UDPConn) buildTemplate(r *gstack.Route) (h *headerTemplate) {
	moves := c.stack.neighbours.Moves()
	version, room := c.stack.icmp.mtus.version.Load(), c.datagramRoom(r)
	if r.OutgoingNIC() != nicID || r.Loop() != gstack.PacketOut || c.mayBeFragmented(r, room) ||
		!c.stack.neighbours.Ready(r) ||
		r.ResolvedFields(nil) != nil {
		return nil
	}
	// Resolved a moment ago, so this calls back before it returns; if it is not any more, h comes
	// too late and is lost.
	got := make(chan *headerTemplate, 1)
	_ = r.ResolvedFields(func(f gstack.ResolvedFieldsResult) {
		if f.Err == nil {
			got <- newHeaderTemplate(r, &f.RouteInfo, c.stack.clock.Now())
		}
	})
	select {
	case h = <-got:
	default:
	}
	if h != nil {
		h.limit, h.mtus, h.moves = room.limit, version, moves
	}
	return h
}

func newHeaderTemplate(r *gstack.Route, info *gstack.RouteInfo,
	now time.Time) *headerTemplate {
	if len(info.LocalLinkAddress) != header.EthernetAddressSize ||
		len(info.RemoteLinkAddress) != header.EthernetAddressSize {
		return nil
	}
	h := &headerTemplate{ip: header.EthernetMinimumSize, v6: info.NetProto == ipv6Protocol,
		built: now}
	header.Ethernet(h.bytes[:]).Encode(&header.EthernetFields{
		SrcAddr: info.LocalLinkAddress, DstAddr: info.RemoteLinkAddress, Type: info.NetProto,
	})
	ip := h.bytes[h.ip:]
	if h.v6 {
		h.size = h.ip + header.IPv6MinimumSize
		header.IPv6(ip).Encode(&header.IPv6Fields{
			TransportProtocol: udp.ProtocolNumber, HopLimit: r.DefaultTTL(),
			SrcAddr: r.LocalAddress(), DstAddr: r.RemoteAddress(),
		})
	} else {
		h.size = h.ip + header.IPv4MinimumSize
		header.IPv4(ip).Encode(&header.IPv4Fields{
			Flags: header.IPv4FlagDontFragment, TTL: r.DefaultTTL(),
			Protocol: uint8(udp.ProtocolNumber),
			SrcAddr:  r.LocalAddress(), DstAddr: r.RemoteAddress(),
		})
	}
	h.size += header.UDPMinimumSize
	return h
}

// complete writes the headers of a datagram of n bytes, its header included, to out and returns
// them.
func (h *headerTemplate) complete(out *[maxHeaders]byte, from, to uint16, n int) []byte {
	*out = h.bytes
	h.setLengths(out[:h.size], from, to, n)
	return out[:h.size]
}

// completeIn writes the headers of a datagram of n bytes, its header included, to the beginning of
// frame, which has room for them.
func (h *headerTemplate) completeIn(frame []byte, from, to uint16, n int) {
	const size4 = header.EthernetMinimumSize + header.IPv4MinimumSize + header.UDPMinimumSize
	if h.v6 {
		headers := h.bytes
		*(*[maxHeaders]byte)(frame) = headers
	} else {
		headers := *(*[size4]byte)(h.bytes[:]) // apart from frame, which spares a call of memmove
		*(*[size4]byte)(frame) = headers
	}
	h.setLengths(frame, from, to, n)
}

// setLengths writes ports and lengths of such a datagram into its headers.
func (h *headerTemplate) setLengths(out []byte, from, to uint16, n int) {
	const v4, v6 = header.IPv4MinimumSize, header.IPv6MinimumSize
	udp := uint64(from)<<48 | uint64(to)<<32 | uint64(n)<<16
	if h.v6 {
		binary.BigEndian.PutUint16(out[header.EthernetMinimumSize+4:], uint16(n))
		binary.BigEndian.PutUint64(out[header.EthernetMinimumSize+v6:], udp)
	} else {
		binary.BigEndian.PutUint16(out[header.EthernetMinimumSize+2:], uint16(v4+n))
		binary.BigEndian.PutUint64(out[header.EthernetMinimumSize+v4:], udp)
	}
}

// headerPool is memory for headers on their way to the link, *[maxHeaders]byte.
var headerPool = sync.Pool{New: func() any { return new([maxHeaders]byte) }}

// datagramLink is a link that takes datagrams in this form, [link/rdma.Endpoint].
type datagramLink interface {
	WriteDatagram(headers, payload []byte) tcpip.Error
	WriteDatagrams([]rdma.Datagram) (int, tcpip.Error)
	WriteReplies(queue int, ds []rdma.Datagram) (int, tcpip.Error)
}

// sendDirect sends b with the path's template; false if there is none, or the link cannot send it.
func (c *UDPConn) sendDirect(p *peerPath, b []byte, to uint16, o *sendOptions) (tcpip.Error, bool) {
	h := p.freshTemplate(header.UDPMinimumSize+len(b), c.stack.moment())
	if h == nil {
		return nil, false
	}
	out := headerPool.Get().(*[maxHeaders]byte)
	headers := c.fillHeaders(h, out, to, header.UDPMinimumSize+len(b), o)
	err := c.stack.datagrams.WriteDatagram(headers, b)
	headerPool.Put(out)
	if _, cannot := err.(*tcpip.ErrNotSupported); cannot {
		return nil, false
	}
	c.countSent(err)
	return err, true
}

// moment holds what a template's age is told by.
type moment struct {
	time.Time
	mtus  uint64 // version of pathMTUs
	moves uint64 // of neighbours to other hardware addresses
}

func (s *Stack) moment() moment {
	return moment{s.clock.Now(), s.icmp.mtus.version.Load(), s.neighbours.Moves()}
}

// freshTemplate returns the template for a datagram of n bytes, its header included, or nil if the
// datagram has to go through netstack.
func (p *peerPath) freshTemplate(n int, now moment) *headerTemplate {
	h := p.template.Load()
	if h == nil || n > h.limit || h.mtus != now.mtus || h.moves != now.moves ||
		now.Sub(h.built) > templateLifetime {
		return nil
	}
	return h
}

// fillHeaders writes the headers of a datagram of n bytes, its header included, to port to.
func (c *UDPConn) fillHeaders(h *headerTemplate, out *[maxHeaders]byte, to uint16, n int,
	o *sendOptions) []byte {
	headers := h.complete(out, c.local.Port, to, n)
	h.mark(headers, o)
	return headers
}

// hasSentTo reports whether the socket may have sent the datagram that m is about.
func (c *UDPConn) hasSentTo(m *icmpMessage) bool {
	if c.raddr != nil {
		return true // m is about its peer
	}
	if c.routes.knows(m.remote) {
		return true
	}
	if !c.shared() {
		return false
	}
	for _, other := range c.stack.conns.sharing(c) {
		if other.routes.knows(m.remote) {
			return true
		}
	}
	return false
}

// mark gives headers the class and time to live that o has.
func (h *headerTemplate) mark(headers []byte, o *sendOptions) {
	if o.class != 0 {
		putClass(headers[h.ip:], h.v6, o.class)
	}
	if o.ttl >= 0 {
		putTTL(headers[h.ip:], h.v6, uint8(o.ttl))
	}
}

// A datagram is answered from the address it was sent to. Usually netstack's own choice of source
// is that address; where it need not be, a wildcard socket remembers what each peer has sent to.

// maxReplySources bounds that memory, per socket. A peer that is forgotten between its query and
// our answer gets the answer from the address netstack chooses, which is what Linux does for
// everybody.
const maxReplySources = 4096

// replySources has the local address that each peer has sent to.
type replySources struct {
	mu    sync.RWMutex
	peers map[peerKey]tcpip.Address // guarded by mu; nil until there is an entry
}

type peerKey struct {
	addr tcpip.Address
	port uint16
}

// remember stores that from has sent to the address to, if a reply might leave from another.
func (o *replySources) remember(s *Stack, from tcpip.FullAddress, to tcpip.Address) {
	if to.Len() == 0 || !s.cfg.local.contains(to) &&
		(!s.addrs.Sources().Ambiguous(from.Addr, to) || !s.owns(to)) {
		return
	}
	key := peerKey{from.Addr, from.Port}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.peers == nil {
		o.peers = make(map[peerKey]tcpip.Address)
	}
	if len(o.peers) >= maxReplySources {
		for old := range o.peers { // any one: map order is random
			delete(o.peers, old)
			break
		}
	}
	o.peers[key] = to
}

// sourceFor returns the address from which to reply to a peer, or "any" where netstack chooses.
func (o *replySources) sourceFor(to tcpip.FullAddress) tcpip.Address {
	o.mu.RLock()
	defer o.mu.RUnlock()
	return o.peers[peerKey{to.Addr, to.Port}]
}

// owns says whether a is a unicast address of ours: not a group, not a broadcast address.
func (s *Stack) owns(a tcpip.Address) bool {
	protocol := ipv6Protocol
	if a.Len() == header.IPv4AddressSize {
		protocol = ipv4Protocol
	}
	return s.net.CheckLocalAddress(0, protocol, a) != 0 && !s.isGroup(a)
}
