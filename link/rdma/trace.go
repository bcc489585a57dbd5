package rdma

import (
	"context"
	"runtime/pprof"
	"runtime/trace"
	"strconv"
)

// Regions of an execution trace (runtime/trace). A worker is in regionPoll while it looks at its
// ring, in regionDeliver within that, and in none while it sleeps; whoever sends is in
// regionTransmit, a worker that acknowledges within regionDeliver. While no trace is taken a region
// costs one load.
const (
	regionPoll     = "poll"
	regionDeliver  = "deliver"
	regionTransmit = "transmit"
)

// region begins a region; nil while no trace is taken.
func region(name string) *trace.Region {
	if !trace.IsEnabled() {
		return nil
	}
	return trace.StartRegion(context.Background(), name)
}

// endRegion ends what region began, which may be nil.
func endRegion(r *trace.Region) {
	if r != nil {
		r.End()
	}
}

// runLabelled is run with labels for CPU profiles and lists of goroutines: device and queue.
func (w *worker) runLabelled() {
	labels := pprof.Labels("device", w.group.queues.Name(),
		"queue", "rx"+strconv.Itoa(w.q.Index()))
	pprof.Do(context.Background(), labels, func(context.Context) { w.run() })
}
