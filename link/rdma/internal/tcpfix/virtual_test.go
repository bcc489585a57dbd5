package tcpfix

import (
	"container/heap"
	"runtime"
	"runtime/metrics"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// virtualClock is a tcpip.Clock whose time advances only when step is called.
type virtualClock struct {
	mu     sync.Mutex
	now    time.Duration
	timers timerHeap
	turn   int // orders timers of the same time by when they were set
}

// virtualTimer is a timer of a virtualClock.
type virtualTimer struct {
	clock *virtualClock
	f     func()
	at    time.Duration
	turn  int
	index int // in the heap; negative: not set
}

type timerHeap []*virtualTimer

func (h timerHeap) Len() int { return len(h) }
func (h timerHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].turn < h[j].turn
}
func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *timerHeap) Push(x any) {
	t := x.(*virtualTimer)
	t.index = len(*h)
	*h = append(*h, t)
}
func (h *timerHeap) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	(*h)[last], *h = nil, (*h)[:last]
	t.index = -1
	return t
}

// since is the time now.
func (c *virtualClock) since() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *virtualClock) Now() time.Time { return time.Unix(1, 0).Add(c.since()) }

func (c *virtualClock) NowMonotonic() tcpip.MonotonicTime {
	var start tcpip.MonotonicTime
	return start.Add(c.since())
}

func (c *virtualClock) AfterFunc(d time.Duration, f func()) tcpip.Timer {
	t := &virtualTimer{clock: c, f: f, index: -1}
	t.Reset(d)
	return t
}

func (t *virtualTimer) Stop() bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	return t.remove()
}

// remove is called with the clock's mutex held.
func (t *virtualTimer) remove() bool {
	if t.index < 0 {
		return false
	}
	heap.Remove(&t.clock.timers, t.index)
	return true
}

func (t *virtualTimer) Reset(d time.Duration) {
	c := t.clock
	c.mu.Lock()
	defer c.mu.Unlock()
	t.remove()
	c.turn++
	t.at, t.turn = c.now+max(d, 0), c.turn
	heap.Push(&c.timers, t)
}

// step moves the time to the next timer and runs that; false: there is none.
func (c *virtualClock) step() bool {
	c.mu.Lock()
	if len(c.timers) == 0 {
		c.mu.Unlock()
		return false
	}
	t := heap.Pop(&c.timers).(*virtualTimer)
	c.now = max(c.now, t.at)
	c.mu.Unlock()
	t.f()
	return true
}

// settler waits until all other goroutines wait. With one processor the actions of netstack's
// goroutines then depend on their input only.
type settler []metrics.Sample

func newSettler() settler {
	return settler{{Name: "/sched/goroutines/runnable:goroutines"},
		{Name: "/sched/goroutines/running:goroutines"}}
}

func (s settler) settle() {
	for {
		runtime.Gosched()
		metrics.Read(s)
		if s[0].Value.Uint64() == 0 && s[1].Value.Uint64() <= 1 {
			return
		}
	}
}

// patience is a clock whose timers of 1 to 10 ms run for 10 ms, as in package stack.
type patience struct{ *virtualClock }

func (c patience) AfterFunc(d time.Duration, f func()) tcpip.Timer {
	t := &virtualTimer{clock: c.virtualClock, f: f, index: -1}
	p := patientTimer{t}
	p.Reset(d)
	return p
}

type patientTimer struct{ *virtualTimer }

func (t patientTimer) Reset(d time.Duration) {
	if d >= time.Millisecond {
		d = max(d, 10*time.Millisecond)
	}
	t.virtualTimer.Reset(d)
}
