// Package pacing keeps what is sent to a rate: it says when the next bytes are due.
package pacing

import (
	"math/bits"
	"time"
)

// mostLate gives how much lateness of a timer is made up for.
const mostLate = 10 * time.Millisecond

// Schedule spaces what is sent by its length at a rate. What is sent as a whole goes at once, and
// the next waits the longer. The zero value has no limit. It is not safe for concurrent use.
//
// Times are those of a clock that never goes back, since any moment.
type Schedule struct {
	bps    uint64        // 0: no limit
	credit time.Duration // how far an idle schedule falls behind, which is sent in one go
	due    time.Duration // when the next bytes may be sent
	rest   uint64        // bits times a second that due lacks, below bps
}

// NewSchedule returns one of bitsPerSecond that lets burst bytes out at once after a pause. A rate
// of 0 is no limit.
func NewSchedule(bitsPerSecond uint64, burst int) Schedule {
	s := Schedule{bps: bitsPerSecond}
	if bitsPerSecond > 0 {
		s.credit, _ = s.span(uint64(burst), 0)
	}
	return s
}

// Limited reports whether there is a rate.
func (s *Schedule) Limited() bool { return s.bps != 0 }

// Begin starts the rate anew at now, when there is something to send and nothing was waiting.
func (s *Schedule) Begin(now time.Duration) { s.dropCredit(now, s.credit) }

// Resume goes on at now, when the wait that Wait said has passed. Timers that come late do not
// lower the rate.
func (s *Schedule) Resume(now time.Duration) { s.dropCredit(now, max(s.credit, mostLate)) }

func (s *Schedule) dropCredit(now, credit time.Duration) {
	if s.due < now-credit {
		s.due, s.rest = now-credit, 0
	}
}

// Wait returns for how long nothing may be sent from now on; 0 or less: it may be sent.
func (s *Schedule) Wait(now time.Duration) time.Duration {
	if s.bps == 0 {
		return 0
	}
	return s.due - now
}

// Sent counts n bytes that were sent.
func (s *Schedule) Sent(n int) {
	if s.bps == 0 {
		return
	}
	d, rest := s.span(uint64(n), s.rest)
	s.due, s.rest = s.due+d, rest
}

// span returns how long n bytes take, with the rest of the division before it and that of its own.
func (s *Schedule) span(n, before uint64) (d time.Duration, rest uint64) {
	hi, lo := bits.Mul64(n*8, uint64(time.Second))
	lo, carry := bits.Add64(lo, before, 0)
	if hi += carry; hi >= s.bps { // more than 500 years
		return 1<<62 - 1, 0
	}
	q, rest := bits.Div64(hi, lo, s.bps)
	return time.Duration(min(q, 1<<62-1)), rest
}
