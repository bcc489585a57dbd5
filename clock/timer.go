package clock

import (
	"sync"
	"time"
)

// ChanTimer is a timer that sends the time on C, as time.Timer does: when Stop or Reset returns,
// nothing of an earlier setting can be received any more.
type ChanTimer struct {
	C <-chan time.Time
	Timer
}

// NewTimer is a timer that sends on its channel once d has passed.
func (c Clock) NewTimer(d time.Duration) ChanTimer {
	if c.source == nil {
		t := time.NewTimer(d)
		return ChanTimer{t.C, t}
	}
	t := &sending{source: c.source, c: make(chan time.Time, 1)}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.set(d)
	t.timer = c.source.AfterFunc(d, t.expire)
	return ChanTimer{t.c, t}
}

// sending is the Timer of a ChanTimer that does not go by the system's clock.
type sending struct {
	source Source
	timer  Timer
	c      chan time.Time

	mu      sync.Mutex // guards what follows, and sending on c
	running bool
	due     time.Time
}

// set notes when to send. mu is held.
func (t *sending) set(d time.Duration) {
	t.running, t.due = true, t.source.Now().Add(max(d, 0))
}

// expire sends, unless it is called for a setting that has ended.
func (t *sending) expire() {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.source.Now()
	if !t.running || now.Before(t.due) {
		return
	}
	t.running = false
	select {
	case t.c <- now:
	default:
	}
}

// Stop implements Timer.
func (t *sending) Stop() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.end()
}

// Reset implements Timer.
func (t *sending) Reset(d time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	was := t.end()
	t.set(d)
	t.timer.Reset(d)
	return was
}

// end forgets the setting, and what was sent for it. mu is held. A timer whose time nobody has
// received counts as running, as it does in package time.
func (t *sending) end() (was bool) {
	t.timer.Stop()
	was, t.running = t.running, false
	select {
	case <-t.c:
		return true
	default:
		return was
	}
}
