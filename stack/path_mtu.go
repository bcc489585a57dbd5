package stack

import (
	"encoding/binary"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/internal/random"
)

// PathMTUDiscovery says what becomes of a datagram that is larger than the MTU of its path, and
// whether others may be fragmented on the way: the values of Linux's socket options IP_MTU_DISCOVER
// and IPV6_MTU_DISCOVER (ip(7)).
type PathMTUDiscovery int

const (
	// PathMTUDont fragments what is larger than the path's MTU and never sets "don't fragment".
	PathMTUDont PathMTUDiscovery = iota
	// PathMTUWant, the default, fragments likewise, and sends what need not be fragmented with
	// "don't fragment".
	PathMTUWant
	// PathMTUDo sets "don't fragment" and refuses what is larger than the path's MTU: EMSGSIZE.
	PathMTUDo
	// PathMTUProbe sets "don't fragment", refuses what is larger than the interface's MTU, and
	// takes no notice of the path's: for programs that look for it themselves (RFC 8899).
	PathMTUProbe
)

// SetPathMTUDiscovery chooses how datagrams are sent from now on. The error is EINVAL for other
// values than those of the constants. What the path's MTU is, routers tell by ICMP, about datagrams
// that were sent from here; one call on a connected socket then fails with EMSGSIZE, as on Linux,
// unless it is PathMTUDont. A Write that fails so sends nothing.
func (c *UDPConn) SetPathMTUDiscovery(d PathMTUDiscovery) error {
	if d < PathMTUDont || d > PathMTUProbe {
		return c.setError(os.NewSyscallError("setsockopt", syscall.EINVAL))
	}
	return c.set(func() {
		c.discovery.Store(uint32(d))
		group := tcpip.PMTUDiscoveryDont // see configure
		if d >= PathMTUDo {
			group = tcpip.PMTUDiscoveryDo
		}
		_ = c.ep.SetSockOptInt(tcpip.MTUDiscoverOption, int(group)) // cannot fail
		c.routes.forgetTemplates()
	})
}

// SetDontFragment chooses PathMTUDo, or PathMTUWant: whether datagrams that are larger than the MTU
// of their path are refused with EMSGSIZE, or fragmented.
func (c *UDPConn) SetDontFragment(on bool) error {
	if on {
		return c.SetPathMTUDiscovery(PathMTUDo)
	}
	return c.SetPathMTUDiscovery(PathMTUWant)
}

// PathMTU returns the MTU of the path to the peer of a connected socket, in bytes of IP packets,
// as far as it is known (Linux's IP_MTU). The error is ENOTCONN if the socket is not connected.
func (c *UDPConn) PathMTU() (int, error) {
	if err := c.done(); err != nil {
		return 0, c.setError(err)
	}
	if c.raddr == nil {
		return 0, c.setError(os.NewSyscallError("getsockopt", syscall.ENOTCONN))
	}
	r, terr := c.stack.findRoute(routeKey{c.local.Addr, c.remote.Addr})
	if terr != nil {
		return 0, c.setError(syscallError("getsockopt", terr))
	}
	defer r.Release()
	return c.stack.icmp.mtus.payload(r).limit + ipHeaderLen(r), nil
}

// ipHeaderLen returns the length of the IP header of what takes a route.
func ipHeaderLen(r *gstack.Route) int {
	if r.NetProto() == ipv6Protocol {
		return header.IPv6MinimumSize
	}
	return header.IPv4MinimumSize
}

// Path MTUs that ICMP tells of (RFC 1191, RFC 8201), as Linux has them (net/ipv4/route.c
// __ip_rt_update_pmtu, net/ipv6/route.c rt6_do_update_pmtu).
const (
	// pathMTULifetime says how long a path MTU is used: net.ipv4.route.mtu_expires.
	pathMTULifetime = 10 * time.Minute
	// leastPathMTU4 and leastPathMTU6 are the smallest that are used, in bytes of IP packets. The
	// first is net.ipv4.route.min_pmtu: what goes to a host that is said to have a smaller one is
	// sent in fragments of this size without "don't fragment". Nothing below the second is
	// believed.
	leastPathMTU4 = 552
	leastPathMTU6 = header.IPv6MinimumMTU
	// maxPathMTUs bounds the destinations that are remembered.
	maxPathMTUs = 4096
)

