// Package clocktest has a clock that a test advances, and random numbers that a seed decides:
//
//	virtual := clocktest.New()
//	s, err := stack.New(link, stack.Config{
//		Clock: virtual.Clock(), Random: clocktest.Random(seed), ...})
//	virtual.Advance(10 * time.Second) // or defer virtual.Run()()
//
// Timers expire in the order of their times, and those of one time in the order in which they were
// set, each in a goroutine of its own. [Settle] waits for what it sets off.
package clocktest

import (
	"container/heap"
	"sync"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
)

// Clock stands still until [Clock.Step] or [Clock.Advance]. Any goroutine
// may use it.
type Clock struct {
	mu     sync.Mutex // guards what follows
	now    time.Time
	timers queue
	set    uint64 // timers set so far
}

// New returns a clock at the beginning of the year 2000: a deadline that a program has taken from
// the system's clock is far in the future, and none is reached by mistake.
func New() *Clock { return &Clock{now: time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)} }

// Clock returns what the Config of a package takes.
func (c *Clock) Clock() clock.Clock { return clock.New(c) }

// Now implements clock.Source.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// AfterFunc implements clock.Source.
func (c *Clock) AfterFunc(d time.Duration, f func()) clock.Timer {
	t := &timer{clock: c, f: f, place: unset}
	t.Reset(d)
	return t
}

// Timers returns how many timers are set.
func (c *Clock) Timers() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.timers)
}

// Next says when the next timer expires, which may be now. ok is false if none is set.
func (c *Clock) Next() (at time.Time, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.timers) == 0 {
		return time.Time{}, false
	}
	return c.timers[0].at, true
}

// Step goes to the time at which the next timer expires, and starts its function. It reports
// whether one was set.
func (c *Clock) Step() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stepClock()
}

// stepClock goes on to the next timer, if there is one. It is called with mu held.
func (c *Clock) stepClock() bool {
	if len(c.timers) == 0 {
		return false
	}
	t := heap.Pop(&c.timers).(*timer)
	c.now = t.at
	go t.f()
	return true
}

// stepUntil is Step if the next timer expires by end; else it goes there.
func (c *Clock) stepUntil(end time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.timers) == 0 || c.timers[0].at.After(end) {
		if c.now.Before(end) {
			c.now = end
		}
		return false
	}
	return c.stepClock()
}

// Advance goes on for d, from timer to timer, and settles before each and at the end.
func (c *Clock) Advance(d time.Duration) {
	end := c.Now().Add(d)
	for Settle(); c.stepUntil(end); Settle() {
	}
	Settle()
}

// AdvanceUntil steps from timer to timer, and settles before each, until done reports true, at most
// for d. It reports whether it did.
func (c *Clock) AdvanceUntil(d time.Duration, done func() bool) bool {
	end := c.Now().Add(d)
	for {
		if Settle(); done() {
			return true
		}
		if !c.stepUntil(end) {
			Settle()
			return done()
		}
	}
}

// Run goes on from timer to timer by itself, and settles before each, until stop is called, which
// returns when it has ended. It is for tests whose own goroutine waits for what timers do.
func (c *Clock) Run() (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			Settle()
			select {
			case <-quit:
				return
			default:
			}
			if !c.Step() {
				time.Sleep(time.Millisecond) // a test may set one
			}
		}
	}()
	return sync.OnceFunc(func() {
		close(quit)
		<-done
	})
}

// Showing returns a clock that shows what now returns, for tests of what is done with the time. Its
// timers are the system's.
func Showing(now func() time.Time) clock.Clock { return clock.New(showing(now)) }

type showing func() time.Time

// Now implements clock.Source.
func (s showing) Now() time.Time { return s() }

// AfterFunc implements clock.Source.
func (s showing) AfterFunc(d time.Duration, f func()) clock.Timer { return time.AfterFunc(d, f) }
