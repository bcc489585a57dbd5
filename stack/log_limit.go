package stack

import "time"

// rateLimit limits an action that other hosts can cause, such as a line in the log, to burst times
// per period. It is not safe for concurrent use.
type rateLimit struct {
	burst  int
	period time.Duration

	since  time.Time // when the period began
	used   int       // of burst, in it
	missed uint64    // refused since the last action that was allowed
}

// allows says whether the action may be done now, and if so how often it was refused since the
// last.
func (s *rateLimit) allows(now time.Time) (ok bool, missed uint64) {
	if now.Sub(s.since) >= s.period {
		s.since, s.used = now, 0
	}
	if s.used == s.burst {
		s.missed++
		return false, 0
	}
	s.used++
	missed, s.missed = s.missed, 0
	return true, missed
}
