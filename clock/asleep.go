package clock

import (
	"sync/atomic"
	"time"
)

// Asleep adds up the time that a goroutine waits. Begin and End are that goroutine's, Total is for
// everybody, also in the middle of a wait. Make it with NewAsleep, and do not copy it.
type Asleep struct {
	clock Clock
	start time.Time
	// state holds the total in nanoseconds; while the goroutine waits, the total before less the
	// time since start, which is negative.
	state atomic.Int64
	// told gives the longest total told so far: Total may be a moment ahead of an End beside it.
	told atomic.Int64
}

// NewAsleep returns a total of 0.
func NewAsleep(c Clock) *Asleep { return &Asleep{clock: c, start: c.Now()} }

// sinceStart returns the nanoseconds since start, and one more: the total is always less.
func (a *Asleep) sinceStart() int64 { return int64(a.clock.Since(a.start)) + 1 }

// Begin is called before a wait.
func (a *Asleep) Begin() { a.state.Store(a.state.Load() - a.sinceStart()) }

// End is called after a wait, once for each Begin.
func (a *Asleep) End() { a.state.Store(a.state.Load() + a.sinceStart()) }

// Total returns the time of all waits so far. It never falls.
func (a *Asleep) Total() time.Duration {
	total := a.state.Load()
	if total < 0 {
		total += a.sinceStart()
	}
	for {
		told := a.told.Load()
		if total <= told {
			return time.Duration(told)
		}
		if a.told.CompareAndSwap(told, total) {
			return time.Duration(total)
		}
	}
}
