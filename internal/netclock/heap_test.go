package netclock

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestHeap: whatever is added and removed, no timer is behind one that expires later, and each
// knows its place.
func TestHeap(t *testing.T) {
	draw := rand.New(rand.NewPCG(3, 4))
	h := &timerHeap{clock: newSystem(nil), at: never}
	timers := make([]timer, 200)
	for i := range timers {
		timers[i] = timer{of: h, place: unset}
	}
	set := 0
	for range 20000 {
		x := &timers[draw.IntN(len(timers))]
		if h.removeTimer(x) {
			set--
		}
		if x.place != unset {
			t.Fatal("a timer that is removed has a place")
		}
		if draw.IntN(3) > 0 {
			h.addTimer(entry{time.Duration(draw.IntN(1000)), x})
			set++
		}
		for i, e := range h.entries {
			if int(e.place) != i || i > 0 && e.at < h.entries[(i-1)/4].at {
				t.Fatalf("entry %d of %d: %v, its place is %d", i, len(h.entries), e.at, e.place)
			}
		}
		if len(h.entries) != set {
			t.Fatalf("%d entries, want %d", len(h.entries), set)
		}
	}
}
