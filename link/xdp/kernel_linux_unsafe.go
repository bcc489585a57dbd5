//go:build linux

package xdp

import (
	"encoding/binary"
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// request holds the argument of a call of bpf(2), union bpf_attr, whose fields follow each other.
type request struct {
	bytes []byte
	pin   runtime.Pinner // of memory whose address is among the bytes
}

// addFields adds fields of 4 bytes.
func (r *request) addFields(fields ...uint32) *request {
	for _, f := range fields {
		r.bytes = binary.NativeEndian.AppendUint32(r.bytes, f)
	}
	return r
}

// addName adds a name, of which the kernel takes 15 bytes.
func (r *request) addName(name string) *request {
	var b [16]byte
	copy(b[:15], name)
	r.bytes = append(r.bytes, b[:]...)
	return r
}

// addAddress adds the address of b, which must be at a multiple of 8 bytes; 0 if b is empty.
func (r *request) addAddress(b []byte) *request {
	address := uint64(0)
	if p := unsafe.SliceData(b); p != nil {
		r.pin.Pin(p)
		address = uint64(uintptr(unsafe.Pointer(p)))
	}
	r.bytes = binary.NativeEndian.AppendUint64(r.bytes, address)
	return r
}

// callKernel makes the call and returns its result. The kernel may write to the bytes.
func (r *request) callKernel(command int) (int, error) {
	defer r.pin.Unpin()
	n, _, errno := unix.Syscall(unix.SYS_BPF, uintptr(command),
		uintptr(unsafe.Pointer(unsafe.SliceData(r.bytes))), uintptr(len(r.bytes)))
	if errno != 0 {
		return -1, errno
	}
	return int(n), nil
}

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
