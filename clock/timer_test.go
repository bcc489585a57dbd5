package clock_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
)

// script is what one goroutine does with two timers, drawn by a seed, and what it sees. pass lets
// time go on and everything settle.
func script(c clock.Clock, pass func(time.Duration), seed uint64) (seen []string) {
	r := rand.New(rand.NewPCG(seed, 0))
	began := c.Now()
	note := func(what string, is any) {
		seen = append(seen, fmt.Sprint(c.Since(began), " ", what, " ", is))
	}
	// Timers expire between the steps, which are whole seconds apart.
	span := func() time.Duration { return time.Duration(r.IntN(6)-1)*time.Second + time.Second/3 }
	channel := c.NewTimer(span())
	var calls atomic.Int32
	function := c.AfterFunc(span(), func() { calls.Add(1) })
	pass(time.Second)
	for range 30 {
		switch r.IntN(6) {
		case 0:
			note("stop channel", channel.Stop())
		case 1:
			note("reset channel", channel.Reset(span()))
		case 2:
			note("stop function", function.Stop())
		case 3:
			note("reset function", function.Reset(span()))
		case 4:
			select {
			case at := <-channel.C:
				note("received", at.Sub(began))
			default:
				note("received", "nothing")
			}
		}
		pass(time.Duration(1+r.IntN(3)) * time.Second)
		note("calls", calls.Load())
	}
	channel.Stop()
	function.Stop()
	return seen
}

// TestLikeSystem has scripts of two timers run by the system's clock, in a bubble of package
// synctest, and by a virtual one. Both see the same.
func TestLikeSystem(t *testing.T) {
	for seed := range uint64(30) {
		var want []string
		synctest.Test(t, func(t *testing.T) {
			want = script(clock.Clock{}, func(d time.Duration) {
				time.Sleep(d)
				synctest.Wait()
			}, seed)
		})
		virtual := clocktest.New()
		got := script(virtual.Clock(), virtual.Advance, seed)
		if !slices.Equal(got, want) {
			t.Fatalf("seed %d: the virtual clock differs:\n%q\nthe system's:\n%q", seed, got, want)
		}
		if n := virtual.Timers(); n != 0 {
			t.Fatalf("seed %d: %d timers left", seed, n)
		}
	}
}

// TestLateExpiry: a timer that was set again while its function was on the way is not received
// early.
func TestLateExpiry(t *testing.T) {
	held := &holding{Clock: clocktest.New()}
	timer := clock.New(held).NewTimer(time.Second)
	held.Step()
	<-held.came // the function is on its way, and waits
	timer.Reset(time.Hour)
	held.late()
	select {
	case <-timer.C:
		t.Error("received an hour early")
	default:
	}
}

// holding is a clock whose first timer's function is called by the test.
type holding struct {
	*clocktest.Clock
	came chan struct{}
	late func()
}

func (h *holding) AfterFunc(d time.Duration, f func()) clock.Timer {
	if h.late != nil {
		return h.Clock.AfterFunc(d, f)
	}
	h.late, h.came = f, make(chan struct{}, 1)
	return h.Clock.AfterFunc(d, func() { h.came <- struct{}{} })
}
