package rdma

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// shortestHold and longestHold are how long the pressure of a flood is held: twice as long each
	// time that it comes back soon.
	shortestHold = time.Second
	longestHold  = 8 * time.Second
)

// pressureHold keeps the pressure up for a while after it has fallen. What the stack is given of a
// flood it works off as fast as it can, to the last segment, and the processor's time goes there:
// on a busy machine the NIC, or the kernel behind it, then drops frames of everybody. So a flood is
// let in for as long as it takes to show, and then for a small part of the time.
type pressureHold struct {
	now     func() time.Time
	holding atomic.Bool // held is not pressureNone

	mu    sync.Mutex    // guards what follows
	held  pressure      // pressureHigh at most
	until time.Time     // when it ends or ended
	time  time.Duration // how long it is held after the pressure was as high
}

// apply takes note of the pressure as measured, and returns what it counts as.
func (h *pressureHold) apply(p pressure) pressure {
	if p == pressureNone && !h.holding.Load() {
		return p
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	if !now.Before(h.until) {
		h.held = pressureNone
	}
	if level := min(p, pressureHigh); level != pressureNone && level >= h.held {
		if h.held == pressureNone {
			h.begin(now)
		}
		h.held, h.until = level, now.Add(h.time)
	}
	h.holding.Store(h.held != pressureNone)
	return max(p, h.held)
}

// begin chooses for how long a flood that begins is held.
func (h *pressureHold) begin(now time.Time) {
	if now.Sub(h.until) < 2*h.time {
		h.time = min(2*h.time, longestHold)
	} else {
		h.time = shortestHold
	}
}
