package stack

import (
	"context"
	"time"
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
func (s *Stack) acquireLease(ctx context.Context, open func(*Stack) (dhcpClient, error)) error {
	d, err := open(s)
	if err != nil {
		return err
	}
	if err := d.acquire(ctx); err != nil {
		d.close()
		return err
	}
	s.background.Go(func() {
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
func (s *Stack) awaitTime(ctx context.Context, t time.Time, linkUp <-chan struct{}) wakeReason {
	timer := s.clock.NewTimer(s.clock.Until(t))
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
func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// pause waits for d, and reports whether ctx has not ended.
func (s *Stack) pause(ctx context.Context, d time.Duration) bool {
	return s.clock.Sleep(ctx, d) == nil
}
