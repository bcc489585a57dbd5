package uverbs

import (
	"encoding/binary"

	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
)

// Kernel is one opened device node: all operations of a process on /dev/infiniband/uverbsN. It is
// implemented by the real node (OpenNode), by the software NIC (simnic) and by a recording
// (Replay).
//
// Event descriptors (asynchronous events, completion channels) need no method: they appear in
// replies as real file descriptors of this process, close-on-exec and blocking, one record per
// read.
//
// All methods may be called concurrently, Close included; calls after Close fail with EBADF. A
// Kernel may implement PortCounters and EventQueues, too.
type Kernel interface {
	// Ioctl is ioctl(fd, RDMA_VERBS_IOCTL, buf). buf is an IoctlHdr and its IoctlAttr, modified in
	// place; addresses in attributes are addresses of this process outside the Go heap. buf itself
	// is outside the Go heap too. The error is a unix.Errno.
	Ioctl(buf []byte) error

	// Mmap maps length bytes, one system page, of device registers at offset of the node. The error
	// is a unix.Errno.
	Mmap(offset int64, length int, writable bool) (*Page, error)

	// Close closes the descriptor. The kernel destroys the objects created through it once no
	// mapping is left.
	Close() error
}

// AllocMemory returns at least size bytes of zeroed memory in whole pages, for rings, doorbell
// records and frames of programs that create queues without package dv. The caller owns it and
// closes it once no object uses it.
func AllocMemory(size int) (*mmio.Region, error) { return mmio.Alloc(size) }

// Page is one mapped page of device registers. Pages of the real node have Mem. Pages of the
// in-process model have Trap, and may have TrapCopy: the model executes the store on the caller's
// goroutine, before Store64 or Copy returns.
type Page struct {
	Mem      *mmio.Region
	Trap     func(off int, v uint64)
	TrapCopy func(off int, b []byte) // nil: a copy is a sequence of stores

	// WriteCombining says that the page is mapped write-combining. Each store is then flushed
	// before the next can be merged with it.
	WriteCombining bool
}

// Store64 stores the 8 bytes of v, most significant first, at byte offset off, which must be a
// multiple of 8. On hardware it is one plain store, so a device sees it whole; it contains no
// barrier.
func (p *Page) Store64(off int, v uint64) {
	if p.Trap != nil {
		p.Trap(off, v)
		return
	}
	p.Mem.Doorbell64(off, v)
	if p.WriteCombining {
		mmio.FlushWC()
	}
}

// Copy writes b, whole lines of 64 bytes, at byte offset off, a multiple of 64, first to last: a
// work request into a doorbell register ("BlueFlame"), which must be on a write-combining page. b
// must not change meanwhile.
func (p *Page) Copy(off int, b []byte) {
	switch {
	case p.TrapCopy != nil:
		p.TrapCopy(off, b)
		return
	case p.Trap != nil:
		for i := 0; i < len(b); i += 8 {
			p.Trap(off+i, binary.BigEndian.Uint64(b[i:]))
		}
		return
	}
	p.Mem.CopyLines(off, b)
	mmio.FlushWC()
}

// Close unmaps the page; it may be called more than once. No goroutine may be storing into the
// page.
func (p *Page) Close() error {
	if p == nil || p.Mem == nil {
		return nil
	}
	return p.Mem.Close()
}
