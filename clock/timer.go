package clock

import (
	"sync"
	"time"
)

// ChanTimer sends the time on C, as time.Timer does: when Stop or Reset
// returns, nothing of an earlier setting can be received any more.
type ChanTimer struct {
	C <-chan time.Time
	Timer
}

// NewTimer returns a timer that sends on its channel once d has passed.
func (c Clock) NewTimer(d time.Duration) ChanTimer {
	if c.source == nil {
		t := time.NewTimer(d)
		return ChanTimer{t.C, t}
	}
	t := &sending{source: c.source, c: make(chan time.Time, 1)}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.setTimer(d)
	return ChanTimer{t.c, t}
}

// sending holds the Timer of a ChanTimer that does not go by the system's clock.
type sending struct {
	source Source
	c      chan time.Time

	mu      sync.Mutex // guards what follows, and sending on c
	timer   Timer      // of the last setting
	setting uint64     // counts them
	running bool
}

// setTimer makes a setting. mu is held.
func (t *sending) setTimer(d time.Duration) {
	t.running = true
	t.setting++
	this := t.setting
	t.timer = t.source.AfterFunc(d, func() { t.sendIfCurrent(this) })
}

// sendIfCurrent sends, unless its setting has ended.
func (t *sending) sendIfCurrent(setting uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.running || t.setting != setting {
		return
	}
	t.running = false
	t.c <- t.source.Now() // what was sent before is taken out by end, or was received
}

// Stop implements Timer.
func (t *sending) Stop() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.endSetting()
}

// Reset implements Timer.
func (t *sending) Reset(d time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	was := t.endSetting()
	t.setTimer(d)
	return was
}

// endSetting forgets the setting, and what was sent for it. mu is held. A timer whose time nobody
// has received counts as running, as it does in package time.
func (t *sending) endSetting() (was bool) {
	t.timer.Stop()
	was, t.running = t.running, false
	select {
	case <-t.c:
		return true
	default:
		return was
	}
}
