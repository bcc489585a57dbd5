package stack

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/rdma-netstack/rdma-netstack/link/rdma"
)

const (
	// leastLeasedMTU is the least MTU taken from a DHCP lease: dhclient-script and NetworkManager
	// ignore 576 and less, which only broken servers send.
	leastLeasedMTU = 577
	// leastIPv6MTU is the least that IPv6 works with (RFC 8200 section 5).
	leastIPv6MTU = header.IPv6MinimumMTU
)

// linkMTU decides how long the packets of a stack are. That is the least of
//
//	the link's         of what carries the frames, whose netdev may get another at any time
//	NIC.MTU            if the program has set it
//	a DHCP lease's     option 26; IPv6 keeps 1280
//	an advertisement's for IPv6 only (RFC 4861 section 6.3.4); forgotten when the link's changes,
//	                   as by Linux (net/ipv6/addrconf.c addrconf_notify, NETDEV_CHANGEMTU)
//
// New connections have it from netstack, which asks for it each time; existing ones are told when
// it falls, and keep shorter segments when it rises again.
type linkMTU struct {
	changes atomic.Uint64 // of the link's

	// Read for each packet by netstack; 0: there is none.
	leased, advertised atomic.Uint32

	stack *Stack // set before there is a link

	mu      sync.Mutex // guards what follows
	link    int        // the link's, as connections have been told; 0: not asked for yet
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

// told returns the channel that has a token when what carries the frames has another MTU; nil: it
// never does.
func (m *linkMTU) told() <-chan struct{} {
	if t, ok := m.stack.nic.(interface{ MTUChanged() <-chan struct{} }); ok {
		return t.MTUChanged()
	}
	return nil
}

// follow takes the MTU of what carries the frames into use.
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
		m.shorten()
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

// shorten makes existing connections send segments that fit, as a message does that a packet was
// too big: Linux looks at the route's MTU for each segment (net/ipv4/tcp_output.c tcp_current_mss),
// and netstack once per connection. Those on loopback do not leave by the link. The lock is held.
func (m *linkMTU) shorten() {
	s := m.stack
	s.epoch.Add(1) // templates of datagrams have a limit
	info, ok := s.net.SingleNICInfo(nicID)
	if !ok {
		return
	}
	mtu4, mtu6 := info.MTU, info.MTU
	if limit := m.limit4(); limit != 0 {
		mtu4 = min(mtu4, limit)
	}
	if limit := m.limit6(); limit != 0 {
		mtu6 = min(mtu6, limit)
	}
	for _, ep := range s.net.RegisteredEndpoints() {
		c, ok := ep.(*tcp.Endpoint)
		if !ok || tcp.EndpointState(c.State()) == tcp.StateListen {
			continue
		}
		remote, err := c.GetRemoteAddress()
		switch {
		case err != nil || s.owns(remote.Addr):
		case remote.Addr.Len() == header.IPv4AddressSize && mtu4 > header.IPv4MinimumSize:
			c.HandleError(tooBig{mtu4 - header.IPv4MinimumSize}, nil)
		case remote.Addr.Len() == header.IPv6AddressSize && mtu6 > header.IPv6MinimumSize:
			c.HandleError(tooBig{mtu6 - header.IPv6MinimumSize}, nil)
		}
	}
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
		m.shorten()
	}
}

// tooBig tells a connection the largest payload of an IP packet. It implements
// gstack.TransportError.
type tooBig struct{ mtu uint32 }

// Kind implements gstack.TransportError.
func (tooBig) Kind() gstack.TransportErrorKind { return gstack.PacketTooBigTransportError }

// Info implements tcpip.SockErrorCause.
func (t tooBig) Info() uint32 { return t.mtu }

// Origin implements tcpip.SockErrorCause.
func (tooBig) Origin() tcpip.SockErrOrigin { return tcpip.SockExtErrorOriginNone }

// Type implements tcpip.SockErrorCause.
func (tooBig) Type() uint8 { return 0 }

// Code implements tcpip.SockErrorCause.
func (tooBig) Code() uint8 { return 0 }
