package main

import (
	"bytes"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// quietMonitor gives the runtime's monitor thread the processor only when nobody wants it. That
// thread preempts goroutines that have run for 10 ms, which on a loaded machine are those whose
// thread had to wait for a processor: the order in which goroutines run then differs from run to
// run. The monitor is the second thread of a Go program (runtime.main).
func quietMonitor() {
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	var threads []int
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil {
			threads = append(threads, n)
		}
	}
	slices.Sort(threads)
	if len(threads) < 2 || threads[0] != os.Getpid() {
		return
	}
	idle := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}
	_ = unix.SchedSetAttr(threads[1], &idle, 0) // without it, runs repeat on an idle machine only
}

// processorTime is how much a process has used, 0 if that cannot be read.
func processorTime(pid int) time.Duration {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	// behind the name: proc_pid_stat(5) numbers them from 3 on
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	var ticks time.Duration
	for _, i := range []int{14, 15} {
		if i-3 >= len(fields) {
			return 0
		}
		n, err := strconv.ParseUint(string(fields[i-3]), 10, 63)
		if err != nil {
			return 0
		}
		ticks += time.Duration(n)
	}
	return ticks * time.Second / 100 // USER_HZ
}
