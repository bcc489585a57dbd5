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

// ioSide is one direction of an endpoint: reading and accepting, or writing. What is needed only
// while an operation waits, or with a deadline, is made then: most connections are idle.
type ioSide struct {
	// mu is held by one operation at a time, as in package net. Only its holder parks.
	mu sync.Mutex

	parking  atomic.Pointer[parking]  // nil: no operation has waited yet
	deadline atomic.Pointer[deadline] // nil: there was none yet

	// expired is set while the deadline is in the past.
	expired atomic.Bool
}

// Events that a side is told of. Each goes to the operation in progress.
const (
	always      = waiter.EventErr | waiter.EventHUp
	readEvents  = waiter.ReadableEvents | always
	writeEvents = waiter.WritableEvents | always
)

// register has q tell l of the events of mask, for the endpoint's life.
func register(q *waiter.Queue, e *waiter.Entry, l waiter.EventListener, mask waiter.EventMask) {
	e.Init(l, mask)
	q.EventRegister(e)
}

// NotifyEvent implements waiter.EventListener. It is called with netstack's locks held.
func (d *ioSide) NotifyEvent(waiter.EventMask) { d.notify() }

// parking is where the operation of a side waits. A token means that it is to try again. Netstack,
// the deadline and Close put it there; an extra token costs one try.
type parking struct {
	token atomic.Bool
	cond  sync.Cond // its Locker is the parking
}

// Lock and Unlock are for cond, which calls Unlock once it counts the caller as one that waits:
// whoever puts the token there before does not wake it.
func (p *parking) Lock() {}
func (p *parking) Unlock() {
	if p.token.Load() {
		p.cond.Signal()
	}
}

// notify wakes the operation in progress, or the next one.
func (d *ioSide) notify() {
	p := d.parking.Load() // nil: the first to wait makes it, and tries again then
	if p != nil && !p.token.Swap(true) {
		p.cond.Signal()
	}
}

// park waits for a token. The caller holds d.mu.
func (d *ioSide) park() {
	p := d.parking.Load()
	if p == nil {
		p = new(parking)
		p.cond.L = p
		d.parking.Store(p)
		return
	}
	for !p.token.Swap(false) {
		p.cond.Wait()
	}
}

// deadline is that of a side.
type deadline struct {
	side  *ioSide
	clock clock.Clock

	mu    sync.Mutex
	at    time.Time   // guarded by mu; zero: none
	timer clock.Timer // nil: not needed yet
}

// setDeadline makes operations fail from t on, a time of c; the zero time means never.
func (d *ioSide) setDeadline(c clock.Clock, t time.Time) {
	dl := d.deadline.Load()
	if dl == nil {
		switch {
		case t.IsZero():
			d.expired.Store(false)
			return
		case c.Until(t) <= 0: // net/http does this once per connection
			d.expired.Store(true)
			d.notify()
			return
		}
		d.deadline.CompareAndSwap(nil, &deadline{side: d, clock: c})
		dl = d.deadline.Load()
	}
	dl.set(t)
}

func (dl *deadline) set(t time.Time) {
	dl.mu.Lock()
	defer dl.mu.Unlock()
	dl.at = t
	if t.IsZero() { // without asking for the time: net/http does this twice per request
		dl.side.expired.Store(false)
		dl.stop()
		return
	}
	left := dl.clock.Until(t)
	dl.side.expired.Store(left <= 0)
	switch {
	case left <= 0:
		dl.stop()
		dl.side.notify()
	case dl.timer == nil:
		dl.timer = dl.clock.AfterFunc(left, dl.expire)
	default:
		dl.timer.Reset(left)
	}
}

// expire is the timer's function.
func (dl *deadline) expire() {
	dl.mu.Lock()
	defer dl.mu.Unlock()
	left := dl.clock.Until(dl.at)
	switch {
	case dl.at.IsZero():
	case left > 0: // the deadline moved, or the wall clock did
		dl.timer.Reset(left)
	default:
		dl.side.expired.Store(true)
		dl.side.notify()
	}
}

// stop stops the timer. mu is held.
func (dl *deadline) stop() {
	if dl.timer != nil {
		dl.timer.Stop()
	}
}

// stop stops the timer and wakes the operation in progress. The conn is closed already.
func (d *ioSide) stop() {
	if dl := d.deadline.Load(); dl != nil {
		dl.mu.Lock()
		dl.stop()
		dl.mu.Unlock()
	}
	d.notify()
}
