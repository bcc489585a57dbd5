//go:build !amd64 && !arm64

package mmio

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"
)

// Architectures without assembly here run the model only, whose other side is
// another goroutine: sync/atomic, which is sequentially consistent, suffices.

var fence atomic.Uint32

// ToDevice orders earlier stores before later ones.
func ToDevice() { fence.Add(1) }

// FromDevice orders earlier loads before later ones.
func FromDevice() { fence.Add(1) }

// FlushWC orders earlier stores before later ones.
func FlushWC() { fence.Add(1) }

func store64(p unsafe.Pointer, v uint64) { atomic.StoreUint64((*uint64)(p), v) }

func copyLines(dst, src unsafe.Pointer, n int) {
	for i := range n * 8 {
		atomic.StoreUint64((*uint64)(unsafe.Add(dst, 8*i)), *(*uint64)(unsafe.Add(src, 8*i)))
	}
}

func be32(v uint32) uint32 {
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], v)
	return binary.BigEndian.Uint32(b[:])
}

func be64(v uint64) uint64 {
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], v)
	return binary.BigEndian.Uint64(b[:])
}
