package clocktest

import (
	"runtime"
	"runtime/metrics"
	"time"
)

// Names of package runtime/metrics for how many goroutines can run, and do.
const (
	runnable = "/sched/goroutines/runnable:goroutines"
	running  = "/sched/goroutines/running:goroutines"
)

// patientLooks is after how many looks Settle begins to sleep between them.
const patientLooks = 100

// settleLimit is how long Settle waits, of the system's time: other tests may be running.
const settleLimit = 50 * time.Millisecond

// Settle returns when no goroutine but the caller's can run: each waits for a timer, for the
// network or for another. With runtime.GOMAXPROCS(1) that is exact, but for goroutines that wait
// for a descriptor or are in a system call: these count as waiting for good. With more processors
// a goroutine may be on its way from one to another, and Settle looks several times. It gives up
// after 50 ms, as others may be running that have nothing to do with the test.
func Settle() {
	samples := []metrics.Sample{{Name: runnable}, {Name: running}}
	looks := 1
	if runtime.GOMAXPROCS(0) > 1 {
		looks = 2
	}
	began := time.Now()
	for quiet, busy := 0, 0; quiet < looks; {
		runtime.Gosched()
		metrics.Read(samples)
		if samples[0].Value.Uint64() == 0 && samples[1].Value.Uint64() <= 1 {
			quiet++
			continue
		}
		quiet, busy = 0, busy+1
		if busy > patientLooks {
			if time.Since(began) > settleLimit {
				return
			}
			time.Sleep(50 * time.Microsecond)
		}
	}
}
