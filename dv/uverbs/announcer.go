package uverbs

import (
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
)

// quietFor says for how long reads are kept from the scheduler, at most.
const quietFor = 5 * time.Millisecond

// announcer decides which quiet waits the Go scheduler is told of. A system call that it is
// told of wakes its monitor (sysmon, runtime/proc.go), which from then on looks at all processors
// every 20 µs until it finds them idle: where events are close to each other that takes longer than
// the work they are for. While the monitor sleeps, nobody interrupts goroutines that occupy all
// processors, or asks the network poller in their place. So it is told once in quietFor, and while
// it is not told a timer is pending: the monitor sleeps no longer than until the next timer.
//
// One goroutine at a time uses it, but for stop.
type announcer struct {
	clock clock.Clock
	start time.Time
	alarm clock.Timer
	last  time.Duration // when the scheduler was told, since start
	quiet time.Duration // until when it need not be told, since start
}

// newAnnouncer returns an announcer that tells of the first wait.
func newAnnouncer(c clock.Clock) *announcer {
	return &announcer{clock: c, start: c.Now(), alarm: c.NewStopped(func() {}),
		last: -2 * quietFor}
}

// announce reports whether the scheduler is to be told of the wait that begins. Waits that are far
// apart it is always told of, and no timer runs.
func (a *announcer) announce() bool {
	now := a.clock.Since(a.start)
	if now < a.quiet {
		return false
	}
	if now-a.last < 2*quietFor {
		a.alarm.Reset(2 * quietFor) // before the monitor wakes and looks when it has to do so again
		a.quiet = now + quietFor
	}
	a.last = now
	return true
}

// stop stops the timer.
func (a *announcer) stop() { a.alarm.Stop() }
