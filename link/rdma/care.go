package rdma

import "time"

// carePause is how often a send queue with something outstanding is looked after, and how old its
// counters get.
const carePause = 100 * time.Millisecond

// care has a send queue looked after that nobody may write to any more, guarded by the queue's
// lock: what was sent last may have failed, or the NIC may stand still, and its counters are to
// be seen.
type care struct {
	timer *time.Timer
	armed bool // the timer will come
}

func (c *care) init(check func()) {
	c.timer = time.AfterFunc(time.Hour, check)
	c.timer.Stop()
}

// flush rings the doorbell for what was posted, and has the queue looked after. With the queue's
// lock held.
func (s *sender) flush() {
	s.q.Flush()
	s.watch()
}

// watch has the queue looked after in a while. With the queue's lock held.
func (s *sender) watch() {
	if !s.care.armed && !s.backlog.closed {
		s.care.armed = true
		s.care.timer.Reset(carePause)
	}
}

// check is the timer's: it looks after the queue while there is reason to.
func (s *sender) check() {
	s.q.Lock()
	defer s.q.Unlock()
	s.care.armed = false
	if s.backlog.closed {
		return
	}
	again := s.q.Check()
	s.drain()
	s.q.Flush()
	if again || !s.backlog.empty() {
		s.watch()
	}
}

// help looks for completions on behalf of senders, unless there is one at the queue. The worker
// that received something calls it: if the queue is in error it works again before the answer is
// written.
func (s *sender) help() {
	if !s.q.TryLock() {
		return
	}
	defer s.q.Unlock()
	if s.reclaim() {
		s.q.Flush()
	}
}
