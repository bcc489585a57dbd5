package kernel

import (
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"golang.org/x/sys/unix"
)

// bfregs holds a context's static doorbell registers (struct mlx5_bfreg_info).
// Register 0 is shared by all queue pairs. The last low-latency registers serve one queue pair
// each. Those between are shared, the least used first.
type bfregs struct {
	total       uint32
	low         uint32
	uarsPerPage uint32
	uars        []uint32 // numbers of the device's UAR pages, by index
	users       []int    // queue pairs per register
}

// allocRequested allocates the registers requested, rounded up to whole system pages
// (calc_total_bfregs, allocate_uars in drivers/infiniband/hw/mlx5/main.c).
func (b *bfregs) allocRequested(n *node, req uverbs.Mlx5AllocUcontextReqV2) unix.Errno {
	if req.TotalNumBfregs == 0 {
		return unix.EINVAL
	}
	if req.TotalNumBfregs > uverbs.Mlx5MaxBfregs {
		return unix.ENOMEM
	}
	b.uarsPerPage = 1
	if req.LibCaps&uverbs.Mlx5LibCap4KUAR != 0 {
		b.uarsPerPage = uint32(n.linux.page) / uverbs.UARSize
	}
	b.total = roundUp(req.TotalNumBfregs, b.uarsPerPage*uverbs.BfregsPerUAR)
	if req.NumLowLatencyBfregs > b.total-1 {
		return unix.EINVAL
	}
	b.low = req.NumLowLatencyBfregs
	b.users = make([]int, b.total)
	for range b.total / uverbs.BfregsPerUAR {
		b.uars = append(b.uars, n.nic.AllocNumber(b, 16))
	}
	return 0
}

// allocRegister gives a queue pair a register: one of its own while there are any, else
// a shared one, else register 0 (alloc_bfreg in qp.c).
func (b *bfregs) allocRegister() uint32 {
	high := b.total - b.low
	for i := high; i < b.total; i++ {
		if b.users[i] == 0 {
			b.users[i]++
			return i
		}
	}
	best := uint32(0)
	for i := uint32(1); i < high; i++ {
		if best == 0 || b.users[i] < b.users[best] {
			best = i
		}
	}
	b.users[best]++
	return best
}

func (b *bfregs) freeRegister(i uint32) { b.users[i]-- }

// uarPage returns the number of the UAR page of register i.
func (b *bfregs) uarPage(i uint32) uint32 { return b.uars[i/uverbs.BfregsPerUAR] }

// clientIndex returns the client's number of register i, with four registers per UAR.
func (b *bfregs) clientIndex(i uint32) uint32 {
	return i/uverbs.BfregsPerUAR*uverbs.BfregIndexPerUAR + i%uverbs.BfregsPerUAR
}

func roundUp(v, to uint32) uint32 { return (v + to - 1) / to * to }

// Mmap maps a page of the node (mlx5_ib_mmap in main.c). Stores into it reach the device at once.
func (n *node) Mmap(offset int64, length int, writable bool) (*uverbs.Page, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, unix.EBADF
	}
	if length <= 0 || offset < 0 || uint64(offset)%n.linux.page != 0 {
		return nil, unix.EINVAL
	}
	if errno := n.checkContext(); errno != 0 {
		return nil, errno
	}
	at := uint64(offset) / n.linux.page
	command, index := at>>8&0xff, at&0xff|at>>16&0xff<<8
	whole := uint64(length) == n.linux.page
	switch command {
	case uverbs.MmapGetContiguousPages:
		return nil, unix.ENOSYS
	case uverbs.MmapRegularPage, uverbs.MmapWCPage, uverbs.MmapNCPage:
		if !whole || index >= uint64(n.ctx.bfregs.pageCount()) {
			return nil, unix.EINVAL
		}
		if command == uverbs.MmapWCPage && n.linux.cfg.NoWriteCombining {
			return nil, unix.EPERM
		}
		return n.uarPage(uint32(index), command != uverbs.MmapNCPage &&
			!n.linux.cfg.NoWriteCombining), nil
	case uverbs.MmapCoreClock, uverbs.MmapClockInfo:
		return nil, clockErrno(whole, writable)
	}
	return nil, unix.EINVAL
}

// clockErrno: the clock pages are not offered, because the model cannot intercept loads from a
// page.
func clockErrno(whole, writable bool) unix.Errno {
	switch {
	case !whole:
		return unix.EINVAL
	case writable:
		return unix.EPERM
	}
	return unix.EOPNOTSUPP
}

func (b *bfregs) pageCount() uint32 { return uint32(len(b.uars)) / b.uarsPerPage }

// uarPage returns a system page with one or more UARs on it, mapped write-combining or not.
func (n *node) uarPage(index uint32, combined bool) *uverbs.Page {
	b := &n.ctx.bfregs
	uars := b.uars[index*b.uarsPerPage:][:b.uarsPerPage]
	there := func(off int) bool {
		return off >= 0 &&
			off/uverbs.UARSize < len(uars) && !n.gone.Load()
	}
	return &uverbs.Page{
		Trap: func(off int, v uint64) {
			if there(off) {
				n.nic.UARWrite(uars[off/uverbs.UARSize], off%uverbs.UARSize, v)
			}
		},
		TrapCopy: func(off int, p []byte) {
			if there(off) {
				n.nic.UARCopy(uars[off/uverbs.UARSize], off%uverbs.UARSize, p, combined)
			}
		},
	}
}
