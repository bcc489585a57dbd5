//go:build linux

package packet

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// mmsghdr mirrors struct mmsghdr: a message and how many of its bytes were received or sent.
type mmsghdr struct {
	unix.Msghdr
	n uint32
}

// receiveNow is recvmmsg(2) without waiting. The error is a unix.Errno; unix.EAGAIN: there is
// nothing. As it does not block it does not tell Go's scheduler, which after 20 us would give the
// processor to somebody else, behind whom the caller then waits.
func receiveNow(fd int, msgs []mmsghdr) (int, error) {
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd),
		uintptr(unsafe.Pointer(unsafe.SliceData(msgs))),
		uintptr(len(msgs)), unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// sendNow is sendmmsg(2), likewise. It returns how many messages were taken; the error is of the
// first, if none was.
func sendNow(fd int, msgs []mmsghdr) (int, error) {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(fd),
		uintptr(unsafe.Pointer(unsafe.SliceData(msgs))),
		uintptr(len(msgs)), unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// bytesOf returns the memory that an Iovec made of a slice names.
func bytesOf(v *unix.Iovec) []byte { return unsafe.Slice(v.Base, int(v.Len)) }
