// Package netclock has netstack go by a clock of ours.
package netclock

import (
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/rdma-netstack/rdma-netstack/clock"
)

// New is c for netstack: its own if c is the system's.
func New(c clock.Clock) tcpip.Clock {
	if !c.Virtual() {
		return tcpip.NewStdClock()
	}
	return virtual{c, c.Now().Add(-time.Second)}
}

// virtual is a clock that is not the system's. Its monotonic time is never 0, which netstack
// takes for no time.
type virtual struct {
	clock.Clock
	start time.Time // of the monotonic time
}

// NowMonotonic implements tcpip.Clock.
func (c virtual) NowMonotonic() (now tcpip.MonotonicTime) { return now.Add(c.Since(c.start)) }

// AfterFunc implements tcpip.Clock.
func (c virtual) AfterFunc(d time.Duration, f func()) tcpip.Timer {
	return timer{c.Clock.AfterFunc(d, f)}
}

// timer is a timer of a virtual.
type timer struct{ clock.Timer }

// Reset implements tcpip.Timer.
func (t timer) Reset(d time.Duration) { t.Timer.Reset(d) }
