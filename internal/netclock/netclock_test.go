package netclock_test

import (
	"fmt"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
	"github.com/rdma-netstack/rdma-netstack/internal/netclock"
)

// TestSystem: the system's clock is netstack's own, with nothing between.
func TestSystem(t *testing.T) {
	got, want := netclock.New(clock.Clock{}), tcpip.NewStdClock()
	if fmt.Sprintf("%T", got) != fmt.Sprintf("%T", want) {
		t.Errorf("it is a %T, not a %T", got, want)
	}
}

// TestVirtual: both times of a virtual clock go on together, and its timers stop and are set again.
func TestVirtual(t *testing.T) {
	virtual := clocktest.New()
	c := netclock.New(virtual.Clock())
	wall, monotonic := c.Now(), c.NowMonotonic()
	if monotonic == (tcpip.MonotonicTime{}) {
		t.Error("the monotonic time is 0")
	}
	ran := make(chan struct{}, 1)
	timer := c.AfterFunc(time.Second, func() { ran <- struct{}{} })
	timer.Reset(time.Minute)
	virtual.Step()
	<-ran
	if w, m := c.Now().Sub(wall), c.NowMonotonic().Sub(monotonic); w != time.Minute || m != w {
		t.Errorf("%v and %v have passed, want a minute", w, m)
	}
	timer.Reset(time.Hour)
	if !timer.Stop() || timer.Stop() || virtual.Timers() != 0 {
		t.Error("it was not set, or not stopped")
	}
}
