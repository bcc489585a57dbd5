package stack

import (
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

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

// payload returns the room that a route's path has.
func (p *pathMTUs) payload(r *gstack.Route) payloadRoom {
	own := int(r.MTU())
	if e := p.of(r.RemoteAddress()); e != nil {
		if limit := e.mtu - ipHeaderLen(r); limit < own {
			return payloadRoom{limit, e}
		}
	}
	return payloadRoom{own, nil}
}

// payloadRoom says how large the payload of an IP packet on a path may be.
type payloadRoom struct {
	limit int      // bytes
	path  *pathMTU // nil: the limit is the interface's
}

// ipHeaderLen returns the length of the IP header of what takes a route.
func ipHeaderLen(r *gstack.Route) int {
	if r.NetProto() == ipv6Protocol {
		return header.IPv6MinimumSize
	}
	return header.IPv4MinimumSize
}
