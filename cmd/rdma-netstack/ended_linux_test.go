package main

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// ended waits until a process, not necessarily a child, has ended.
func ended(pid int, patience time.Duration) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err == unix.ESRCH {
		return nil
	}
	if err != nil {
		return fmt.Errorf("watch process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}},
		int(patience.Milliseconds()))
	for err == unix.EINTR {
		n, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}},
			int(patience.Milliseconds()))
	}
	if n == 0 {
		cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		return fmt.Errorf("process %d still runs: %q", pid, cmdline)
	}
	return err
}
