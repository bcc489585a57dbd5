//go:build amd64 || arm64

package privileges

import (
	"errors"
	"fmt"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// Held lists the capabilities that are in effect for the calling thread.
func Held() (all []Capability, err error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return nil, fmt.Errorf("read capabilities: %w", err)
	}
	for c := range Capability(unix.CAP_LAST_CAP + 1) {
		if sets[c/32].Effective&(1<<(c%32)) != 0 {
			all = append(all, c)
		}
	}
	return all, nil
}

// Drop gives up all capabilities but those of keep that the process has, for all of its threads and
// for whatever it executes, and sets no_new_privs (prctl(2)). A process of root without
// capabilities reads what root's files and their permission bits let it, and nothing else. Without
// capabilities to drop it does the same. If it fails, some may be gone already.
func Drop(keep ...Capability) error {
	held, err := Held()
	if err != nil {
		return err
	}
	if err := noNewPrivileges(); err != nil {
		return err
	}
	if slices.Contains(held, unix.CAP_SETPCAP) {
		if err := dropBounds(keep); err != nil {
			return err
		}
	}
	err = onAllThreads(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0)
	if err != nil {
		return fmt.Errorf("clear the ambient capabilities: %w", err)
	}
	var kept uint64
	for _, c := range keep {
		if slices.Contains(held, c) {
			kept |= 1 << c
		}
	}
	if err := setCapabilities(kept); err != nil {
		return fmt.Errorf("set the capabilities to %#x: %w", kept, err)
	}
	return nil
}

// dropBounds takes what is not kept out of the bounding set, from which the file capabilities of
// executed programs are.
func dropBounds(keep []Capability) error {
	for c := range Capability(64) {
		if slices.Contains(keep, c) {
			continue
		}
		err := onAllThreads(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, uintptr(c), 0)
		if errors.Is(err, unix.EINVAL) {
			return nil // the kernel knows no more
		}
		if err != nil {
			return fmt.Errorf("drop capability %d from the bounding set: %w", c, err)
		}
	}
	return nil
}

// noNewPrivileges keeps executed programs from gaining any. Without it neither a filter nor a
// restriction may be installed without CAP_SYS_ADMIN.
func noNewPrivileges() error {
	if err := onAllThreads(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	return nil
}

// onAllThreads makes a system call on every thread; prctl's fourth and fifth argument are 0.
func onAllThreads(trap, a, b, c uintptr) error {
	_, _, errno := syscall.AllThreadsSyscall6(trap, a, b, c, 0, 0, 0)
	return errnoOf(errno)
}

// errnoOf returns nil for 0. ENOTSUP is what the runtime says of a program with cgo.
func errnoOf(errno syscall.Errno) error {
	switch errno {
	case 0:
		return nil
	case unix.ENOTSUP:
		return fmt.Errorf("this program is linked with cgo: build it with CGO_ENABLED=0: %w",
			ErrUnsupported)
	}
	return errno
}
