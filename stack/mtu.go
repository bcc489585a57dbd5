package stack

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/link/rdma"
)

const (
	// leastIPv6MTU gives the least that IPv6 works with (RFC 8200 section 5).
	leastIPv6MTU = header.IPv6MinimumMTU
)

// linkMTU decides how long the packets of a stack are. That is the least of
//
//	the link's         of the uplink, whose netdev may get another at any time
//	NIC.MTU            if the program has set it
//	a DHCP lease's     option 26; IPv6 keeps 1280
//	an advertisement's for IPv6 only (RFC 4861 section 6.3.4); forgotten when the link's changes,
//	                   as by Linux (net/ipv6/addrconf.c addrconf_notify, NETDEV_CHANGEMTU)
//
// New connections have it from netstack, which asks for it each time; segments of existing ones are
// cut by the link.
type linkMTU struct {
	changes atomic.Uint64 // of the link's

	// Read for each packet by netstack; 0: there is none.
	leased, advertised atomic.Uint32

	stack *Stack // set before there is a link

	mu      sync.Mutex // guards what follows
	link    int        // the link's, as it was told; 0: not asked for yet
	limited error      // why it is less than the netdev's; nil: it is not
}

// limit4 returns the limit of IPv4 that does not come from the link; 0: there is none.
func (m *linkMTU) limit4() uint32 { return m.leased.Load() }

// limit6 returns that of IPv6.
func (m *linkMTU) limit6() uint32 {
	leased, advertised := m.leased.Load(), m.advertised.Load()
	if leased != 0 {
		leased = max(leased, leastIPv6MTU)
	}
	if leased == 0 || advertised != 0 && advertised < leased {
		return advertised
	}
	return leased
}

// limitedNIC shows IPv4 or IPv6 an interface with a limit besides its MTU.
type limitedNIC struct {
	gstack.NetworkInterface
	limit func() uint32
}

// MTU implements gstack.NetworkInterface.
func (n limitedNIC) MTU() uint32 {
	mtu := n.NetworkInterface.MTU()
	if limit := n.limit(); limit != 0 {
		return min(mtu, limit)
	}
	return mtu
}

// limitMTU returns nic with a limit, if it is the link and anybody may set one.
func limitMTU(nic gstack.NetworkInterface, limit func() uint32) gstack.NetworkInterface {
	if limit == nil || nic.ID() != nicID {
		return nic
	}
	return limitedNIC{nic, limit}
}

// MTU returns the largest IP packet that the stack sends, in bytes, as it is now. A router's
// advertisement may allow less for IPv6.
func (s *Stack) MTU() int {
	info, ok := s.net.SingleNICInfo(nicID)
	if !ok {
		return 0
	}
	if leased := s.mtu.leased.Load(); leased != 0 {
		return int(min(info.MTU, leased))
	}
	return int(info.MTU)
}

// NetdevMTU returns the MTU of the netdevs that the stack's rings are on, in bytes; 0: there are no
// rings.
func (s *Stack) NetdevMTU() (mtu int) {
	for _, d := range s.Devices() {
		if n := d.NetdevMTU(); mtu == 0 || n < mtu {
			mtu = n
		}
	}
	return mtu
}

// follow takes the uplink's MTU into use.
func (m *linkMTU) follow() {
	s := m.stack
	if s.link == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if most := s.cfg.NIC.MTU; m.link == 0 && most > 0 {
		s.link.SetMTU(uint32(most))
	}
	before, now := m.link, int(s.link.FollowMTU())
	m.link = now
	if before != 0 && before != now {
		m.changes.Add(1)
		m.advertised.Store(0)
		s.log.Warn("the MTU has changed", "interface", s.name, "from", before, "to", now)
		if now < leastIPv6MTU && before >= leastIPv6MTU {
			s.log.Warn("IPv6 does not work with such an MTU: it needs 1280 bytes", "interface",
				s.name, "mtu", now)
		}
		m.apply()
	}
	m.noteLimit(now)
}

// noteLimit says once that rings take less than their netdev has. The lock is held.
func (m *linkMTU) noteLimit(now int) {
	s := m.stack
	netdev := s.NetdevMTU()
	if most := s.cfg.NIC.MTU; most > 0 {
		netdev = min(netdev, most)
	}
	var why error
	if s.link.Backend() == rdma.BackendRings && m.cappedByRings(now) && now < netdev {
		why = fmt.Errorf("the netdev has an MTU of %d bytes, and the receive buffers, made for a "+
			"smaller one, take %d: start the server again to use it", netdev, now)
	}
	switch {
	case why != nil && m.limited == nil:
		s.log.Warn("the MTU is used as far as the receive buffers go", "interface", s.name,
			"netdev", netdev, "mtu", now)
	case errors.Is(why, m.limited):
		return
	}
	m.limited = why
	s.health.notice(reportLink, why)
}

// cappedByRings reports whether a device's buffers are what the MTU is as small as.
func (m *linkMTU) cappedByRings(now int) bool {
	for _, d := range m.stack.Devices() {
		if d.MTULimit() <= now {
			return true
		}
	}
	return false
}

// apply has segments of existing connections cut to what the network takes, and datagrams too. The
// lock is held.
func (m *linkMTU) apply() {
	if m.stack.link != nil {
		m.stack.link.LimitSegments(m.limit4(), m.limit6())
	}
	m.stack.epoch.Add(1) // templates of datagrams have a limit
}

// useLeased takes the MTU of a lease into use, 0 if it has none.
func (m *linkMTU) useLeased(mtu uint16) {
	m.limitTo(&m.leased, uint32(mtu), "a DHCP lease")
}

// useAdvertised takes the MTU option of a router's advertisement into use. Ones below 1280 or
// above the link's are ignored, as by Linux (net/ipv6/ndisc.c ndisc_router_discovery).
func (m *linkMTU) useAdvertised(mtu uint32) {
	if info, ok := m.stack.net.SingleNICInfo(nicID); ok && mtu >= leastIPv6MTU && mtu <= info.MTU {
		m.limitTo(&m.advertised, mtu, "a router advertisement")
	}
}

// limitTo changes a limit that comes from the network.
func (m *linkMTU) limitTo(limit *atomic.Uint32, mtu uint32, source string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if before := limit.Swap(mtu); before != mtu {
		m.stack.log.Info("the network has another MTU", "interface", m.stack.name, "from", before,
			"to", mtu, "source", source)
		m.apply()
	}
}
