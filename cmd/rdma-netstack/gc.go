package main

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// Most that a server's heap may grow by between two garbage collections. With Go's default of 100 %
// of the heap in use, collections take 9 % of an HTTP request's CPU; 400 % takes no less than 200
// %. But at 200 % a flood takes three times the memory that it makes the stack hold. So where 200 %
// is more than gcHeadroom the percentage is lower, and Go's default at least.
const (
	gcPercent    = 200
	minGCPercent = 100
	gcHeadroom   = 32 << 20 // bytes
)

// setGCPercent sets the percentage after each collection until ctx ends, unless the user has set
// GOGC in the environment.
func setGCPercent(ctx context.Context, opinion string) {
	if opinion != "" {
		return
	}
	set := gcPercent
	debug.SetGCPercent(set)
	afterGC(ctx, func() {
		if percent := gcPercentFor(liveHeap()); percent != set {
			set = percent
			debug.SetGCPercent(set)
		}
	})
}

// gcPercentFor returns the percentage for a heap with live bytes in use.
func gcPercentFor(live uint64) int {
	return int(min(gcPercent, max(minGCPercent, gcHeadroom*100/max(live, 1))))
}

// liveHeap returns the number of bytes that the last collection found in use.
func liveHeap() uint64 {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	return live[0].Value.Uint64()
}

// gcMark becomes garbage at once. It contains pointers, because the runtime puts several small
// objects without any into one block, which is freed as a whole.
type gcMark struct{ _ [4]*byte }

// afterGC calls f soon after each collection until ctx ends, one call at a time.
func afterGC(ctx context.Context, f func()) {
	runtime.AddCleanup(&gcMark{}, func(ctx context.Context) {
		if ctx.Err() == nil {
			f()
			afterGC(ctx, f)
		}
	}, ctx)
}
