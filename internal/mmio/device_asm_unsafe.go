//go:build amd64 || arm64

package mmio

import (
	"math/bits"
	"unsafe"
)

// ToDevice orders this CPU's earlier stores (descriptors, doorbell record)
// before its later stores (doorbell record, device register), as a device
// reads them over the bus. amd64: SFENCE, which a write-combining register
// needs; arm64: DMB OSHST. rdma-core calls it udma_to_device_barrier.
func ToDevice()

// FromDevice orders earlier loads (the ownership word of a completion) before later loads (the rest
// of it, and the payload) of memory a device writes. amd64 keeps loads in order, so there it only
// stops the compiler; arm64: DMB OSHLD. linux calls it dma_rmb.
func FromDevice()

// FlushWC pushes out stores that a write-combining mapping still holds, and keeps them ahead of
// later ones. Not needed after a store to a non-cached mapping. amd64: SFENCE; arm64: DSB ST.
func FlushWC()

// store64 is one 8-byte store.
//
//go:noescape
func store64(p unsafe.Pointer, v uint64)

// copyLines copies n > 0 lines of 64 bytes, in 8-byte or 16-byte stores of ascending addresses.
//
//go:noescape
func copyLines(dst, src unsafe.Pointer, n int)

func be32(v uint32) uint32 { return bits.ReverseBytes32(v) }
func be64(v uint64) uint64 { return bits.ReverseBytes64(v) }
