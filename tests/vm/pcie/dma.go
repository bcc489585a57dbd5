package pcie

import (
	"errors"
	"fmt"
	"sort"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
)

// errNoMemory says that the guest named an address without memory that the device can access.
var errNoMemory = errors.New("address outside the guest's memory")

// dmaMap is the guest memory that the device may access: ranges of guest physical addresses, each
// mapped here from the descriptor the client sent. Look-ups take no lock: they read a snapshot that
// add and unmap replace.
//
// A range that unmap removes stays mapped until close: a queue may still be using it, and the
// client keeps the memory alive through the descriptor anyway.
type dmaMap struct {
	mu     sync.Mutex // serialises writers
	ranges atomic.Pointer[[]dmaRange]
	old    []*mmio.Region // unmapped ranges, guarded by mu
}

// dmaRange is one range of guest physical addresses; mem is nil where the client sent no
// descriptor or the device must not write (ROM): drivers give a device only RAM.
type dmaRange struct {
	addr, size uint64
	mem        *mmio.Region
}

func (d *dmaMap) snapshot() []dmaRange {
	if p := d.ranges.Load(); p != nil {
		return *p
	}
	return nil
}

// add maps size bytes of fd at off as guest address addr. It takes ownership of fd; -1 means memory
// that the device cannot access.
func (d *dmaMap) add(addr, size uint64, fd int, off int64, writable bool) error {
	if size == 0 || addr+size < addr {
		return fmt.Errorf("DMA range %#x+%#x: %w", addr, size, unix.EINVAL)
	}
	r := dmaRange{addr: addr, size: size}
	if fd >= 0 {
		defer unix.Close(fd)
	}
	if fd >= 0 && writable {
		if err := holds(fd, off, size); err != nil {
			return fmt.Errorf("DMA range %#x+%#x: %w", addr, size, err)
		}
		mem, err := mmio.MapShared(fd, off, int(size), true)
		if err != nil {
			return fmt.Errorf("map guest memory %#x+%#x: %w", addr, size, err)
		}
		r.mem = mem
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	next := append([]dmaRange{r}, d.snapshot()...)
	sort.Slice(next, func(i, j int) bool { return next[i].addr < next[j].addr })
	d.ranges.Store(&next)
	return nil
}

// holds reports whether a file has size bytes at off: access beyond the end of a file would end
// this process (SIGBUS).
func holds(fd int, off int64, size uint64) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if off < 0 || off > st.Size || size > uint64(st.Size-off) {
		return fmt.Errorf("%d bytes at %d of a file of %d: %w", size, off, st.Size, unix.EINVAL)
	}
	return nil
}

// unmap removes the range that was added with this address and size.
func (d *dmaMap) unmap(addr, size uint64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var next []dmaRange
	for _, r := range d.snapshot() {
		if r.addr == addr && r.size == size {
			if r.mem != nil {
				d.old = append(d.old, r.mem)
			}
			continue
		}
		next = append(next, r)
	}
	d.ranges.Store(&next)
	return nil
}

// region returns n bytes of guest memory at addr, which must lie in one range.
func (d *dmaMap) region(addr uint64, n int) (*mmio.Region, error) {
	rs := d.snapshot()
	i := sort.Search(len(rs), func(i int) bool { return rs[i].addr+rs[i].size > addr })
	if i == len(rs) || rs[i].addr > addr || rs[i].mem == nil ||
		uint64(n) > rs[i].addr+rs[i].size-addr {
		return nil, fmt.Errorf("%#x+%#x: %w", addr, n, errNoMemory)
	}
	return rs[i].mem.Sub(int(addr-rs[i].addr), n), nil
}

// bytes is region as a slice, for memory only one side writes at a time.
func (d *dmaMap) bytes(addr uint64, n int) ([]byte, error) {
	r, err := d.region(addr, n)
	if err != nil {
		return nil, err
	}
	return r.Bytes(), nil
}

// close unmaps everything. No queue may use guest memory any more.
func (d *dmaMap) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range d.snapshot() {
		if r.mem != nil {
			r.mem.Close()
		}
	}
	for _, m := range d.old {
		m.Close()
	}
	d.ranges.Store(nil)
	d.old = nil
}
