package kernel

import (
	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
	"github.com/rdma-netstack/rdma-netstack/simnic"
)

// umem describes memory of the client that the device may use (struct ib_umem). The real kernel
// holds references to its pages; here the client must keep it mapped until the object is destroyed.
type umem struct {
	linux *Linux
	pages int64
	mem   *simnic.Memory
}

// pinMemory pins size bytes at addr (ib_umem_get in drivers/infiniband/core/umem.c):
// EPERM if the limit is zero, ENOMEM beyond the limit, EFAULT if there is no memory at addr, or the
// device may not write to it.
func (l *Linux) pinMemory(addr, size uint64, writable bool) (*umem, unix.Errno) {
	if addr+size < addr || addr+size+l.page < addr {
		return nil, unix.EINVAL
	}
	if l.cfg.Memlock < 0 {
		return nil, unix.EPERM
	}
	first, end := addr&^(l.page-1), (addr+size+l.page-1)&^(l.page-1)
	pages := (end - first) / l.page
	if pages == 0 || pages > 1<<32-1 {
		return nil, unix.EINVAL
	}
	u := &umem{linux: l, pages: int64(pages)}
	if total := l.pinned.Add(u.pages); l.cfg.Memlock > 0 &&
		uint64(total)*l.page > uint64(l.cfg.Memlock) {
		u.unpinMemory()
		return nil, unix.ENOMEM
	}
	if !l.faultIn(first, end-first, writable) {
		u.unpinMemory()
		return nil, unix.EFAULT
	}
	u.mem = simnic.NewMemory(mmio.View(addr, int(size)))
	return u, 0
}

func (u *umem) unpinMemory() {
	if u != nil {
		u.linux.pinned.Add(-u.pages)
	}
}

// faultIn faults the pages in, as pinning does, and reports whether all are mapped with the access
// rights requested.
func (l *Linux) faultIn(addr, size uint64, writable bool) bool {
	if size > 1<<47 || !mmio.Mapped(addr, int(size)) {
		return false
	}
	if !l.populates {
		return true
	}
	advice := unix.MADV_POPULATE_READ
	if writable {
		advice = unix.MADV_POPULATE_WRITE
	}
	return unix.Madvise(mmio.View(addr, int(size)).Bytes(), advice) == nil
}

// canPopulate reports whether the machine's kernel can be asked to fault pages
// in (linux 5.14). On older kernels mapped memory is taken as usable: the error for a page without
// the rights is the same as for an unknown request.
func canPopulate() bool {
	page, err := mmio.Alloc(1)
	if err != nil {
		return false
	}
	defer page.Close()
	return unix.Madvise(page.Bytes(), unix.MADV_POPULATE_READ) == nil
}

// recordPage describes a page with doorbell records, pinned once for all of them
// (struct mlx5_ib_user_db_page).
type recordPage struct {
	mem   *umem
	users int
}

// mapRecord pins the page of the doorbell record at addr and returns the record.
func (n *node) mapRecord(addr uint64) (*simnic.Memory, unix.Errno) {
	if addr%8 != 0 {
		return nil, unix.EINVAL
	}
	at := addr &^ (n.linux.page - 1)
	p := n.ctx.records[at]
	if p == nil {
		mem, errno := n.linux.pinMemory(at, n.linux.page, false)
		if errno != 0 {
			return nil, errno
		}
		p = &recordPage{mem: mem}
		n.ctx.records[at] = p
	}
	p.users++
	return simnic.NewMemory(mmio.View(addr, 8)), 0
}

func (n *node) unmapRecord(addr uint64) {
	at := addr &^ (n.linux.page - 1)
	p := n.ctx.records[at]
	if p.users--; p.users == 0 {
		p.mem.unpinMemory()
		delete(n.ctx.records, at)
	}
}

// ring holds the memory of a queue: buffers and a doorbell record.
type ring struct {
	node   *node
	bufs   []*umem
	record uint64
	mapped bool
}

// pinBuffer pins a queue's buffer. Its start must be a multiple of 1/64 of a page, the unit of the
// page offset in the hardware.
func (r *ring) pinBuffer(addr, size uint64, writable bool) (*simnic.Memory, unix.Errno) {
	u, errno := r.node.linux.pinMemory(addr, size, writable)
	if errno != 0 {
		return nil, errno
	}
	r.bufs = append(r.bufs, u)
	if addr%(r.node.linux.page/64) != 0 {
		return nil, unix.EINVAL
	}
	return u.mem, 0
}

// mapDoorbell maps the queue's doorbell record.
func (r *ring) mapDoorbell(addr uint64) (*simnic.Memory, unix.Errno) {
	m, errno := r.node.mapRecord(addr)
	r.record, r.mapped = addr, errno == 0
	return m, errno
}

// unpinAll unpins all memory.
func (r *ring) unpinAll() {
	for _, u := range r.bufs {
		u.unpinMemory()
	}
	if r.mapped {
		r.node.unmapRecord(r.record)
	}
	r.bufs, r.mapped = nil, false
}

// freeAfter calls destroy, and then free if that succeeded: the hardware may use the ring until
// then.
func (r *ring) freeAfter(destroy func() error) func() error {
	return func() error {
		err := destroy()
		if err == nil {
			r.unpinAll()
		}
		return err
	}
}
