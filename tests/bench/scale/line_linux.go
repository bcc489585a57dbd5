package main

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// trips is how often the cache line goes there and back.
const trips = 20000

// lineTime is how long a cache line takes from the first processor of the process to the second
// and back, in ns: 0 with one processor. On a virtual machine it changes as the host moves
// processors.
func lineTime() float64 {
	var all unix.CPUSet
	if unix.SchedGetaffinity(0, &all) != nil || all.Count() < 2 {
		return 0
	}
	var cpus []int
	for cpu := 0; len(cpus) < 2; cpu++ {
		if all.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	var turn struct {
		_ [128]byte
		n atomic.Uint64 // even: the first processor's turn
		_ [128]byte
	}
	var both sync.WaitGroup
	var took time.Duration
	for side, cpu := range cpus {
		both.Go(func() {
			runtime.LockOSThread() // and end the thread with the goroutine
			var one unix.CPUSet
			one.Set(cpu)
			_ = unix.SchedSetaffinity(0, &one)
			began := time.Now()
			for i := uint64(side); i < 2*trips; i += 2 {
				for turn.n.Load() != i {
				}
				turn.n.Store(i + 1)
			}
			if side == 0 {
				took = time.Since(began)
			}
		})
	}
	both.Wait()
	return float64(took.Nanoseconds()) / trips
}
