package netclock

import (
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// system is the system's clock with timers of its own. Netstack keeps four timers for each
// connection, set or not, for as long as it lives: of package time they are 136 bytes each, here
// 32. Those that are set wait in heaps, each of which has one timer of package time.
type system struct {
	tcpip.Clock
	start  time.Time
	lasts  func(time.Duration) time.Duration
	heaps  []timerHeap
	timers atomic.Uint32 // made so far: they take the heaps in turn
}

// maxHeaps bounds the heaps: more processors than this seldom set timers at once.
const maxHeaps = 16

func newSystem(lasts func(time.Duration) time.Duration) *system {
	c := &system{Clock: tcpip.NewStdClock(), start: time.Now(), lasts: lasts,
		heaps: make([]timerHeap, min(runtime.GOMAXPROCS(0), maxHeaps))}
	for i := range c.heaps {
		c.heaps[i].clock, c.heaps[i].at = c, never
	}
	return c
}

// now returns the time of the timers.
func (c *system) now() time.Duration { return time.Since(c.start) }

// AfterFunc implements tcpip.Clock: f is called in a goroutine of its own.
func (c *system) AfterFunc(d time.Duration, f func()) tcpip.Timer {
	n := c.timers.Add(1)
	t := &timer{of: &c.heaps[n%uint32(len(c.heaps))], f: f, place: unset}
	t.Reset(d)
	return t
}

// timer describes a timer of a system. The mutex of its heap guards it.
type timer struct {
	of    *timerHeap
	f     func()
	place int32 // in the heap, or unset
}

const (
	unset = -1
	never = time.Duration(math.MaxInt64)
)

// Reset implements tcpip.Timer.
func (t *timer) Reset(d time.Duration) {
	h := t.of
	now := h.clock.now()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.removeTimer(t)
	h.addTimer(entry{now + min(h.clock.lasts(d), never-now), t})
	h.armFirst(now)
}

// Stop implements tcpip.Timer.
func (t *timer) Stop() bool {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	return t.of.removeTimer(t)
}

// timerHeap has timers that are set, the next to expire first: each entry is not later than its
// children, at four times its place and one to four more.
type timerHeap struct {
	clock *system

	mu      sync.Mutex // guards what follows, and the heap's timers
	entries []entry
	wake    *time.Timer   // calls expire; nil: not needed yet
	at      time.Duration // when wake does, at the latest; never: it is not set
	_       [64]byte      // the next one's mutex is on another cache line
}

type entry struct {
	at time.Duration // when it expires
	*timer
}

// armFirst schedules expire for when the first timer does. mu is held.
func (h *timerHeap) armFirst(now time.Duration) {
	if len(h.entries) == 0 || h.entries[0].at >= h.at {
		return
	}
	h.at = h.entries[0].at
	if h.wake == nil {
		h.wake = time.AfterFunc(h.at-now, h.runExpired)
	} else {
		h.wake.Reset(h.at - now)
	}
}

// runExpired calls the functions of the timers that have expired, the last one itself: it has a
// goroutine of its own.
func (h *timerHeap) runExpired() {
	var last func()
	h.mu.Lock()
	now := h.clock.now()
	for h.at = never; len(h.entries) > 0 && h.entries[0].at <= now; {
		if last != nil {
			go last()
		}
		last = h.entries[0].f
		h.removeTimer(h.entries[0].timer)
	}
	h.armFirst(now)
	h.mu.Unlock()
	if last != nil {
		last()
	}
}

// addTimer puts a timer that is not set into the heap. mu is held, here and below.
func (h *timerHeap) addTimer(e entry) {
	h.entries = append(h.entries, e)
	h.siftUp(len(h.entries)-1, e)
}

// removeTimer takes a timer out, and reports whether it was set.
func (h *timerHeap) removeTimer(t *timer) bool {
	if t.place == unset {
		return false
	}
	i, n := int(t.place), len(h.entries)-1
	last := h.entries[n]
	h.entries[n] = entry{}
	h.entries = h.entries[:n]
	t.place = unset
	switch {
	case i == n:
	case i > 0 && last.at < h.entries[(i-1)/4].at:
		h.siftUp(i, last)
	default:
		h.siftDown(i, last)
	}
	return true
}

// siftUp finds the place of e, which may be i or nearer to the first.
func (h *timerHeap) siftUp(i int, e entry) {
	for i > 0 {
		parent := (i - 1) / 4
		if h.entries[parent].at <= e.at {
			break
		}
		h.putEntry(i, h.entries[parent])
		i = parent
	}
	h.putEntry(i, e)
}

// siftDown finds the place of e, which may be i or farther from the first.
func (h *timerHeap) siftDown(i int, e entry) {
	for {
		first := 4*i + 1
		if first >= len(h.entries) {
			break
		}
		least := first
		for c := first + 1; c < min(first+4, len(h.entries)); c++ {
			if h.entries[c].at < h.entries[least].at {
				least = c
			}
		}
		if e.at <= h.entries[least].at {
			break
		}
		h.putEntry(i, h.entries[least])
		i = least
	}
	h.putEntry(i, e)
}

func (h *timerHeap) putEntry(i int, e entry) {
	h.entries[i] = e
	e.place = int32(i)
}
