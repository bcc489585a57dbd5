//go:build linux

package uverbs

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// ioctl makes the request to the device node that is in buf. buf, and all memory its
// attributes point to, is outside the Go heap, so it neither moves nor is collected while the
// kernel works on it. Firmware commands may take up to a minute in case of a failure, so the
// scheduler must know of the call (Syscall, not RawSyscall).
func ioctl(fd int, buf []byte) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), IoctlCode,
		uintptr(unsafe.Pointer(unsafe.SliceData(buf))))
	if errno != 0 {
		return errno
	}
	return nil
}

// readUntold reads from a descriptor that does not block, without telling the Go scheduler of it.
func readUntold(fd int, b []byte) (int, error) {
	n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd),
		uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
