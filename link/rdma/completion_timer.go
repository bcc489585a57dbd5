package rdma

import (
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
)

// completionInterval is how often completions are read while a send queue has something
// outstanding, and how old its counters get.
const completionInterval = 100 * time.Millisecond

// roomInterval is how often an interface is looked at that has no room for what a packet socket is
// to send, as nothing else may come to be sent.
const roomInterval = time.Millisecond

// completionTimer reads the completions of a send queue that nobody writes to any more: what was
// sent last may have failed, or the NIC may stand still. The queue's lock guards it.
type completionTimer struct {
	timer clock.Timer
	armed time.Duration // the timer is set, to this; 0: it is not
}

// flush rings the doorbell for what was posted and arms the timer. The queue's lock is held.
func (s *sender) flush() {
	s.ring()
	s.armCheck()
}

// ring rings the doorbell for what was posted, and lets go of what was posted from the backlog. Its
// caller arms the timer, now or soon. The queue's lock is held.
func (s *sender) ring() {
	s.q.Flush()
	if s.posted > 0 {
		s.count.frames[s.kind].Add(s.posted)
		s.posted = 0
	}
	s.backlog.release()
}

// armCheck arms the timer unless it is. The queue's lock is held.
func (s *sender) armCheck() {
	interval := completionInterval
	if q, ok := s.q.(*txSocket); ok && q.Waiting() > 0 {
		interval = roomInterval
	}
	c := &s.completions
	if (c.armed == 0 || interval < c.armed) && !s.backlog.closed {
		c.armed = interval
		c.timer.Reset(interval)
	}
}

// check is called by the timer. It arms that again while anything is outstanding.
func (s *sender) check() {
	s.lock()
	defer s.unlock()
	s.completions.armed = 0
	if s.backlog.closed {
		return
	}
	outstanding := s.q.Check()
	outstanding = s.drain() || outstanding
	s.ring()
	if outstanding || !s.backlog.empty() {
		s.armCheck()
	}
}

// tryReclaim reads completions unless a sender holds the lock, which does so itself. The worker
// that received something calls it: a queue in error works again before the answer is written.
func (s *sender) tryReclaim() {
	if !s.tryLock() {
		return
	}
	defer s.unlock()
	if s.reclaim() {
		s.flush()
	}
}
