package clock_test

import (
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
)

func TestAsleep(t *testing.T) {
	c := clocktest.New()
	a := clock.NewAsleep(c.Clock())
	want := func(d time.Duration) {
		t.Helper()
		if got := a.Total(); got != d {
			t.Errorf("asleep for %v, want %v", got, d)
		}
	}
	want(0)
	a.Begin()
	want(0)
	c.Advance(time.Second)
	want(time.Second) // in the middle of a wait
	a.End()
	c.Advance(time.Minute)
	want(time.Second) // awake
	a.Begin()
	a.End()
	want(time.Second)
	a.Begin()
	c.Advance(time.Hour)
	a.End()
	want(time.Hour + time.Second)
}

// TestAsleepNeverFalls reads while the goroutine goes to sleep and wakes up.
func TestAsleepNeverFalls(t *testing.T) {
	a := clock.NewAsleep(clock.Clock{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 10_000 {
			a.Begin()
			a.End()
		}
	}()
	for before := time.Duration(0); ; {
		now := a.Total()
		if now < before {
			t.Fatalf("asleep for %v after %v", now, before)
		}
		before = now
		select {
		case <-done:
			return
		default:
		}
	}
}
