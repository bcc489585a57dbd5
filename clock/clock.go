// Package clock is the time that stacks, links, drivers and the software NIC go by: the system's,
// or one that a test advances. Package clocktest has such a one.
//
// A [Clock] is handed down by the Config of each package. Everything that one program connects in
// memory has to have the same.
package clock

import (
	"context"
	"time"
)

// Clock tells the time. The zero value is the system's clock, with no more between than the
// comparison that finds this out. Any goroutine may use it.
type Clock struct{ source Source }

// Source is a time other than the system's. Its methods may be called from any goroutine, those of
// its timers too, and with any lock held: none of them may call f before it returns.
type Source interface {
	// Now is the time, which never goes back.
	Now() time.Time
	// AfterFunc calls f in a goroutine of its own once d has passed, as time.AfterFunc does.
	AfterFunc(d time.Duration, f func()) Timer
}

// Timer calls a function once. A *time.Timer made by time.AfterFunc is one.
type Timer interface {
	// Stop reports whether it has kept the function from being called. It does not wait for one
	// that runs.
	Stop() bool
	// Reset makes the timer call its function once d has passed, and reports whether the timer was
	// running.
	Reset(d time.Duration) bool
}

// New returns a clock that goes by s; nil is the system's.
func New(s Source) Clock { return Clock{s} }

// Virtual reports whether the clock is not the system's. Time then stands still while a goroutine
// spins: a loop that waits for something by looking again and again must not begin.
func (c Clock) Virtual() bool { return c.source != nil }

// Now returns the time.
func (c Clock) Now() time.Time {
	if c.source != nil {
		return c.source.Now()
	}
	return time.Now()
}

// Since returns the time that has passed since t, which is a time of the same clock.
func (c Clock) Since(t time.Time) time.Duration {
	if c.source != nil {
		return c.source.Now().Sub(t)
	}
	return time.Since(t)
}

// Until returns the time left until t, which is a time of the same clock.
func (c Clock) Until(t time.Time) time.Duration {
	if c.source != nil {
		return t.Sub(c.source.Now())
	}
	return time.Until(t)
}

// AfterFunc calls f in a goroutine of its own once d has passed.
func (c Clock) AfterFunc(d time.Duration, f func()) Timer {
	if c.source != nil {
		return c.source.AfterFunc(d, f)
	}
	return time.AfterFunc(d, f)
}

// NewStopped is AfterFunc for a timer that does not run until it is Reset.
func (c Clock) NewStopped(f func()) Timer {
	t := c.AfterFunc(time.Hour, f)
	t.Stop()
	return t
}

// Sleep waits for d. The error is ctx.Err() if ctx ends first.
func (c Clock) Sleep(ctx context.Context, d time.Duration) error {
	t := c.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
