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

// threadWaits reads for how long each thread has waited on a run queue.
func threadWaits(tasks string) map[string]time.Duration {
	waits := map[string]time.Duration{}
	threads, _ := filepath.Glob(filepath.Join(tasks, "*")) // fails for wrong patterns only
	for _, thread := range threads {
		if _, waited, err := threadTimes(thread); err == nil { // fails for one that has ended
			waits[thread] = waited
		}
	}
	return waits
}

// threadTimes reads for how long a thread ran and waited on a run queue: the first two numbers of
// its schedstat, in ns (linux Documentation/scheduler/sched-stats.rst).
func threadTimes(thread string) (ran, waited time.Duration, err error) {
	b, err := os.ReadFile(filepath.Join(thread, "schedstat"))
	if err != nil {
		return 0, 0, err
	}
	_, err = fmt.Sscan(string(b), (*int64)(&ran), (*int64)(&waited))
	return ran, waited, err
}
