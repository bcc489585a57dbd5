package stack

import (
	"context"
	"time"
)

// lessee is a DHCP client. One goroutine at a time uses it.
type lessee interface {
	// acquire asks for an address until a server has given one that nobody else uses, or ctx ends.
	acquire(ctx context.Context) error
	// keep keeps the address, or gets another, until the stack ends.
	keep()
	close()
}

// rent gets an address and keeps it in the background.
func (s *Stack) rent(ctx context.Context, open func(*Stack) (lessee, error)) error {
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

// occasion is what ends a lessee's wait.
type occasion int

const (
	timeHasCome occasion = iota
	linkRevived
	stackEnded
)

// awaitTime waits until t, or until the link comes up again, or ctx ends.
func awaitTime(ctx context.Context, t time.Time, revived <-chan struct{}) occasion {
	timer := time.NewTimer(time.Until(t))
	defer timer.Stop()
	select {
	case <-timer.C:
		return timeHasCome
	case <-revived:
		return linkRevived
	case <-ctx.Done():
		return stackEnded
	}
}

// sleepUntil waits, and reports whether ctx has not ended.
func sleepUntil(ctx context.Context, t time.Time) bool {
	return awaitTime(ctx, t, nil) == timeHasCome
}
