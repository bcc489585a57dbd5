package uverbs

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
)

// PD is a protection domain: queues can use only the memory registered in theirs. One per context
// is enough.
type PD struct{ object }

// AllocPD creates a protection domain.
func (c *Context) AllocPD() (*PD, error) {
	pd := new(PD)
	var r AllocPDResp
	var drv Mlx5AllocPDResp // unused, but kernels up to 6.12 return EFAULT without it
	err := c.runCreate(&pd.object, &r.PDHandle, write{op: opAllocPD, noun: "protection domain",
		in: AllocPDReq{}, out: &r, uhwOut: &drv})
	if err != nil {
		return nil, err
	}
	return pd, nil
}

// Close destroys the protection domain; EBUSY while a region or queue uses it.
func (pd *PD) Close() error {
	return pd.destroyOnce(write{op: opDeallocPD, in: DeallocPDReq{PDHandle: pd.handle}})
}

// MR is a memory region: memory that the device may access, by virtual address and local key.
type MR struct {
	object
	LKey uint32 // goes into work requests, in host order here
}

// RegMR registers mem with access rights (AccessLocalWrite and so on). The kernel pins its pages
// until the region is closed. AccessRelaxedOrdering is omitted if the kernel does not know it or
// refuses it.
//
// ENOMEM or EPERM mean the memory lock limit; the error has the figures. The caller owns mem: free
// it after Close.
func (pd *PD) RegMR(mem *mmio.Region, access uint32) (*MR, error) {
	if !pd.c.caps.OptionalMRAccess {
		access &^= AccessOptionalMask
	}
	mr, err := pd.regMR(mem, access)
	if errors.Is(err, unix.EINVAL) && access&AccessOptionalMask != 0 {
		return pd.regMR(mem, access&^AccessOptionalMask)
	}
	return mr, err
}

func (pd *PD) regMR(mem *mmio.Region, access uint32) (*MR, error) {
	mr := new(MR)
	var r RegMRResp
	err := pd.c.runCreate(&mr.object, &r.MRHandle,
		write{op: opRegMR, noun: fmt.Sprintf("memory region of %d bytes", mem.Len()),
			in: RegMRReq{Start: mem.Addr(), Length: uint64(mem.Len()), HCAVA: mem.Addr(),
				PDHandle: pd.handle, AccessFlags: access},
			out: &r, uses: []*object{&pd.object}, needs: pageBytes(mem.Len())})
	if err != nil {
		return nil, err
	}
	mr.LKey = r.LKey
	return mr, nil
}

// pageBytes rounds n bytes up to whole pages, in bytes: this is what the kernel counts for n pinned
// bytes.
func pageBytes(n int) uint64 {
	p := os.Getpagesize()
	return uint64((n + p - 1) / p * p)
}

// Close unregisters the memory. Work requests that name its key then complete in error.
func (mr *MR) Close() error {
	return mr.destroyOnce(write{op: opDeregMR, in: DeregMRReq{MRHandle: mr.handle}})
}
