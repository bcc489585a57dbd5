package rig

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Waiting returns a function that tells for how long since then a processor of the guest has had
// something to do and none of this machine's processors: for the longest of QEMU's threads. It
// tells 0 where the system does not say, and once QEMU has ended.
func (vm *VM) Waiting() (since func() time.Duration) {
	return waitingOf(fmt.Sprintf("/proc/%d/task", vm.cmd.Process.Pid))
}

// waitingOf does what Waiting does for the threads in a directory as /proc/PID/task.
func waitingOf(tasks string) (since func() time.Duration) {
	before := threadWaits(tasks)
	return func() (longest time.Duration) {
		for thread, waited := range threadWaits(tasks) {
			longest = max(longest, waited-before[thread])
		}
		return longest
	}
}

// threadWaits reads for how long each thread has waited on a run queue: the second number of its
// schedstat, in ns (linux Documentation/scheduler/sched-stats.rst).
func threadWaits(tasks string) map[string]time.Duration {
	waits := map[string]time.Duration{}
	files, _ := filepath.Glob(filepath.Join(tasks, "*", "schedstat")) // fails for patterns only
	for _, file := range files {
		var ran, waited int64
		b, err := os.ReadFile(file) // fails for a thread that has ended
		if err != nil {
			continue
		}
		if _, err := fmt.Sscan(string(b), &ran, &waited); err == nil {
			waits[file] = time.Duration(waited)
		}
	}
	return waits
}
