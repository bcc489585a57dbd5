package tcp

import (
	"runtime"
	"runtime/metrics"
	"testing"
)

// quiet tells when every goroutine but the test's waits. With one processor what the others do then
// depends on their input only. Nothing here waits for a descriptor: the software NIC reports its
// events in queues.
type quiet []metrics.Sample

func newQuiet() (q quiet) {
	for _, name := range []string{"runnable", "running", "not-in-go"} {
		q = append(q, metrics.Sample{Name: "/sched/goroutines/" + name + ":goroutines"})
	}
	return q
}

// settle lets the others run for as long as one can. A goroutine that is returning from a system
// call can be missed once, as the numbers are not of one moment, but not twice: it waits for the
// processor that the test has.
func (q quiet) settle() {
	for looks := 0; looks < 2; {
		if looks == 0 {
			runtime.Gosched()
		}
		if looks++; !q.none() {
			looks = 0
		}
	}
}

// none reports whether no goroutine runs, or could, but the caller's.
func (q quiet) none() bool {
	metrics.Read(q)
	return q[0].Value.Uint64() == 0 && q[1].Value.Uint64() <= 1 && q[2].Value.Uint64() == 0
}

// oneProcessor makes runs reproducible.
func oneProcessor(t *testing.T) {
	before := runtime.GOMAXPROCS(1)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
}
