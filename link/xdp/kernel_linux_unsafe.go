//go:build linux

package xdp

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// readOption does getsockopt(2) of level SOL_XDP. It returns how many bytes there were.
func readOption(fd, name int, to []byte) (int, error) {
	size := uint32(len(to))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_XDP, uintptr(name),
		uintptr(unsafe.Pointer(unsafe.SliceData(to))), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return 0, errno
	}
	return int(size), nil
}

// wordOf returns the number that the kernel shares at an offset of a mapping.
func wordOf(mapped []byte, at uint64) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&mapped[at : at+4][0]))
}

// descriptorsOf returns n descriptors of frames at an offset of a mapping.
func descriptorsOf(mapped []byte, at uint64, n int) []unix.XDPDesc {
	return unsafe.Slice((*unix.XDPDesc)(unsafe.Pointer(&mapped[at : at+uint64(n)*16][0])), n)
}

// addressesOf returns n addresses of frames at an offset of a mapping.
func addressesOf(mapped []byte, at uint64, n int) []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(&mapped[at : at+uint64(n)*8][0])), n)
}
