//go:build amd64 || arm64

package privileges

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Accesses of Landlock (landlock(7)), by what Paths calls them.
const (
	mayRead = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR

	mayWrite = mayRead | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE |
		unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_MAKE_SOCK |
		unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE |
		unix.LANDLOCK_ACCESS_FS_REMOVE_DIR

	mayControl = mayRead | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV

	// What makes sense for one file; the rest is for directories, and refused for files.
	ofFiles = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE |
		unix.LANDLOCK_ACCESS_FS_TRUNCATE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
)

// Restrict leaves the process these paths of the file system, by Landlock, and sets no_new_privs.
// What is open stays open. It fails with ErrUnsupported where the kernel has no Landlock, or has it
// off (the parameter lsm).
func Restrict(p Paths) (err error) {
	handled, err := handledAccesses()
	if err != nil {
		return err
	}
	ruleset, err := createRuleset(handled)
	if err != nil {
		return fmt.Errorf("make a Landlock ruleset: %w", err)
	}
	defer unix.Close(ruleset)
	for _, group := range []struct {
		paths   []string
		allowed uint64
	}{{p.Read, mayRead}, {p.Write, mayWrite}, {p.Devices, mayControl}} {
		for _, path := range group.paths {
			if err := allowPath(ruleset, path, group.allowed&handled); err != nil {
				return fmt.Errorf("allow %s: %w", path, err)
			}
		}
	}
	if err := noNewPrivileges(); err != nil {
		return err
	}
	if err := onAllThreads(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(ruleset), 0, 0); err != nil {
		return fmt.Errorf("restrict the process to the paths: %w", err)
	}
	return nil
}

// handledAccesses returns those that this kernel's version of Landlock knows (landlock(7)): all of
// a later version would be refused.
func handledAccesses() (uint64, error) {
	version, _, errno := syscall.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0,
		unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0, fmt.Errorf("this kernel has no Landlock, or has it off (%w): %w", errno,
			ErrUnsupported)
	}
	handled := uint64(unix.LANDLOCK_ACCESS_FS_MAKE_SYM)<<1 - 1 // version 1: this and all below
	for _, later := range []struct{ version, access uintptr }{
		{2, unix.LANDLOCK_ACCESS_FS_REFER},
		{3, unix.LANDLOCK_ACCESS_FS_TRUNCATE},
		{5, unix.LANDLOCK_ACCESS_FS_IOCTL_DEV},
	} {
		if version >= later.version {
			handled |= uint64(later.access)
		}
	}
	return handled, nil
}

// allowPath adds a rule for a path that exists.
func allowPath(ruleset int, path string, allowed uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		allowed &= ofFiles
	}
	return allowBeneath(ruleset, fd, allowed)
}
