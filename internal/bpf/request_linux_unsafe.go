//go:build linux

package bpf

import (
	"encoding/binary"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Request holds the argument of a call of bpf(2), union bpf_attr, whose fields follow each other.
type Request struct {
	// Bytes holds the fields in the machine's byte order. The kernel may write to them.
	Bytes []byte

	pin runtime.Pinner // of memory whose address is among the bytes
}

// AddFields adds fields of 4 bytes.
func (r *Request) AddFields(fields ...uint32) *Request {
	for _, f := range fields {
		r.Bytes = binary.NativeEndian.AppendUint32(r.Bytes, f)
	}
	return r
}

// AddName adds a name, of which the kernel takes 15 bytes.
func (r *Request) AddName(name string) *Request {
	var b [16]byte
	copy(b[:15], name)
	r.Bytes = append(r.Bytes, b[:]...)
	return r
}

// AddAddress adds the address of b, which must be at a multiple of 8 bytes; 0 if b is empty. The
// memory stays where it is until the call has returned.
func (r *Request) AddAddress(b []byte) *Request {
	address := uint64(0)
	if p := unsafe.SliceData(b); p != nil {
		r.pin.Pin(p)
		address = uint64(uintptr(unsafe.Pointer(p)))
	}
	r.Bytes = binary.NativeEndian.AppendUint64(r.Bytes, address)
	return r
}

// Call makes the call and returns its result: mostly a descriptor, which is the caller's. It may be
// made once.
func (r *Request) Call(command int) (int, error) {
	defer r.pin.Unpin()
	n, _, errno := unix.Syscall(unix.SYS_BPF, uintptr(command),
		uintptr(unsafe.Pointer(unsafe.SliceData(r.Bytes))), uintptr(len(r.Bytes)))
	if errno != 0 {
		return -1, errno
	}
	return int(n), nil
}
