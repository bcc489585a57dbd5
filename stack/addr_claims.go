package stack

import (
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
)

const (
	// defendInterval is how often one address is defended at most (RFC 5227 section 1.1,
	// DEFEND_INTERVAL).
	defendInterval = 10 * time.Second
	// twinInterval is how often a line is logged about our own hardware address elsewhere.
	twinInterval = time.Minute
	// manyDefended is the number of addresses from which on old entries are forgotten.
	manyDefended = 64
	// claimQueue is how many claims wait to be dealt with. What exceeds it is counted only.
	claimQueue = 16
)

// claims are uses of our addresses by others: of an IP address by another host (RFC 5227 section
// 2.4, RFC 4862 section 5.4.4), or of our hardware address. Receive goroutines see them
// (addr_arp.go, ndp_watch.go), and [Stack.guard] acts.
type claims struct {
	own    tcpip.LinkAddress // the link's hardware address; written before the link is in use
	shared bool              // it is Linux's, too
	seen   chan claim

	conflicts, defences, twins atomic.Uint64 // as in Stats
}

// claim is that the host with a hardware address uses an address of ours; without one, it is the
// hardware address.
type claim struct {
	addr netip.Addr
	mac  tcpip.LinkAddress
}

func newClaims(cfg Config) *claims {
	return &claims{shared: cfg.NIC.AllowNetdevMAC || cfg.NIC.Promiscuous || cfg.Host,
		seen: make(chan claim, claimQueue)}
}

// conflict notes that mac uses our address a.
func (c *claims) conflict(a tcpip.Address, mac tcpip.LinkAddress) {
	c.conflicts.Add(1)
	c.note(claim{fromAddress(a), mac})
}

// twin notes that a frame came from our own hardware address.
func (c *claims) twin() {
	if !c.shared {
		c.twins.Add(1)
		c.note(claim{mac: c.own})
	}
}

func (c *claims) note(cl claim) {
	select {
	case c.seen <- cl:
	default:
	}
}

// guard defends our addresses until the stack ends, and removes addresses that could not be probed
// for.
//
// It follows case (c) of RFC 5227 section 2.4: an address is never given up, because clients reach
// a server by it; it is announced again, at most once per defendInterval.
func (s *Stack) guard() {
	defended := map[netip.Addr]*rateLimit{}
	twins := rateLimit{burst: 1, period: twinInterval}
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.raEvents.removable:
			s.removeUndecided()
		case <-s.memberships.changed:
			s.tellGroups()
		case c := <-s.claims.seen:
			if c.addr.IsValid() {
				s.defend(c, defended)
			} else if ok, missed := twins.allows(s.clock.Now()); ok {
				s.log.Warn("frames come from our own hardware address: "+
					"another process or host uses it, or the network sends ours back; give each "+
					"slice its own MAC",
					"interface", s.name, "mac", net.HardwareAddr(c.mac).String(), "more", missed)
			}
		}
	}
}

// removeUndecided removes addresses of advertised prefixes that could not be probed for, and asks
// for the prefixes again.
func (s *Stack) removeUndecided() {
	for _, a := range s.raEvents.takeUndecided() {
		s.net.RemoveAddress(nicID, toAddress(a))
		s.log.Warn("address given up: the link sends no probe for it", "interface",
			s.name, "address", a.String())
	}
	s.solicitRouter()
}

// defend announces an address that another host uses, unless the rate limit is reached.
func (s *Stack) defend(c claim, defended map[netip.Addr]*rateLimit) {
	now := s.clock.Now()
	if len(defended) >= manyDefended {
		for a, d := range defended {
			if now.Sub(d.since) >= defendInterval {
				delete(defended, a)
			}
		}
	}
	d := defended[c.addr]
	if d == nil {
		d = &rateLimit{burst: 1, period: defendInterval}
		defended[c.addr] = d
	}
	ok, missed := d.allows(now)
	if !ok {
		return
	}
	s.claims.defences.Add(1)
	s.announce(c.addr)
	s.log.Warn("another host uses our address, which we have announced again", "interface", s.name,
		"address", c.addr.String(),
		"mac", net.HardwareAddr(c.mac).String(), "more", missed)
}
