package pacing

import "time"

const (
	// Fine and Coarse give how much is let out at a time: what the rate sends in that time. Fine
	// keeps to the rate, Coarse spares timers where only bursts are to be broken up, and makes up
	// for no more of their lateness than that.
	Fine, Coarse = 200 * time.Microsecond, 2 * time.Millisecond
)

const (
	// aheadTime gives how much of what was let out may be unsent, as the windows allow less than
	// the rate, before no more is: it goes at once when the windows open.
	aheadTime = 10 * time.Millisecond
	// The unsent bytes are looked at after shortPause, and after twice as long each time that none
	// has gone, up to longPause.
	shortPause, longPause = time.Millisecond, 64 * time.Millisecond
)

// mostRate gives the largest rate in bytes per second whose bits can be counted.
const mostRate = 1 << 60

// Stream keeps one who writes segments to a rate: what the rate does not allow yet is not written.
// Nothing waits below the writer, so that no timer of a protocol counts the wait. It is not safe
// for concurrent use.
//
//	          Admit: the rate allows it            Wrote: all of it
//	waiting ────────────────────────────▶ allowed ─────────────────▶ waiting
//	   │  ▲                                          a quantum at a time
//	   │  └─ the time that Admit returned is over
//	   └──── too much is unsent: looked at again, what the rate allowed meanwhile is lost
//
// From Admit to Rest the writer always has more: a wait that is over late, and a writer that gets
// no processor, are made up for.
type Stream struct {
	schedule         Schedule
	segment, headers int // bytes of payload and of headers of a segment
	quantum, ahead   int // bytes of payload

	allowed int           // bytes left of the quantum begun
	busy    bool          // the writer always had more since the last Admit
	unsent  int           // at the last look
	pause   time.Duration // since then; 0: none was needed
}

// NewStream returns one of bytesPerSecond, headers of so many bytes of each segment of so many
// bytes of payload included, which lets out what the rate sends in each at a time, in whole
// segments. A rate of 0 is no limit.
func NewStream(bytesPerSecond uint64, segment, headers int, each time.Duration) Stream {
	rate := min(bytesPerSecond, mostRate)
	payload := float64(rate) * float64(segment) / float64(segment+headers)
	quantum := int(min(payload*each.Seconds(), 1<<30))
	schedule := NewSchedule(8*rate, 0)
	if each == Coarse {
		schedule.makeUp = each
	}
	return Stream{schedule: schedule, segment: segment, headers: headers,
		quantum: max(quantum-quantum%segment, segment),
		ahead:   max(int(min(payload*aheadTime.Seconds(), 1<<30)), 4*segment)}
}

// Allowed returns how many bytes of the quantum begun may still be written, of which Wrote is to be
// told. 0: Admit says when the next begins.
func (s *Stream) Allowed() int { return max(0, s.allowed) }

// Admit begins a quantum at now and returns its bytes, of which Wrote is to be told, or else for
// how long to wait. unsent returns how many bytes of what was written have not left; it is called
// once for each quantum that the rate allows. Nothing is allowed before.
func (s *Stream) Admit(now time.Duration, unsent func() int) (bytes int, wait time.Duration) {
	if s.busy {
		s.schedule.Resume(now)
	} else {
		s.schedule.Begin(now)
	}
	s.busy = true
	if wait = s.schedule.Wait(now); wait > 0 {
		s.pause = 0
		return 0, wait
	}
	if left := unsent(); left >= s.ahead {
		s.busy = false
		if left != s.unsent || s.pause == 0 {
			s.pause = shortPause / 2
		}
		s.unsent, s.pause = left, min(2*s.pause, longPause)
		return 0, s.pause
	}
	s.pause, s.allowed = 0, s.quantum
	return s.allowed, 0
}

// Rest says that the writer has no more, or waits for something else than the rate.
func (s *Stream) Rest() { s.busy = false }

// Stalled reports whether the last Admit let nothing out since too much was unsent.
func (s *Stream) Stalled() bool { return s.pause > 0 }

// Wrote counts n bytes that were written as segments of their own.
func (s *Stream) Wrote(n int) {
	s.allowed -= n
	s.schedule.Sent(n + s.headers*((n+s.segment-1)/s.segment))
}