// pathMTUs keeps the MTU of the path to each destination where it is less than the interface's.
type pathMTUs struct {
	clock  clock.Clock
	random random.Source
	// version counts changes; 0: there has never been an entry. Header templates are of a version.
	version atomic.Uint64

	mu      sync.RWMutex
	entries map[tcpip.Address]*pathMTU // guarded by mu
}

// pathMTU holds what is known of one destination. It does not change but for the identification.
type pathMTU struct {
	mtu            int // bytes of IP packets
	fragment       bool
	until          time.Time
	identification atomic.Uint32 // of the last datagram that was sent in fragments
}

func newPathMTUs(c clock.Clock, r random.Source) *pathMTUs {
	return &pathMTUs{clock: c, random: r, entries: map[tcpip.Address]*pathMTU{}}
}

// learn notes that a router takes packets to a destination up to a size only. A larger one than is
// known is not believed before that has expired.
func (p *pathMTUs) learn(to tcpip.Address, mtu int) {
	v6 := to.Len() == header.IPv6AddressSize
	if v6 && mtu < leastPathMTU6 {
		return
	}
	now := p.clock.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	e := &pathMTU{mtu: mtu, until: now.Add(pathMTULifetime)}
	if !v6 && mtu < leastPathMTU4 {
		e.mtu, e.fragment = leastPathMTU4, true
	}
	e.identification.Store(uint32(p.random.Uint64()))
	if old := p.entries[to]; old != nil && now.Before(old.until) {
		if old.mtu < e.mtu {
			return
		}
		e.identification.Store(old.identification.Load())
	}
	p.makeRoom(now)
	p.entries[to] = e
	p.version.Add(1)
}

// makeRoom removes entries that have expired, or any one, if there is no room. mu is held.
func (p *pathMTUs) makeRoom(now time.Time) {
	if len(p.entries) < maxPathMTUs {
		return
	}
	for to, e := range p.entries {
		if !now.Before(e.until) {
			delete(p.entries, to)
		}
	}
	for to := range p.entries { // any one: map order is random
		if len(p.entries) < maxPathMTUs {
			return
		}
		delete(p.entries, to)
	}
}

// of returns the entry of a destination, or nil.
func (p *pathMTUs) of(to tcpip.Address) *pathMTU {
	if p.version.Load() == 0 {
		return nil
	}
	p.mu.RLock()
	e := p.entries[to]
	p.mu.RUnlock()
	if e == nil || !p.clock.Now().Before(e.until) {
		return nil
	}
	return e
}

// room says how large the payload of an IP packet on a path may be.
type room struct {
	limit int      // bytes
	path  *pathMTU // nil: the limit is the interface's
}

// payload returns the room that a route's path has.
func (p *pathMTUs) payload(r *gstack.Route) room {
	own := int(r.MTU())
	if e := p.of(r.RemoteAddress()); e != nil {
		if limit := e.mtu - ipHeaderLen(r); limit < own {
			return room{limit, e}
		}
	}
	return room{own, nil}
}

// datagramRoom is payload as the socket goes by it.
func (c *UDPConn) datagramRoom(r *gstack.Route) room {
	if PathMTUDiscovery(c.discovery.Load()) == PathMTUProbe {
		return room{int(r.MTU()), nil}
	}
	return c.stack.icmp.mtus.payload(r)
}

// mayBeFragmented reports whether what fits a path is sent without "don't fragment". IPv6 has no
// such flag.
func (c *UDPConn) mayBeFragmented(r *gstack.Route, path room) bool {
	return r.NetProto() == ipv4Protocol &&
		(PathMTUDiscovery(c.discovery.Load()) == PathMTUDont ||
			path.path != nil && path.path.fragment)
}

