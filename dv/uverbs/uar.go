package uverbs

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// A UAR is 4 KiB of doorbell registers. A context has a fixed number of them from its opening on,
// in system pages that each hold one UAR or (64 KiB pages) sixteen. Of each UAR two send registers
// ("bfregs") are usable, and one register that arms completion queues:
//
//	0x020  arm cell, 8 bytes: arm word, completion queue number
//	0x800  send register 0: first 8 bytes of a work request's control segment
//	0x800 + bf_reg_size  send register 1
//
// linux drivers/infiniband/hw/mlx5/main.c (calc_total_bfregs, alloc_bfreg), rdma-core
// providers/mlx5/mlx5.c.

// contextRequest requests enough registers that each of nTx queue pairs gets a private one.
// Register 0 is the shared fallback and the last num_low_latency ones are private; those between
// the two would be a shared class, which is empty if only register 0 remains.
func contextRequest(nTx, pageSize int) Mlx5AllocUcontextReqV2 {
	granule := BfregsPerUAR * max(1, pageSize/UARSize)
	total := max(16, nTx+1)
	total = min((total+granule-1)/granule*granule, Mlx5MaxBfregs)
	return Mlx5AllocUcontextReqV2{
		TotalNumBfregs:      uint32(total),
		NumLowLatencyBfregs: uint32(total - 1),
		MaxCQEVersion:       1,
		LibCaps:             Mlx5LibCap4KUAR,
	}
}

// mmapOffset returns the offset of a page in the node: its kind, and its index in the kind.
func mmapOffset(command, index, pageSize int) int64 {
	page := command<<8 | index&0xff | index>>8<<16
	return int64(page) * int64(pageSize)
}

// bfregAddress finds the register that the kernel chose for a queue pair: the mapped page and the
// byte offset in it.
func bfregAddress(index, uarsPerPage, bfRegSize uint32) (page, offset int) {
	uar, k := index/BfregIndexPerUAR, index%BfregIndexPerUAR
	page = int(uar / uarsPerPage)
	offset = int(uar%uarsPerPage*UARSize + UARBfregBase + k*bfRegSize)
	return page, offset
}

// mapUARs maps the context's doorbell pages, all uncached or all write-combining: a page must not
// be mapped more than once, or with two memory types. c.mu is held.
func (c *Context) mapUARs(o Options) error {
	pages := int(uint64(c.caps.Bfregs) / (BfregsPerUAR * uint64(c.caps.UARsPerPage)))
	command := MmapNCPage
	if o.WriteCombining && c.caps.BFRegSize > 0 {
		command = MmapWCPage
	}
	for i := 0; i < pages; i++ {
		p, err := c.kernel.Mmap(mmapOffset(command, i, o.pageSize), o.pageSize, true)
		if i == 0 && command == MmapWCPage && errors.Is(err, unix.EPERM) {
			command, i = MmapNCPage, -1
			continue
		}
		if err != nil {
			return kernelFailure(opMapUAR, fmt.Sprintf("doorbell page %d of %d", i, pages), err,
				memory{})
		}
		p.WriteCombining = command == MmapWCPage
		c.uars = append(c.uars, p)
	}
	return nil
}

// WriteCombining reports whether the doorbell pages are mapped write-combining.
func (c *Context) WriteCombining() bool { return len(c.uars) > 0 && c.uars[0].WriteCombining }
