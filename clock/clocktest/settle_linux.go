package clocktest

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
)

// callWatch tells system calls that wait from those that work.
type callWatch struct{}

// allAsleep reports whether every thread but the caller's sleeps. One in a call that computes, or
// waits for a processor, runs by proc_pid_stat(5).
func (callWatch) allAsleep() bool {
	const tasks = "/proc/self/task"
	threads, err := os.ReadDir(tasks)
	if err != nil {
		return true
	}
	self := strconv.Itoa(syscall.Gettid())
	for _, t := range threads {
		if t.Name() == self {
			continue
		}
		stat, err := os.ReadFile(tasks + "/" + t.Name() + "/stat")
		if err != nil {
			continue // it has ended
		}
		// the state is behind the name, which is in parentheses and may have some in it
		if _, state, _ := bytes.Cut(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" ")); len(
			state) > 0 && (state[0] == 'R' || state[0] == 'D') {
			return false
		}
	}
	return true
}
