// Package netclock has netstack go by a clock of ours.
package netclock

import (
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/rdma-netstack/rdma-netstack/clock"
)

// New is c for netstack. A timer that netstack sets for d runs for lasts(d); nil: for d.
func New(c clock.Clock, lasts func(d time.Duration) time.Duration) tcpip.Clock {
	if lasts == nil {
		lasts = func(d time.Duration) time.Duration { return d }
	}
	if !c.Virtual() {
		return newSystem(lasts)
	}
	return &virtual{c, c.Now().Add(-time.Second), lasts}
}

// virtual wraps a clock that is not the system's. Its monotonic time is never 0, which netstack
// takes for no time.
type virtual struct {
	clock.Clock
	start time.Time // of the monotonic time
	lasts func(time.Duration) time.Duration
}

// NowMonotonic implements tcpip.Clock.
func (c *virtual) NowMonotonic() (now tcpip.MonotonicTime) { return now.Add(c.Since(c.start)) }

// AfterFunc implements tcpip.Clock.
func (c *virtual) AfterFunc(d time.Duration, f func()) tcpip.Timer {
	return virtualTimer{c.Clock.AfterFunc(c.lasts(d), f), c}
}

// virtualTimer describes a timer of a virtual.
type virtualTimer struct {
	clock.Timer
	of *virtual
}

// Reset implements tcpip.Timer.
func (t virtualTimer) Reset(d time.Duration) { t.Timer.Reset(t.of.lasts(d)) }
