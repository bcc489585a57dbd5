package stack

import (
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/rdma-netstack/rdma-netstack/clock"
)

// connState is embedded in every conn and listener: whether it, or its stack, is closed.
type connState struct {
	stack  *Stack
	closed atomic.Bool
}

// done is net.ErrClosed once the conn or its stack is closed.
func (g *connState) done() error {
	if g.closed.Load() {
		return net.ErrClosed
	}
	return g.stack.done()
}

// done is net.ErrClosed once the stack has ended, and has the cause in it if it ended by itself.
func (s *Stack) done() error {
	switch {
	case !s.closed.Load():
		return nil
	case s.cause != nil:
		return endedError{s.cause}
	}
	return net.ErrClosed
}

// check says whether an operation of side d may go on, in the order package net asks.
func (g *connState) check(d *ioSide) error {
	if err := g.done(); err != nil {
		return err
	}
	if d.expired.Load() {
		return os.ErrDeadlineExceeded
	}
	return nil
}

// orClosedErr is net.ErrClosed if the conn or the stack is closed, else err: netstack reports other
// errors when an endpoint is closed under an operation.
func (g *connState) orClosedErr(err error) error {
	if closed := g.done(); closed != nil {
		return closed
	}
	return err
}

// ioSide is one direction of an endpoint: reading and accepting, or writing.
type ioSide struct {
	// mu is held by one operation at a time, as in package net. Only its holder parks.
	mu sync.Mutex

	// wake has capacity 1. A token means that the operation is to try again. Netstack, the deadline
	// and Close put it there; an extra token costs one try.
	wake chan struct{}

	// entry stays registered for the endpoint's life, so that waiting allocates nothing.
	entry waiter.Entry

	// expired is set while the deadline is in the past.
	expired atomic.Bool

	deadline struct {
		mu    sync.Mutex
		at    time.Time   // guarded by mu; zero: none
		timer clock.Timer // nil: not needed yet
	}
	clock clock.Clock // of the deadline; set by register
}

// register registers the side with q for the events of mask and for errors. Its deadline goes by c.
func (d *ioSide) register(c clock.Clock, q *waiter.Queue, mask waiter.EventMask) {
	d.registerAs(d, c, q, mask)
}

// registerAs is register for a listener that does more than to notify the side.
func (d *ioSide) registerAs(l waiter.EventListener, c clock.Clock, q *waiter.Queue,
	mask waiter.EventMask) {
	d.clock = c
	d.wake = make(chan struct{}, 1)
	d.entry.Init(l, mask|waiter.EventErr|waiter.EventHUp)
	q.EventRegister(&d.entry)
}

// NotifyEvent implements waiter.EventListener. It is called with netstack's locks held.
func (d *ioSide) NotifyEvent(waiter.EventMask) { d.notify() }

// notify wakes the operation in progress, or the next one.
func (d *ioSide) notify() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// park waits for a token. The caller holds d.mu.
func (d *ioSide) park() { <-d.wake }

// setDeadline makes operations fail from t on; the zero time means never.
func (d *ioSide) setDeadline(t time.Time) {
	dl := &d.deadline
	dl.mu.Lock()
	defer dl.mu.Unlock()
	dl.at = t
	if t.IsZero() { // without asking for the time: net/http does this twice per request
		d.expired.Store(false)
		d.stopTimer()
		return
	}
	left := d.clock.Until(t)
	d.expired.Store(left <= 0)
	switch {
	case left <= 0:
		d.stopTimer()
		d.notify()
	case dl.timer == nil:
		dl.timer = d.clock.AfterFunc(left, d.expire)
	default:
		dl.timer.Reset(left)
	}
}

// expire is the timer's function.
func (d *ioSide) expire() {
	dl := &d.deadline
	dl.mu.Lock()
	defer dl.mu.Unlock()
	left := d.clock.Until(dl.at)
	switch {
	case dl.at.IsZero():
	case left > 0: // the deadline moved, or the wall clock did
		dl.timer.Reset(left)
	default:
		d.expired.Store(true)
		d.notify()
	}
}

// stopTimer is called with deadline.mu held.
func (d *ioSide) stopTimer() {
	if d.deadline.timer != nil {
		d.deadline.timer.Stop()
	}
}

// stop stops the timer and wakes the operation in progress. The conn is closed already.
func (d *ioSide) stop() {
	d.deadline.mu.Lock()
	d.stopTimer()
	d.deadline.mu.Unlock()
	d.notify()
}
