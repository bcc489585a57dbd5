package clocktest

import (
	"runtime"
	"runtime/metrics"
	"syscall"
	"time"
)

// Names of package runtime/metrics for how many goroutines can run, do, and are in system calls.
const (
	runnable = "/sched/goroutines/runnable:goroutines"
	running  = "/sched/goroutines/running:goroutines"
	notInGo  = "/sched/goroutines/not-in-go:goroutines"
)

// patientLooks is after how many looks Settle begins to sleep between them.
const patientLooks = 100

// workLimit says how much processor time the process may use while Settle waits. It is not the
// system's time: a process that gets no processor does nothing, and has not settled.
const workLimit = 60 * time.Second

// Settle returns when no goroutine but the caller's can run: each waits for a timer, for the
// network or for another. A goroutine that could run and has no processor can run, however long the
// system makes it wait for one. One in a system call counts as waiting for good if its thread
// sleeps, on Linux; elsewhere, if the call takes longer than 20 ms. With more than one processor a
// goroutine may be on its way from one to another, and Settle looks twice.
//
// It panics when the process has used a minute of processor time meanwhile: some goroutine never
// waits. Tests that it is for do not run in parallel with others.
func Settle() {
	samples := []metrics.Sample{{Name: runnable}, {Name: running}, {Name: notInGo}}
	looks := 1
	if runtime.GOMAXPROCS(0) > 1 {
		looks = 2
	}
	var calls callWatch
	began := time.Duration(-1)
	for quiet, busy := 0, 0; quiet < looks; {
		runtime.Gosched()
		metrics.Read(samples)
		if samples[0].Value.Uint64() == 0 && samples[1].Value.Uint64() <= 1 &&
			(samples[2].Value.Uint64() == 0 || calls.allAsleep()) {
			quiet++
			continue
		}
		quiet, busy = 0, busy+1
		if busy <= patientLooks {
			continue
		}
		if used := processorTime(); began < 0 {
			began = used
		} else if used-began > workLimit {
			panic("clocktest: a goroutine runs for ever: it neither waits nor ends")
		}
		time.Sleep(50 * time.Microsecond)
	}
}

// processorTime returns how much the process has used.
func processorTime() time.Duration {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
