package sim

import (
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"testing"
)

// alone makes the test process one in which runs repeat.
func alone(t *testing.T) {
	processors, percent := runtime.GOMAXPROCS(1), debug.SetGCPercent(-1)
	t.Cleanup(func() {
		runtime.GOMAXPROCS(processors)
		debug.SetGCPercent(percent)
	})
}

// seeds is how many seeds to run: SIM_SEEDS, or a few.
func seeds(t *testing.T) uint64 {
	s := os.Getenv("SIM_SEEDS")
	if s == "" {
		return 8
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("SIM_SEEDS: %v", err)
	}
	return n
}

// TestKinds: some worlds of each rare kind break no invariant.
func TestKinds(t *testing.T) {
	alone(t)
	for _, kind := range []string{"fallback", "upgrades"} {
		t.Run(kind, func(t *testing.T) {
			for seed, left := uint64(0), seeds(t); left > 0; seed++ {
				p := NewPlan(seed)
				if !p.Has(kind) {
					continue
				}
				left--
				if r := Run(p); r.Err != nil {
					t.Errorf("go run ./tests/sim/run -seed %d: %v", seed, r.Err)
				}
				runtime.GC()
			}
		})
	}
}

// TestSeeds: no seed breaks an invariant. `make sim SEEDS=100000` runs more, on all processors.
func TestSeeds(t *testing.T) {
	alone(t)
	for seed := range seeds(t) {
		if r := Run(NewPlan(seed)); r.Err != nil {
			t.Errorf("go run ./tests/sim/run -seed %d: %v", seed, r.Err)
		}
		runtime.GC()
	}
}
