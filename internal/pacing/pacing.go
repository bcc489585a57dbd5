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

	// What timers were late by, and is not made up for yet: at most makeUp. It is no part of due,
	// since it outlasts the first bytes that are sent behind a timer, but not a pause.
	late, makeUp time.Duration
}

// NewSchedule returns one of bitsPerSecond that lets burst bytes out at once after a pause. A rate
// of 0 is no limit.
func NewSchedule(bitsPerSecond uint64, burst int) Schedule {
	s := Schedule{bps: bitsPerSecond, makeUp: mostLate}
	if bitsPerSecond > 0 {
		s.credit, _ = s.span(uint64(burst), 0)
	}
	return s
}

// Limited reports whether there is a rate.
func (s *Schedule) Limited() bool { return s.bps != 0 }

// Begin goes on at now, when there is something to send and nothing was waiting. Time in which
// there was nothing makes nothing up for, beyond the burst, and is taken from what timers were late
// by.
func (s *Schedule) Begin(now time.Duration) {
	s.late = max(0, s.late-s.dropCredit(now))
}

// Resume goes on at now, when the wait that Wait said has passed. Timers that come late, by 10 ms
// at most, do not lower the rate.
func (s *Schedule) Resume(now time.Duration) {
	s.late = min(s.late+s.dropCredit(now), max(0, s.makeUp-s.credit))
}

// dropCredit keeps an idle schedule from falling behind further, and returns by how much it was.
func (s *Schedule) dropCredit(now time.Duration) (beyond time.Duration) {
	if beyond = now - s.credit - s.due; beyond <= 0 {
		return 0
	}
	s.due, s.rest = now-s.credit, 0
	return beyond
}

// Wait returns for how long nothing may be sent from now on; 0 or less: it may be sent.
func (s *Schedule) Wait(now time.Duration) time.Duration {
	if s.bps == 0 {
		return 0
	}
	if ahead := s.due - now; ahead > 0 && s.late > 0 {
		made := min(ahead, s.late)
		s.due, s.late = s.due-made, s.late-made
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
