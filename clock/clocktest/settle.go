package clocktest

import (
	"runtime"
	"runtime/metrics"
	"time"
)

// Names of package runtime/metrics for how many goroutines can run, do, and are in system calls.
const (
	runnable = "/sched/goroutines/runnable:goroutines"
	running  = "/sched/goroutines/running:goroutines"
	notInGo  = "/sched/goroutines/not-in-go:goroutines"
)

// callLimit is how long Settle waits for system calls, of the system's time: what takes longer
// waits for something.
const callLimit = 20 * time.Millisecond

// patientLooks is after how many looks Settle begins to sleep between them.
const patientLooks = 100

// settleLimit is how long Settle waits, of the system's time. A goroutine that the system does not
// let run counts as running.
const settleLimit = time.Second

// Settle returns when no goroutine but the caller's can run: each waits for a timer, for the
// network or for another. With runtime.GOMAXPROCS(1) that is exact, but for goroutines that wait
// for a descriptor, or for 20 ms in a system call: these count as waiting for good. With more
// processors a goroutine may be on its way from one to another, and Settle looks twice. It gives
// up after a second: tests that it is for do not run in parallel with others.
func Settle() {
	samples := []metrics.Sample{{Name: runnable}, {Name: running}, {Name: notInGo}}
	looks := 1
	if runtime.GOMAXPROCS(0) > 1 {
		looks = 2
	}
	began := time.Now()
	for quiet, busy := 0, 0; quiet < looks; {
		runtime.Gosched()
		metrics.Read(samples)
		if samples[0].Value.Uint64() == 0 && samples[1].Value.Uint64() <= 1 &&
			(samples[2].Value.Uint64() == 0 || time.Since(began) > callLimit) {
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
