//go:build linux

package mmio

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// hugePage gives the size asked for of huge pages, in bytes.
const hugePage = 2 << 20

// Alloc returns at least size bytes of zeroed private memory, rounded up to
// whole pages, every page present (registering it cannot fault), and absent
// from forked children, whose copy-on-write would move it from under a device.
func Alloc(size int) (*Region, error) {
	r, err := anonymous(roundUp(size, unix.Getpagesize()), 0)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", size, err)
	}
	return r.faultIn(size, populateOrTouch(unix.Madvise))
}

// AllocHuge is Alloc on 2 MiB pages: of the huge page pool if it has enough
// (/proc/sys/vm/nr_hugepages) and the kernel is of 5.14 or later, else aligned ordinary memory that
// the kernel is asked to back with huge pages. The size is rounded up to 2 MiB.
func AllocHuge(size int) (*Region, error) { return allocHuge(size, anonymous, unix.Madvise) }

// madvise is unix.Madvise.
type madvise func(b []byte, advice int) error

// allocHuge is AllocHuge by these two system calls.
func allocHuge(size int, mmap func(size, flags int) (*Region, error),
	advise madvise) (*Region, error) {
	if r, err := mmap(roundUp(size, hugePage), unix.MAP_HUGETLB|unix.MAP_HUGE_2MB); err == nil {
		// Without stores: a page of the pool that a cgroup's limit forbids is an error of madvise,
		// and SIGBUS for who stores to it.
		if r, err = r.faultIn(size, populateBy(advise)); err == nil {
			return r, nil
		}
	}
	r, err := alignedHuge(roundUp(size, hugePage))
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", size, err)
	}
	// Advice: a kernel without transparent huge pages refuses, and the memory is as good.
	_ = advise(r.Bytes(), unix.MADV_HUGEPAGE)
	return r.faultIn(size, populateOrTouch(advise))
}

// MapShared maps size bytes of fd at offset, a multiple of the page size, read only unless
// writable. The mapping outlives fd. A store to a read-only one ends the process.
func MapShared(fd int, offset int64, size int, writable bool) (*Region, error) {
	prot := unix.PROT_READ
	if writable {
		prot |= unix.PROT_WRITE
	}
	r, err := mapMemory(fd, offset, size, prot, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes of file descriptor %d at offset %#x: %w", size, fd,
			offset, err)
	}
	return r, nil
}

// anonymous maps size bytes, a multiple of the page size.
func anonymous(size, flags int) (*Region, error) {
	return mapMemory(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|flags)
}

// roundUp rounds size up to a multiple of align, a power of two.
func roundUp(size, align int) int { return (size + align - 1) &^ (align - 1) }

// toHugePage returns how many bytes lie between addr and the next huge page.
func toHugePage(addr uint64) int { return int(-addr & (hugePage - 1)) }

// alignedHuge maps one huge page more than size and returns the part that is
// aligned; the rest is address space that is never touched.
func alignedHuge(size int) (*Region, error) {
	if size <= 0 {
		return nil, unix.EINVAL
	}
	r, err := anonymous(size+hugePage, 0)
	if err != nil {
		return nil, err
	}
	r.base, r.size = unsafe.Add(r.base, toHugePage(r.Addr())), size
	return r, nil
}

// mapMemory is mmap with the undoing of it attached.
func mapMemory(fd int, offset int64, size, prot, flags int) (*Region, error) {
	if size <= 0 {
		return nil, unix.EINVAL
	}
	p, err := unix.MmapPtr(fd, offset, nil, uintptr(size), prot, flags)
	if err != nil {
		return nil, err
	}
	return &Region{base: p, size: size,
		unmap: func() error { return unix.MunmapPtr(p, uintptr(size)) }}, nil
}

// faultIn makes every page of r exist by fault, and keeps r from children. It closes
// r on failure. size is what the caller was asked for.
func (r *Region) faultIn(size int, fault func(b []byte) error) (*Region, error) {
	err := unix.Madvise(r.Bytes(), unix.MADV_DONTFORK)
	if err == nil {
		err = fault(r.Bytes())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("populate %d bytes: %w", size, err), r.Close())
	}
	return r, nil
}

// populateBy faults memory in. Kernels before 5.14 do not know the request: EINVAL.
func populateBy(advise madvise) func(b []byte) error {
	return func(b []byte) error { return advise(b, unix.MADV_POPULATE_WRITE) }
}

// populateOrTouch is populateBy, and a store to each page on such kernels.
func populateOrTouch(advise madvise) func(b []byte) error {
	return func(b []byte) error {
		err := populateBy(advise)(b)
		if !errors.Is(err, unix.EINVAL) {
			return err
		}
		for i := 0; i < len(b); i += unix.Getpagesize() {
			b[i] = 0
		}
		return nil
	}
}
