package clock_test

import (
	"context"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
)

// TestSystem: the zero clock is the system's, down to the types of what it makes.
func TestSystem(t *testing.T) {
	var c clock.Clock
	before := time.Now()
	now := c.Now()
	if c.Virtual() || now.Before(before) || c.Since(before) < 0 || c.Until(before) > 0 {
		t.Errorf("%v is before %v, or virtual", now, before)
	}
	ran := make(chan struct{})
	if timer, ok := c.AfterFunc(0, func() { close(ran) }).(*time.Timer); !ok {
		t.Errorf("a timer is a %T", timer)
	}
	<-ran
	<-c.NewTimer(time.Microsecond).C
	if err := c.Sleep(t.Context(), time.Microsecond); err != nil {
		t.Error(err)
	}
	ctx, cancel := c.WithTimeout(t.Context(), time.Microsecond)
	defer cancel()
	if <-ctx.Done(); ctx.Err() != context.DeadlineExceeded {
		t.Error(ctx.Err())
	}
}

// TestSystemAllocations: asking the time allocates nothing, and a timer only itself.
func TestSystemAllocations(t *testing.T) {
	var c clock.Clock
	start := c.Now()
	timer := c.NewStopped(func() {})
	for name, tt := range map[string]struct {
		most float64
		do   func()
	}{
		"Now":      {0, func() { start = c.Now() }},
		"Since":    {0, func() { c.Since(start) }},
		"Until":    {0, func() { c.Until(start) }},
		"Reset":    {0, func() { timer.Reset(time.Hour) }},
		"NewTimer": {3, func() { c.NewTimer(time.Hour).Stop() }}, // a channel, its buffer, a timer
	} {
		if n := testing.AllocsPerRun(100, tt.do); n > tt.most {
			t.Errorf("%s allocates %v times, want %v", name, n, tt.most)
		}
	}
}

// TestSleep: a virtual sleep lasts until the clock is advanced, or its context ends.
func TestSleep(t *testing.T) {
	virtual := clocktest.New()
	c := virtual.Clock()
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan error)
	sleep := func() { got <- c.Sleep(ctx, time.Minute) }
	go sleep()
	began := c.Now()
	for len(got) == 0 && virtual.Timers() == 0 {
		clocktest.Settle()
	}
	virtual.Step()
	if err := <-got; err != nil || c.Since(began) != time.Minute || !c.Virtual() {
		t.Errorf("slept %v with error %v", c.Since(began), err)
	}
	go sleep()
	cancel()
	if err := <-got; err != context.Canceled || virtual.Timers() != 0 {
		t.Errorf("error %v, with %d timers left", err, virtual.Timers())
	}
}

func BenchmarkNow(b *testing.B) {
	var c clock.Clock
	var start time.Time
	b.Run("time", func(b *testing.B) {
		for b.Loop() {
			start = time.Now()
		}
	})
	b.Run("clock", func(b *testing.B) {
		for b.Loop() {
			start = c.Now()
		}
	})
	b.Run("time since", func(b *testing.B) {
		for b.Loop() {
			time.Since(start)
		}
	})
	b.Run("clock since", func(b *testing.B) {
		for b.Loop() {
			c.Since(start)
		}
	})
}
