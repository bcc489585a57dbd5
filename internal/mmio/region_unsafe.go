package mmio

import (
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Region is memory that a device (or the model of one) also sees. Its address
// never changes and it is not Go heap.
//
// Access methods may be called from any number of goroutines; who may touch which byte is the
// caller's protocol. Offsets are bytes from the start; one outside the region, or misaligned for an
// atomic access, panics with the numbers. Using a Region, or memory got from it, while or after
// Close unmaps it is a bug of the caller.
type Region struct {
	base unsafe.Pointer
	size int

	mu    sync.Mutex
	unmap func() error // nil: borrowed, or closed already
}

// View returns size bytes at addr of this process as a Region that borrows
// them: their owner keeps them mapped, and Close does nothing. Nothing is
// checked; ask Mapped first when the address came from somebody else.
func View(addr uint64, size int) *Region {
	if size < 0 {
		panic(fmt.Sprintf("mmio: view of %d bytes at %#x", size, addr))
	}
	return &Region{base: pointerTo(addr), size: size}
}

// Borrow returns b, memory that is not Go heap, as a Region; its owner keeps it mapped.
func Borrow(b []byte) *Region {
	return &Region{base: unsafe.Pointer(unsafe.SliceData(b)), size: len(b)}
}

// Find says at which byte of the region b begins, and whether all of b is inside.
func (r *Region) Find(b []byte) (off int, inside bool) {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b))) - uintptr(r.base)
	return int(at), at < uintptr(r.size) && len(b) <= r.size-int(at)
}

// Addr returns the address of the first byte, 0 after Close.
func (r *Region) Addr() uint64 { return uint64(uintptr(r.base)) }

// Len returns the size in bytes, 0 after Close.
func (r *Region) Len() int { return r.size }

// Bytes returns the whole region. The slice is valid until Close.
func (r *Region) Bytes() []byte { return unsafe.Slice((*byte)(r.base), r.size) }

// Slice returns n bytes at off, with no capacity beyond them. The slice is valid until Close.
func (r *Region) Slice(off, n int) []byte {
	return unsafe.Slice((*byte)(r.addressOf(off, n)), n)
}

// Sub returns n bytes at off as a Region of its own that borrows r's memory:
// it is valid until r is closed, and closing it does nothing.
func (r *Region) Sub(off, n int) *Region {
	return &Region{base: r.addressOf(off, n), size: n}
}

// Close unmaps memory that the region owns. Closing again, or closing a
// borrowed region, does nothing and returns nil.
func (r *Region) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.unmap == nil {
		return nil
	}
	unmap := r.unmap
	r.unmap, r.base, r.size = nil, nil, 0
	return unmap()
}

// LoadBE32 returns the big-endian word at off, read in one atomic access that
// acquires: later loads of this goroutine see what was written before it.
func (r *Region) LoadBE32(off int) uint32 {
	return be32(atomic.LoadUint32((*uint32)(r.wordAddress(off, 4))))
}

// StoreBE32 writes v big-endian at off in one atomic access that releases:
// earlier stores of this goroutine are visible to a reader that sees it.
func (r *Region) StoreBE32(off int, v uint32) {
	atomic.StoreUint32((*uint32)(r.wordAddress(off, 4)), be32(v))
}

// LoadBE64 is LoadBE32 for 8 bytes.
func (r *Region) LoadBE64(off int) uint64 {
	return be64(atomic.LoadUint64((*uint64)(r.wordAddress(off, 8))))
}

// StoreBE64 is StoreBE32 for 8 bytes.
func (r *Region) StoreBE64(off int, v uint64) {
	atomic.StoreUint64((*uint64)(r.wordAddress(off, 8)), be64(v))
}

// Doorbell64 writes v big-endian at off in one plain 8-byte store, the only
// access meant for device registers. It orders nothing: use the barriers.
func (r *Region) Doorbell64(off int, v uint64) {
	store64(r.wordAddress(off, 8), be64(v))
}

// CopyLines copies src, one or more lines of 64 bytes, to off, a multiple of
// 64: first to last, in stores that a write-combining mapping can join. For
// descriptors written into device registers. It orders nothing.
func (r *Region) CopyLines(off int, src []byte) {
	if len(src) == 0 || (len(src)|off)&63 != 0 {
		panic(fmt.Sprintf("mmio: copy of %d bytes to offset %d is not of lines of 64 bytes",
			len(src), off))
	}
	copyLines(r.addressOf(off, len(src)), unsafe.Pointer(&src[0]), len(src)/64)
}

// addressOf returns the address of n bytes at off, checked.
func (r *Region) addressOf(off, n int) unsafe.Pointer {
	if off < 0 || n < 0 || off > r.size-n {
		panicOutside(r.size, off, n)
	}
	return unsafe.Add(r.base, off)
}

// wordAddress returns the address of an aligned word of n bytes at off, checked.
func (r *Region) wordAddress(off, n int) unsafe.Pointer {
	if off < 0 || off > r.size-n {
		panicOutside(r.size, off, n)
	}
	p := unsafe.Add(r.base, off)
	if uintptr(p)&uintptr(n-1) != 0 {
		misaligned(uintptr(p), off, n)
	}
	return p
}

//go:noinline
func panicOutside(size, off, n int) {
	panic(fmt.Sprintf("mmio: %d bytes at offset %d are outside a region of %d bytes", n, off, size))
}

//go:noinline
func misaligned(addr uintptr, off, n int) {
	panic(fmt.Sprintf("mmio: atomic access of %d bytes at offset %d (address %#x) is not aligned",
		n, off, addr))
}

// pointerTo makes a pointer from the address of memory that is not Go heap, and
// which therefore neither moves nor is collected.
func pointerTo(addr uint64) unsafe.Pointer {
	p := uintptr(addr)
	return *(*unsafe.Pointer)(unsafe.Pointer(&p))
}
