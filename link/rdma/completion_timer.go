package rdma

import "time"

// completionInterval is how often a send queue with something outstanding is looked after, and how old its
// counters get.
const completionInterval = 100 * time.Millisecond

// completionTimer has a send queue looked after that nobody may write to any more, guarded by the queue's
// lock: what was sent last may have failed, or the NIC may stand still, and its counters are to
// be seen.
type completionTimer struct {
	timer *time.Timer
	armed bool // the timer will come
}

func (c *completionTimer) init(check func()) {
	c.timer = time.AfterFunc(time.Hour, check)
	c.timer.Stop()
}

// flush rings the doorbell for what was posted, and has the queue looked after. With the queue's
// lock held.
func (s *sender) flush() {
	s.q.Flush()
	s.armCheck()
}

// armCheck has the queue looked after in a while. With the queue's lock held.
func (s *sender) armCheck() {
	if !s.completions.armed && !s.backlog.closed {
		s.completions.armed = true
		s.completions.timer.Reset(completionInterval)
	}
}

// check is the timer's: it looks after the queue while there is reason to.
func (s *sender) check() {
	s.q.Lock()
	defer s.q.Unlock()
	s.completions.armed = false
	if s.backlog.closed {
		return
	}
	again := s.q.Check()
	s.drain()
	s.q.Flush()
	if again || !s.backlog.empty() {
		s.armCheck()
	}
}

// tryReclaim looks for completions on behalf of senders, unless there is one at the queue. The worker
// that received something calls it: if the queue is in error it works again before the answer is
// written.
func (s *sender) tryReclaim() {
	if !s.q.TryLock() {
		return
	}
	defer s.q.Unlock()
	if s.reclaim() {
		s.q.Flush()
	}
}
