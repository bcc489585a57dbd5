package uverbs

import "github.com/rdma-netstack/rdma-netstack/dv/internal/mmio"

// Kernel is one opened device node: everything a process may ask of /dev/infiniband/uverbsN. It is implemented by
// the real node (OpenNode), by the software NIC (dv/simnic) and by a recorded conversation (Replay).
//
// Event descriptors (asynchronous events, completion channels) need no method: they appear in replies as real file
// descriptors of this process, close-on-exec and blocking, one record per read.
//
// All methods may be called concurrently, Close included; calls after Close fail with EBADF.
type Kernel interface {
	// Ioctl is ioctl(fd, RDMA_VERBS_IOCTL, buf). buf is an IoctlHdr and its IoctlAttr, edited in place; addresses in
	// attributes are addresses of this process outside the Go heap. buf itself is outside the Go heap too. The error
	// is a unix.Errno.
	Ioctl(buf []byte) error

	// Mmap maps length bytes, one system page, of device registers at offset of the node. The error is a unix.Errno.
	Mmap(offset int64, length int, writable bool) (*Page, error)

	// Close closes the descriptor. The kernel destroys what was created through it once no mapping is left.
	Close() error
}

// Page is one mapped page of device registers. Pages of the real node have Mem. Pages of the in-process model have
// Trap: the model acts on the caller's goroutine, before Store64 returns.
type Page struct {
	Mem  *mmio.Region
	Trap func(off int, v uint64)
}

// Store64 stores the 8 bytes of v, most significant first, at byte offset off, which must be a multiple of 8. On
// hardware it is one plain store, so a device sees it whole; it contains no barrier.
func (p *Page) Store64(off int, v uint64) {
	if p.Trap != nil {
		p.Trap(off, v)
		return
	}
	p.Mem.Doorbell64(off, v)
}

// Close unmaps the page; it may be called more than once. Nobody may be storing into the page.
func (p *Page) Close() error {
	if p == nil || p.Mem == nil {
		return nil
	}
	return p.Mem.Close()
}
