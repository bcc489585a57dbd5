//go:build !race

package sim

import (
	"runtime"
	"testing"
)

// TestRepeats: the same seed sends the same frames at the same times again. The race detector has
// goroutines run in random order.
func TestRepeats(t *testing.T) {
	alone(t)
	for seed := range seeds(t) {
		a, b := Run(NewPlan(seed)), Run(NewPlan(seed))
		if a.Trace != b.Trace || a.Virtual != b.Virtual {
			t.Errorf("seed %d: trace %016x after %v, then %016x after %v", seed, a.Trace, a.Virtual,
				b.Trace, b.Virtual)
		}
		runtime.GC()
	}
}
