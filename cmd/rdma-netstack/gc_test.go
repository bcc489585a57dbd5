package main

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"
)

// currentGCPercent reads the percentage without changing it.
func currentGCPercent() int {
	s := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	metrics.Read(s)
	return int(s[0].Value.Uint64())
}

// collectUntil collects garbage until the percentage is want, for 10 s at most.
func collectUntil(t *testing.T, want int) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); currentGCPercent() != want; runtime.GC() {
		if time.Now().After(end) {
			t.Fatalf("with %d MiB in use the percentage is %d, want %d",
				liveHeap()>>20, currentGCPercent(), want)
		}
	}
}

func TestSetGCPercent(t *testing.T) {
	before := debug.SetGCPercent(77)
	defer debug.SetGCPercent(before)
	setGCPercent(t.Context(), "50")
	if got := currentGCPercent(); got != 77 {
		t.Errorf("GOGC=50: set to %d all the same", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	setGCPercent(ctx, "")
	collectUntil(t, gcPercent)
	large := make([]byte, 4*gcHeadroom)
	collectUntil(t, minGCPercent)
	runtime.KeepAlive(large)
	collectUntil(t, gcPercent)
}

func TestGCPercentFor(t *testing.T) {
	for _, tt := range []struct {
		name string
		live uint64 // MiB
		want int
	}{
		{"nothing yet", 0, 200},
		{"small", 5, 200},
		{"the headroom is 200 %", 16, 200},
		{"the headroom is less", 20, 160},
		{"the headroom is 100 %", 32, 100},
		{"large", 4096, 100},
	} {
		if got := gcPercentFor(tt.live << 20); got != tt.want {
			t.Errorf("%s: %d MiB in use: %d %%, want %d %%", tt.name, tt.live, got, tt.want)
		}
	}
}
