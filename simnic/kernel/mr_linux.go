package kernel

import (
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"golang.org/x/sys/unix"
)

// pd represents a protection domain: a number that queues and memory keys must share.
type pd struct{ number uint32 }

// allocPD implements ALLOC_PD.
func allocPD(c *call) unix.Errno {
	if errno := c.readRequest(&uverbs.AllocPDReq{}); errno != 0 {
		return errno
	}
	n := c.node
	if errno := n.checkContext(); errno != 0 {
		return errno
	}
	p := new(pd)
	p.number = n.nic.AllocNumber(p, 24)
	o := &uobject{kind: uverbs.ObjectPD, impl: p,
		release: func() error { n.nic.FreeNumber(p.number); return nil }}
	// Newer kernels accept a request without room for the driver's reply, older ones fail to write
	// it.
	if c.uhw.out.given || !n.linux.isRelease(Linux72) {
		if errno := c.uhw.out.putAll(host32(p.number)); errno != 0 {
			n.nic.FreeNumber(p.number)
			return errno
		}
	}
	return c.finishCreate(o,
		func() unix.Errno { return c.writeReply(uverbs.AllocPDResp{PDHandle: o.handle}) })
}

// deallocPD implements DEALLOC_PD.
func deallocPD(c *call) unix.Errno {
	var req uverbs.DeallocPDReq
	if errno := c.readRequest(&req); errno != 0 {
		return errno
	}
	return c.runDestroy(uverbs.ObjectPD, req.PDHandle)
}

// accessBasic covers IB_ACCESS_LOCAL_WRITE to IB_ACCESS_HUGETLB; remote write and
// remote atomic need local write.
const (
	accessBasic       = 0xff
	accessRemoteWrite = 2
	accessAtomic      = 8
	accessFlush       = 0x300 // of persistent memory, since 6.2
)

// checkAccess refuses rights that are unknown, or that the device lacks
// (ib_check_mr_access in include/rdma/ib_verbs.h).
func (n *node) checkAccess(flags uint32) unix.Errno {
	known := uint32(accessBasic)
	if !n.linux.isRelease(Linux54) {
		known |= uverbs.AccessOptionalMask | accessFlush
	}
	switch {
	case flags&(accessRemoteWrite|accessAtomic) != 0 && flags&uverbs.AccessLocalWrite == 0:
		return unix.EINVAL
	case flags&^known != 0:
		return unix.EINVAL
	case flags&(uverbs.AccessOnDemand|accessFlush) != 0:
		return unix.EOPNOTSUPP
	}
	return 0
}

// regMR implements REG_MR.
func regMR(c *call) unix.Errno {
	var req uverbs.RegMRReq
	if errno := c.readRequest(&req); errno != 0 {
		return errno
	}
	n := c.node
	if (req.Start^req.HCAVA)&(n.linux.page-1) != 0 {
		return unix.EINVAL
	}
	if errno := n.checkContext(); errno != 0 {
		return errno
	}
	if errno := n.checkAccess(req.AccessFlags); errno != 0 {
		return errno
	}
	domain, p, errno := findObject[*pd](n, uverbs.ObjectPD, req.PDHandle)
	if errno != 0 {
		return errno
	}
	o, key, errno := n.registerMR(req, p)
	if errno != 0 {
		return errno
	}
	o.uses = []*uobject{domain}
	return c.finishCreate(o, func() unix.Errno {
		return c.writeReply(uverbs.RegMRResp{MRHandle: o.handle, LKey: key, RKey: key})
	})
}

// registerMR pins the memory and creates the key.
func (n *node) registerMR(req uverbs.RegMRReq, p *pd) (*uobject, uint32, unix.Errno) {
	write := req.AccessFlags&uverbs.AccessLocalWrite != 0
	mem, errno := n.linux.pinMemory(req.Start, req.Length, write)
	if errno != 0 {
		return nil, 0, errno
	}
	key, err := n.nic.CreateMKey(simnic.MKeyAttr{PD: p.number, Start: req.HCAVA, Len: req.Length,
		Mem: mem.mem, LocalWrite: write})
	if err != nil {
		mem.unpinMemory()
		return nil, 0, errnoOf(err)
	}
	release := func() error {
		err := key.Destroy()
		if err == nil {
			mem.unpinMemory()
		}
		return err
	}
	return &uobject{kind: uverbs.ObjectMR, impl: key, release: release}, key.Key(), 0
}

// deregMR implements DEREG_MR.
func deregMR(c *call) unix.Errno {
	var req uverbs.DeregMRReq
	if errno := c.readRequest(&req); errno != 0 {
		return errno
	}
	return c.runDestroy(uverbs.ObjectMR, req.MRHandle)
}
