package rdma

import (
	"math"
	"time"
)

// maxHeld is how many ACKs wait in one queue at most, among them those that are sent already.
const maxHeld = 4096

// never is later than any time.
const never = time.Duration(math.MaxInt64)

// ackQueue is a ring of flows with an ACK that is held for the same time, the oldest first. The
// lock of its ACKCoalescer guards it.
type ackQueue struct {
	delay      time.Duration
	entries    [maxHeld]ackDeadline
	head, tail uint32 // free-running: entries between tail and head wait
}

type ackDeadline struct {
	key   uint64 // of the flow
	until time.Duration
	turn  uint32 // the flow's, if the ACK still waits
}

// now is the time since the coalescer was made.
func (c *ACKCoalescer) now() time.Duration { return c.clock.Since(c.epoch) }

// enqueue has the flow's ACK sent in time; one that waits already keeps its time, unless q is for a
// shorter one. False: q is nil, or has no room.
func (c *ACKCoalescer) enqueue(f *ackFlow, q *ackQueue) bool {
	if q == nil {
		return false
	}
	if f.held != nil && (!f.patient || q == &c.patient) {
		return true
	}
	if q == &c.patient && q.full() {
		q = &c.short
	}
	if q.full() || c.closed.Load() {
		return false
	}
	now := c.now()
	if f.held == nil {
		f.began = now
	}
	c.turn++
	f.turn, f.patient = c.turn, q == &c.patient
	c.flows.seconds = ackIdle + uint32(now/time.Second)
	until := now + q.delay
	q.entries[q.head%maxHeld] = ackDeadline{f.key, until, f.turn}
	q.head++
	c.arm(until, now)
	return true
}

func (q *ackQueue) full() bool { return q.head-q.tail == maxHeld }

// arm has expire called at a time, or before.
func (c *ACKCoalescer) arm(until, now time.Duration) {
	if until < c.wake {
		c.wake = until
		c.timer.Reset(until - now)
	}
}

// expire runs when the oldest ACK's time is over, and re-arms the timer while others wait. It
// writes with the mutex held, so that nothing newer of a flow can go out before: netstack, for one,
// takes the window of an ACK that was overtaken for new, sends beyond what the peer can take, and
// the two never recover.
func (c *ACKCoalescer) expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writeDue(c.now())
}

// writeDue sends the ACKs whose time is over at now. mu is held.
func (c *ACKCoalescer) writeDue(now time.Duration) {
	for n := c.due(now); n > 0; n = c.due(now) {
		c.timed.Add(uint64(n))
		c.lower.writeBurst(c.burst[:n])
		for _, pkt := range c.burst[:n] {
			pkt.DecRef()
		}
		clear(c.burst[:n])
	}
}

// due moves ACKs whose time is over at now to burst, as many as go in, and returns their number.
func (c *ACKCoalescer) due(now time.Duration) int {
	c.wake = never
	n := c.dueOf(&c.short, now, 0)
	return c.dueOf(&c.patient, now, n)
}

// dueOf is due for one queue; burst has n already.
func (c *ACKCoalescer) dueOf(q *ackQueue, now time.Duration, n int) int {
	for q.tail != q.head && n < len(c.burst) {
		e := &q.entries[q.tail%maxHeld]
		if f := c.flows.find(e.key); f != nil && f.held != nil && f.turn == e.turn {
			if e.until > now {
				c.arm(e.until, now)
				return n
			}
			f.acked, f.window = f.heldACK, f.heldWindow
			if f.timed = !f.patient; f.patient {
				f.trust = 0
			}
			c.burst[n] = f.removeHeld()
			n++
		}
		q.tail++
	}
	return n
}
