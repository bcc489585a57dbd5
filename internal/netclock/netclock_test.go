package netclock_test

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
	"github.com/rdma-netstack/rdma-netstack/internal/netclock"
)

// later adds a minute.
func later(d time.Duration) time.Duration { return d + time.Minute }

// TestVirtual: both times of a virtual clock go on together, and its timers stop and are set again.
func TestVirtual(t *testing.T) {
	virtual := clocktest.New()
	c := netclock.New(virtual.Clock(), later)
	wall, monotonic := c.Now(), c.NowMonotonic()
	if monotonic == (tcpip.MonotonicTime{}) {
		t.Error("the monotonic time is 0")
	}
	ran := make(chan struct{}, 1)
	timer := c.AfterFunc(time.Second, func() { ran <- struct{}{} })
	timer.Reset(time.Minute)
	virtual.Step()
	<-ran
	if w, m := c.Now().Sub(wall), c.NowMonotonic().Sub(monotonic); w != 2*time.Minute || m != w {
		t.Errorf("%v and %v have passed, want two minutes", w, m)
	}
	timer.Reset(time.Hour)
	if !timer.Stop() || timer.Stop() || virtual.Timers() != 0 {
		t.Error("it was not set, or not stopped")
	}
}

// TestSystemTimers: of timers that are set, set again and stopped at random each that is set in the
// end expires once, not before its time, and no other.
func TestSystemTimers(t *testing.T) {
	const timers, spread = 2000, 50 * time.Millisecond
	c := netclock.New(clock.Clock{}, nil)
	draw := rand.New(rand.NewPCG(1, 2))
	var mu sync.Mutex
	ran, wrong := make([]int, timers), 0
	due := make([]tcpip.MonotonicTime, timers)
	all := make([]tcpip.Timer, timers)
	left := make(chan struct{}, timers)
	for i := range all {
		all[i] = c.AfterFunc(time.Hour, func() {
			mu.Lock()
			defer mu.Unlock()
			if ran[i]++; c.NowMonotonic().Before(due[i]) {
				wrong++
			}
			left <- struct{}{}
		})
	}
	want := make([]int, timers)
	for _, i := range draw.Perm(timers) {
		switch draw.IntN(4) {
		case 0:
			if !all[i].Stop() || all[i].Stop() {
				t.Errorf("timer %d was not set, or not stopped", i)
			}
			continue
		case 1:
			all[i].Reset(24 * time.Hour)
			continue
		}
		all[i].Reset(time.Minute)
		d := time.Duration(draw.Int64N(int64(spread)))
		mu.Lock()
		want[i], due[i] = 1, c.NowMonotonic().Add(d)
		mu.Unlock()
		all[i].Reset(d)
	}
	for range slices.Repeat([]int{1}, sum(want)) {
		<-left
	}
	for _, timer := range all {
		timer.Stop()
	}
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(ran, want) || wrong > 0 {
		t.Errorf("%d expired too early; %d expired, want %d", wrong, sum(ran), sum(want))
	}
}

func sum(counts []int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// TestLasts: a timer runs for as long as New's function says, when it is made and when it is set
// again, and for ever if that is longer than can be told.
func TestLasts(t *testing.T) {
	ran := make(chan time.Duration, 2)
	short := func(d time.Duration) time.Duration {
		if d == time.Hour {
			return time.Millisecond
		}
		return d
	}
	c := netclock.New(clock.Clock{}, short)
	timer := c.AfterFunc(time.Hour, func() { ran <- 1 })
	<-ran
	timer.Reset(time.Hour)
	<-ran
	timer.Reset(1<<63 - 1)
	if !timer.Stop() {
		t.Error("a timer for 292 years has expired")
	}
}

// TestTimersAreSmall: a timer that is not set takes no more than netstack's part of it would.
func TestTimersAreSmall(t *testing.T) {
	c := netclock.New(clock.Clock{}, nil)
	f := func() {}
	all := make([]tcpip.Timer, 0, 1000)
	r := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			timer := c.AfterFunc(time.Hour, f)
			timer.Stop()
			if len(all) < cap(all) {
				all = append(all, timer)
			}
		}
	})
	if r.AllocedBytesPerOp() > 40 {
		t.Errorf("a timer takes %d bytes, want 32 at most", r.AllocedBytesPerOp())
	}
}

// BenchmarkReset sets a timer for 10 ms among those of as many connections for 15 s.
func BenchmarkReset(b *testing.B) {
	c := netclock.New(clock.Clock{}, nil)
	keep := make([]tcpip.Timer, 50000)
	for i := range keep {
		keep[i] = c.AfterFunc(15*time.Second+time.Duration(i), func() {})
	}
	timer := c.AfterFunc(time.Hour, func() {})
	for b.Loop() {
		timer.Reset(10 * time.Millisecond)
	}
	for _, k := range keep {
		k.Stop()
	}
}