// exceedsLink reports whether a datagram to several hosts has to be fragmented.
func (c *UDPConn) exceedsLink(b []byte, to tcpip.FullAddress) bool {
	headers := header.IPv6MinimumSize
	if to.Addr.Len() == header.IPv4AddressSize {
		headers = header.IPv4MinimumSize
	}
	info, ok := c.stack.net.SingleNICInfo(nicID)
	return ok && headers+header.UDPMinimumSize+len(b) > int(info.MTU)
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

// writeFragments sends a datagram in fragments of a path that takes less than the interface does,
// for which netstack has no means. The datagram has its checksum: a NIC cannot compute that of
// fragments.
func (c *UDPConn) writeFragments(r *gstack.Route, b []byte, port uint16, path room,
	o *sendOptions) tcpip.Error {
	datagram := make([]byte, header.UDPMinimumSize+len(b))
	h := header.UDP(datagram)
	h.Encode(&header.UDPFields{SrcPort: c.local.Port, DstPort: port,
		Length: uint16(len(datagram))})
	copy(h.Payload(), b)
	sum := r.PseudoHeaderChecksum(udp.ProtocolNumber, uint16(len(datagram)))
	if sum = checksum.Checksum(datagram, sum); sum != 0xffff { // 0 means "no checksum" (RFC 768)
		sum = ^sum
	}
	h.SetChecksum(sum)

	size := path.limit
	if r.NetProto() == ipv6Protocol {
		size -= header.IPv6FragmentHeaderSize
	}
	size &^= 7 // a multiple of 8 in all but the last (RFC 791 section 3.1, RFC 8200 section 4.5)
	identification := path.path.identification.Add(1)
	for at := 0; at < len(datagram); at += size {
		end := min(at+size, len(datagram))
		pkt := gstack.NewPacketBuffer(gstack.PacketBufferOptions{
			ReserveHeaderBytes: int(r.MaxHeaderLength()),
			Payload: buffer.MakeWithData(append(c.fragmentHeaders(r, o, identification,
				at, end-at, end < len(datagram)), datagram[at:end]...)),
		})
		err := r.WriteHeaderIncludedPacket(pkt)
		pkt.DecRef()
		if err != nil {
			return err
		}
	}
	return nil
}

// fragmentHeaders returns the headers of a fragment that is at an offset of a datagram and has n
// bytes.
func (c *UDPConn) fragmentHeaders(r *gstack.Route, o *sendOptions, identification uint32,
	at, n int, more bool) []byte {
	if r.NetProto() == ipv6Protocol {
		b := make([]byte, header.IPv6MinimumSize, header.IPv6MinimumSize+
			header.IPv6FragmentHeaderSize+n)
		header.IPv6(b).Encode(&header.IPv6Fields{
			PayloadLength:     uint16(header.IPv6FragmentHeaderSize + n),
			TransportProtocol: header.IPv6FragmentHeader, HopLimit: c.ttlOn(r, o),
			TrafficClass: o.class, SrcAddr: r.LocalAddress(),
			DstAddr: r.RemoteAddress(),
		})
		field := uint16(at)
		if more {
			field |= 1
		}
		b = append(b, uint8(udp.ProtocolNumber), 0)
		b = binary.BigEndian.AppendUint16(b, field)
		return binary.BigEndian.AppendUint32(b, identification)
	}
	b := make([]byte, header.IPv4MinimumSize, header.IPv4MinimumSize+n)
	f := header.IPv4Fields{TotalLength: uint16(header.IPv4MinimumSize + n),
		TOS: o.class, ID: uint16(max(identification&0xffff, 1)),
		FragmentOffset: uint16(at), TTL: c.ttlOn(r, o), Protocol: uint8(udp.ProtocolNumber),
		SrcAddr: r.LocalAddress(), DstAddr: r.RemoteAddress()}
	if more {
		f.Flags = header.IPv4FlagMoreFragments
	}
	header.IPv4(b).Encode(&f)
	return b
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

// sharing lists the sockets with the port of c, and c itself.
func (o *openConns) sharing(c *UDPConn) (all []*UDPConn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, other := range o.udp {
		if other.local.Port == c.local.Port {
			all = append(all, other)
		}
	}
	return all
}
