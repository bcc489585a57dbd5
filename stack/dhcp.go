package stack

import (
	"context"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/env"
)

// dhcpClient is a DHCP client. One goroutine at a time uses it.
type dhcpClient interface {
	// acquire asks for an address until a server has given one that nobody else uses, or ctx ends.
	acquire(ctx context.Context) error
	// keep keeps the address, or gets another, until the stack ends.
	keep()
	close()
}

// acquireLease gets an address, and renews its lease in the background.
func (s *addressManager) acquireLease(ctx context.Context, open func(*addressManager) (dhcpClient,
	error)) error {
	d, err := open(s)
	if err != nil {
		return err
	}
	if err := d.acquire(ctx); err != nil {
		d.close()
		return err
	}
	s.env.Go(func() {
		defer d.close()
		d.keep()
	})
	return nil
}

// wakeReason is what ended the wait of a DHCP client.
type wakeReason int

const (
	timeReached wakeReason = iota
	linkCameUp
	stackEnded
)

// awaitTime waits until t, or until the link comes up again, or ctx ends.
func (s *addressManager) awaitTime(ctx context.Context, t time.Time,
	linkUp <-chan struct{}) wakeReason {
	timer := s.env.Clock.NewTimer(s.env.Clock.Until(t))
	defer timer.Stop()
	select {
	case <-timer.C:
		return timeReached
	case <-linkUp:
		return linkCameUp
	case <-ctx.Done():
		return stackEnded
	}
}

// readUntilLinkUp ends the reads of c when the link comes up. The caller has set the deadline of
// reads, and calls what is returned when it no longer reads: it reports whether the link came up.
func readUntilLinkUp(c *UDPConn, linkUp <-chan struct{}) (done func() bool) {
	reading, came := make(chan struct{}), make(chan bool, 1)
	go func() {
		select {
		case <-linkUp:
			c.SetReadDeadline(time.Unix(1, 0))
			came <- true
		case <-reading:
			came <- false
		}
	}()
	return func() bool { close(reading); return <-came }
}

// notify puts a token into a channel that has none.
func notify(c chan<- struct{}) { env.Notify(c) }

// pause waits for d, and reports whether ctx has not ended.
func (s *addressManager) pause(ctx context.Context, d time.Duration) bool {
	return s.env.Clock.Sleep(ctx, d) == nil
}

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
func (s *addressManager) jitter(d time.Duration) time.Duration {
	return d + time.Duration(s.random.Rand().Int64N(int64(d/10+1)))
}

// newXID4 gives a DHCPv4 message a random number of its own: the library's are always the system's.
func (s *addressManager) newXID4() dhcpv4.Modifier {
	var id dhcpv4.TransactionID
	s.random.Read(id[:])
	return dhcpv4.WithTransactionID(id)
}

// renumber6 gives m a random number of its own, likewise.
func (s *addressManager) renumber6(m *dhcpv6.Message) *dhcpv6.Message {
	s.random.Read(m.TransactionID[:])
	return m
}

// duid returns the name by which DHCPv6 servers know us: our hardware address, and the time, which
// counts from the beginning of the year 2000 (RFC 8415 section 11.2).
func (s *addressManager) duid() dhcpv6.DUID {
	since := s.env.Clock.Since(time.Date(2000, time.January, 1, 0, 0, 0, 0, time.UTC))
	return &dhcpv6.DUIDLLT{HWType: iana.HWTypeEthernet, Time: uint32(since / time.Second),
		LinkLayerAddr: s.stack.HardwareAddr()}
}
