package roads

import (
	"slices"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
)

// travel sends so many frames of size bytes, every, and returns when each arrives and how often.
func travel(w *Way, frames, size int, every time.Duration) (at []time.Duration, n []int) {
	for i := range frames {
		a, copies := w.Take(time.Duration(i)*every, make([]byte, size))
		at, n = append(at, a), append(n, copies)
	}
	return at, n
}

// TestWay: what a road does to frames is what it says, and follows from the seed.
func TestWay(t *testing.T) {
	const frames, ms = 100000, time.Millisecond
	r := Road{Delay: 10 * ms, Late: 0.05, LateBy: 5 * ms, Loss: 0.01, Dup: 0.02}
	a, b := NewWay(r, 1, 0), NewWay(r, 1, 0)
	at, n := travel(a, frames, 1000, time.Microsecond)
	again, _ := travel(b, frames, 1000, time.Microsecond)
	near := func(what string, is int, share float64) {
		if want := share * frames; float64(is) < want*0.9 || float64(is) > want*1.1 {
			t.Errorf("%d of %d frames are %s, want about %v", is, frames, what, want)
		}
	}
	near("lost", a.Lost, r.Loss)
	near("late", a.Counts.Late, r.Late)
	near("there twice", a.Twice, r.Dup)
	for i, when := range at {
		if when != again[i] {
			t.Fatalf("frame %d arrives at %v and at %v", i, when, again[i])
		}
		if late := when - time.Duration(i)*time.Microsecond - r.Delay; n[i] > 0 &&
			(late < 0 || late >= r.LateBy) {
			t.Fatalf("frame %d is late by %v", i, late)
		}
	}
	other, _ := travel(NewWay(r, 2, 0), frames, 1000, time.Microsecond)
	if slices.Equal(other, at) {
		t.Error("another seed makes no difference")
	}
}

// TestBottleneck: frames leave at the rate, as many wait as the queue holds, and the others are
// lost.
func TestBottleneck(t *testing.T) {
	w := NewWay(Road{Rate: 1e6, Queue: 10e3}, 1, 0)
	at, _ := travel(w, 100, 1000-framing, 0)
	if kept := 100 - w.Full; kept != 11 || at[kept-1] != 11*time.Millisecond {
		t.Errorf("%d frames are kept, the last until %v", kept, at[kept-1])
	}
}

// TestBursts: losses come in bursts.
func TestBursts(t *testing.T) {
	w := NewWay(Road{Burst: 0.001, BurstLen: 10}, 1, 0)
	_, n := travel(w, 100000, 1000, 0)
	for i, run := 0, 0; i < len(n); i++ {
		if n[i] == 0 {
			run++
			continue
		}
		if run%10 != 0 {
			t.Fatalf("%d frames are lost before frame %d", run, i)
		}
		run = 0
	}
	if w.Lost < 700 || w.Lost > 1300 {
		t.Errorf("%d are lost", w.Lost)
	}
}

// TestPauses: nothing arrives in a pause.
func TestPauses(t *testing.T) {
	const ms = time.Millisecond
	w := NewWay(Road{Pause: 15 * ms, Every: 97 * ms}, 3, 0)
	at, _ := travel(w, 10000, 1000, 100*time.Microsecond)
	longest := time.Duration(0)
	for i := 1; i < len(at); i++ {
		longest = max(longest, at[i]-at[i-1])
	}
	if longest < 14*ms || longest > 16*ms {
		t.Errorf("the longest time without a frame is %v", longest)
	}
}

// TestFared: a relay counts what the road has lost, and knows by how much frames were late because
// it was run late.
func TestFared(t *testing.T) {
	const ms = time.Millisecond
	near, a := wire.Pair()
	far, b := wire.Pair()
	defer near.Close()
	defer far.Close()
	now, runs := time.Duration(0), []func(){}
	r, err := NewRelay(a, b, func() time.Duration { return now },
		func(f func()) func(time.Duration) {
			runs = append(runs, f)
			return func(time.Duration) {}
		})
	must(t, err)
	must(t, near.Start(func([]frame.Frame) {}))
	must(t, far.Start(func([]frame.Frame) {}))
	way := func() *Way { return NewWay(Road{Delay: 10 * ms, Rate: 1e6, Queue: 3000}, 1, 0) }
	r.Travel([2]*Way{way(), way()})
	for range 10 {
		_, err := near.Send([]frame.Frame{{Data: make([]byte, 1000-framing)}})
		must(t, err)
	}
	now = 18 * ms // the first of four was to come after 11
	for _, run := range runs {
		run()
	}
	if of, lag := r.Fared(); of[0].Full != 6 || of[1].Frames != 0 || lag != 7*ms {
		t.Errorf("%+v, %v late", of, lag)
	}
	r.Travel([2]*Way{way(), way()})
	if of, lag := r.Fared(); of[0].Frames != 0 || lag != 0 {
		t.Errorf("%+v, %v late on a new road", of, lag)
	}
}
