//go:build linux

package mmio

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// ReadNow, ReceiveNow and WriteNow are for descriptors that do not block and whose calls take
// microseconds. They do not tell Go's scheduler of the call, unlike their namesakes in package
// unix: that costs more than a short call itself, and after 20 us the scheduler gives the caller's
// processor to somebody else, behind whom the caller then waits.

// ReadNow is read(2) into b. The error is a unix.Errno; unix.EAGAIN: there is nothing.
func ReadNow(fd int, b []byte) (int, error) {
	n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd),
		uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	return resultOf(n, errno)
}

// ReceiveNow is recvmsg(2) into b, with control messages into oob. It returns how much of each was
// used and the message's flags.
func ReceiveNow(fd int, b, oob []byte) (n, oobn, flags int, err error) {
	iov := unix.Iovec{Base: unsafe.SliceData(b)}
	iov.SetLen(len(b))
	msg := unix.Msghdr{Iov: &iov, Control: unsafe.SliceData(oob)}
	msg.SetIovlen(1)
	msg.SetControllen(len(oob))
	r, _, errno := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&msg)), 0)
	n, err = resultOf(r, errno)
	return n, int(msg.Controllen), int(msg.Flags), err
}

// WriteNow is writev(2) of head and then rest.
func WriteNow(fd int, head, rest []byte) (int, error) {
	iov := [2]unix.Iovec{{Base: unsafe.SliceData(head)}, {Base: unsafe.SliceData(rest)}}
	iov[0].SetLen(len(head))
	iov[1].SetLen(len(rest))
	n, _, errno := unix.RawSyscall(unix.SYS_WRITEV, uintptr(fd), uintptr(unsafe.Pointer(&iov)), 2)
	return resultOf(n, errno)
}

func resultOf(n uintptr, errno unix.Errno) (int, error) {
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
