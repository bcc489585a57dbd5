package dv

import (
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
)

// wakeReason says what the owner of a receive queue is woken for.
type wakeReason uint8

const (
	wakeToReset  wakeReason = iota // a reset was put off
	wakeToReport                   // a line of log was put off
	wakeReasons
)

// wakeTimers wake the owner of a receive queue later, by one timer for each reason. They are the
// owner's, and those of who destroys the queue once the owner has ended.
type wakeTimers struct {
	clock  clock.Clock
	wake   func()
	timers [wakeReasons]clock.Timer // nil: not needed yet
}

// wakeAfter calls wake once pause has passed. An earlier call for the same reason is forgotten.
func (w *wakeTimers) wakeAfter(why wakeReason, pause time.Duration) {
	if t := w.timers[why]; t != nil {
		t.Reset(pause)
		return
	}
	w.timers[why] = w.clock.AfterFunc(pause, w.wake)
}

// stopAll stops all timers.
func (w *wakeTimers) stopAll() {
	for _, t := range w.timers {
		if t != nil {
			t.Stop()
		}
	}
}
