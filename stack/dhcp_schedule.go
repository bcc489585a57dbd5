package stack

import (
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"

	"github.com/rdma-netstack/rdma-netstack/clock"
)

// schedule is how long the answer to a message is waited for, given how long the one before was.
type schedule func(last time.Duration) time.Duration

// doubling waits first, then twice as long each time up to most.
func doubling(first, most time.Duration) schedule {
	return func(last time.Duration) time.Duration { return min(max(2*last, first), most) }
}

// halving waits half of the time that is left until the deadline, but least (RFC 2131 section
// 4.4.5).
func halving(c clock.Clock, deadline time.Time, least time.Duration) schedule {
	return func(time.Duration) time.Duration { return max(c.Until(deadline)/2, least) }
}

// jitter makes d up to a tenth longer, so that hosts that began together do not go on together.
func (s *Stack) jitter(d time.Duration) time.Duration {
	return d + time.Duration(s.random.Rand().Int64N(int64(d/10+1)))
}

// newXID4 gives a DHCPv4 message a random number of its own: the library's are always the system's.
func (s *Stack) newXID4() dhcpv4.Modifier {
	var id dhcpv4.TransactionID
	s.random.Read(id[:])
	return dhcpv4.WithTransactionID(id)
}

// renumber6 gives m a random number of its own, likewise.
func (s *Stack) renumber6(m *dhcpv6.Message) *dhcpv6.Message {
	s.random.Read(m.TransactionID[:])
	return m
}

// duid is the name by which DHCPv6 servers know us: our hardware address, and the time, which
// counts from the beginning of the year 2000 (RFC 8415 section 11.2).
func (s *Stack) duid() dhcpv6.DUID {
	since := s.clock.Since(time.Date(2000, time.January, 1, 0, 0, 0, 0, time.UTC))
	return &dhcpv6.DUIDLLT{HWType: iana.HWTypeEthernet, Time: uint32(since / time.Second),
		LinkLayerAddr: s.HardwareAddr()}
}
