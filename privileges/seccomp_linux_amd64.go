package privileges

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_X86_64

// archCalls returns the older calls that this processor has besides the common ones.
func archCalls() []uint32 {
	return []uint32{unix.SYS_ARCH_PRCTL, unix.SYS_EPOLL_WAIT, unix.SYS_POLL, unix.SYS_SELECT,
		unix.SYS_STAT, unix.SYS_LSTAT, unix.SYS_ACCESS, unix.SYS_READLINK, unix.SYS_OPEN,
		unix.SYS_UNLINK, unix.SYS_TIME}
}
