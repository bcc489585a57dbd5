package dv

import (
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
)

const (
	// More than maxConsecutiveResets resets in a row, over more than consecutiveResetsTime and
	// without a good packet between them, end the device.
	maxConsecutiveResets  = 16
	consecutiveResetsTime = 30 * time.Second

	// The first promptResets in a row are done at once, each further one after twice the pause of
	// the one before.
	promptResets  = 4
	firstPause    = time.Millisecond
	longestPause  = 100 * time.Millisecond
	resetLogPause = time.Second
)

// recovery bounds what resets of one queue take: the kernel's time, and lines of log. It is the
// owner's.
type recovery struct {
	now               func() time.Time
	consecutiveResets int       // resets since the last good packet
	since             time.Time // the first of these
	next              time.Time // no reset before; zero: at any time
	timed             time.Time // the value of next that a timer is set for

	dumped   time.Time // the last dump
	logged   time.Time // the last line
	unlogged int       // resets since
	cause    string    // of the last one
	pending  string    // why a reset was put off
}

func newRecovery(c clock.Clock) recovery { return recovery{now: c.Now} }

// pauseBeforeReset returns how long the next reset is to be put off.
func (r *recovery) pauseBeforeReset() time.Duration {
	if r.next.IsZero() {
		return 0
	}
	return max(0, r.next.Sub(r.now()))
}

// countReset counts a reset, and reports whether there is hope.
func (r *recovery) countReset(cause string) bool {
	now := r.now()
	r.unlogged++
	r.cause = cause
	if r.consecutiveResets == 0 {
		r.since = now
	}
	r.consecutiveResets++
	if r.consecutiveResets >= promptResets {
		r.next = now.Add(min(firstPause<<min(r.consecutiveResets-promptResets, 16), longestPause))
	}
	return r.consecutiveResets <= maxConsecutiveResets || now.Sub(r.since) <= consecutiveResetsTime
}

// timedOut notes a reset that no error asked for: the other end of the wire may hold the port back
// for as long as it likes, so that says nothing about the queue.
func (r *recovery) timedOut(cause string) {
	r.unlogged++
	r.cause = cause
}

// timerForReset returns for how long a timer is to be set, so that the reset which is put off is
// done; 0 if there is one.
func (r *recovery) timerForReset() time.Duration {
	if r.timed.Equal(r.next) {
		return 0
	}
	r.timed = r.next
	return r.pauseBeforeReset()
}

// takePending says why a reset was put off, or what is known of one that another goroutine asked
// for.
func (r *recovery) takePending() string {
	cause := r.pending
	if r.pending = ""; cause == "" {
		return "reported by the device"
	}
	return cause
}

// endResetRow ends a row of resets: something was sent or received.
func (r *recovery) endResetRow() {
	if r.consecutiveResets > 0 {
		r.consecutiveResets, r.next = 0, time.Time{}
	}
}

// dumpDue reports whether the last dump that it was asked about is a second old, or there was none.
func (r *recovery) dumpDue() bool {
	now := r.now()
	if !r.dumped.IsZero() && now.Sub(r.dumped) < resetLogPause {
		return false
	}
	r.dumped = now
	return true
}

// owesLogLine reports whether the reset just begun is the first since the last line of log that has
// none: a timer is to be set.
func (r *recovery) owesLogLine() bool { return r.unlogged == 1 }

// resetsToLog returns how many resets a line of log is due for, 0 if none is: there is one per
// second at most.
func (r *recovery) resetsToLog() int {
	if r.unlogged == 0 {
		return 0
	}
	now := r.now()
	if !r.logged.IsZero() && now.Sub(r.logged) < resetLogPause {
		return 0
	}
	n := r.unlogged
	r.logged, r.unlogged = now, 0
	return n
}
