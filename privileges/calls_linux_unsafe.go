//go:build linux && (amd64 || arm64)

package privileges

import (
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// The system calls that take the address of a structure. AllThreadsSyscall keeps what a uintptr in
// its arguments was converted from (go:uintptrescapes), syscall.Syscall as well.

// setCapabilities makes set the permitted, effective and inheritable capabilities of all threads:
// a 0 as process id means the calling one.
func setCapabilities(set uint64) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	for i := range sets {
		half := uint32(set >> (32 * i))
		sets[i] = unix.CapUserData{Effective: half, Permitted: half}
	}
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)),
		uintptr(unsafe.Pointer(&sets[0])), 0)
	return errnoOf(errno)
}

// installFilter gives all threads the program, at once (seccomp(2), SECCOMP_FILTER_FLAG_TSYNC).
func installFilter(program []bpf.RawInstruction) error {
	code := make([]unix.SockFilter, len(program))
	for i, in := range program {
		code[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	fprog := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	thread, _, errno := syscall.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&fprog)))
	switch {
	case errno == unix.ENOSYS || errno == unix.EINVAL:
		return fmt.Errorf("this kernel has no seccomp filters: %w", ErrUnsupported)
	case errno != 0:
		return errno
	case thread != 0:
		return fmt.Errorf("thread %d has a filter of its own", thread)
	}
	return nil
}

// createRuleset makes a set of Landlock rules that handles the accesses, and returns its
// descriptor.
func createRuleset(handled uint64) (int, error) {
	attr := unix.LandlockRulesetAttr{Handled_access_fs: handled}
	fd, _, errno := syscall.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET,
		uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr.Handled_access_fs), 0)
	return int(fd), errnoOf(errno)
}

// allowBeneath adds a rule: these accesses below an open directory, or to an open file.
func allowBeneath(ruleset, parent int, allowed uint64) error {
	attr := unix.LandlockPathBeneathAttr{Allowed_access: allowed, Parent_fd: int32(parent)}
	_, _, errno := syscall.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(ruleset),
		unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&attr)), 0, 0, 0)
	return errnoOf(errno)
}
