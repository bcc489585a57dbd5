package kernel

import (
	"math/bits"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
)

// createRaw creates the send and receive queue of a raw packet queue pair.
func (c *call) createRaw(q *qp, req uverbs.ExCreateQPReq, objs qpObjects) unix.Errno {
	drv, errno := c.qpDriver()
	if errno != 0 {
		return errno
	}
	caps := c.node.nic.Caps()
	if errno := rawFlags(req.CreateFlags, caps); errno != 0 {
		return errno
	}
	if errno := rawSizes(req, drv, caps); errno != 0 {
		return errno
	}
	q.bfregs = &c.node.ctx.bfregs
	q.bfreg = q.bfregs.allocRegister()
	if errno := c.makeRaw(q, req, drv, objs); errno != 0 {
		_ = q.destroyAll()
		return errno
	}
	return 0
}

// rawFlags refuses creation flags that this device does not support.
func rawFlags(flags uint32, caps simnic.Caps) unix.Errno {
	serves := uint32(0)
	if caps.ScatterFCS {
		serves |= uverbs.QPCreateScatterFCS
	}
	if caps.VLANStrip {
		serves |= uverbs.QPCreateCVLANStripping
	}
	if caps.EndPad {
		serves |= uverbs.QPCreatePCIWriteEndPadding
	}
	if flags&^serves != 0 {
		return unix.EOPNOTSUPP
	}
	return 0
}

// rawSizes checks the sizes against each other and the device (set_rq_size, set_user_buf_size).
func rawSizes(req uverbs.ExCreateQPReq, drv uverbs.Mlx5CreateQPReq, caps simnic.Caps) unix.Errno {
	limit := uint32(1) << caps.LogMaxQueue
	hasRQ := req.MaxRecvWR != 0
	switch {
	case req.MaxRecvWR > limit,
		!hasRQ && (drv.RQWQECount != 0 || drv.RQWQEShift != 0),
		hasRQ && drv.RQWQEShift > 31,
		drv.SQWQECount > limit || bits.OnesCount32(drv.SQWQECount) > 1,
		drv.SQWQECount == 0 && (!hasRQ || drv.RQWQECount == 0):
		return unix.EINVAL
	}
	return 0
}

// makeRaw pins the memory and creates the queues.
func (c *call) makeRaw(q *qp, req uverbs.ExCreateQPReq, drv uverbs.Mlx5CreateQPReq,
	objs qpObjects) unix.Errno {
	var rqRing *simnic.Memory
	var errno unix.Errno
	if size := uint64(drv.RQWQECount) << drv.RQWQEShift; drv.BufAddr != 0 && size != 0 {
		if rqRing, errno = q.ring.pinBuffer(drv.BufAddr, size, false); errno != 0 {
			return errno
		}
	}
	record, errno := q.ring.mapDoorbell(drv.DBAddr)
	if errno != 0 {
		return errno
	}
	if drv.SQWQECount != 0 {
		if errno := c.makeSQ(q, drv, objs, record); errno != 0 {
			return errno
		}
	}
	if req.MaxRecvWR != 0 && drv.RQWQECount != 0 {
		if errno := c.makeRQ(q, req, drv, objs, rqRing, record); errno != 0 {
			return errno
		}
	}
	return c.uhw.out.putUpTo(uverbs.Mlx5CreateQPResp{BfregIndex: q.bfregs.clientIndex(q.bfreg)})
}

func (c *call) makeSQ(q *qp, drv uverbs.Mlx5CreateQPReq, objs qpObjects,
	record *simnic.Memory) unix.Errno {
	n := c.node
	format, errno := objs.send.stamps.stampFormat(n.nic.Caps().Timestamps)
	if errno != 0 {
		return errno
	}
	mem, errno := q.ring.pinBuffer(drv.SQBufAddr, uint64(drv.SQWQECount)*64, false)
	if errno != 0 {
		return errno
	}
	sq, err := n.nic.CreateSQ(simnic.SQAttr{
		PD: objs.pd.number, TD: n.ctx.td, CQ: objs.send.hw, Ring: mem,
		LogSize: bits.Len32(drv.SQWQECount) - 1,
		Record:  record, UAR: q.bfregs.uarPage(q.bfreg), UserIndex: drv.UIDX, Timestamps: format,
		MPW: n.nic.Caps().EnhancedMPW, LegacyMPW: n.nic.Caps().LegacyMPW, Events: q.passQueueError,
	})
	q.sq = sq
	return errnoOf(err)
}

func (c *call) makeRQ(q *qp, req uverbs.ExCreateQPReq, drv uverbs.Mlx5CreateQPReq, objs qpObjects,
	mem, record *simnic.Memory) unix.Errno {
	n := c.node
	if mem == nil {
		return unix.EINVAL
	}
	format, errno := objs.recv.stamps.stampFormat(n.nic.Caps().Timestamps)
	if errno != 0 {
		return errno
	}
	rq, err := n.nic.CreateRQ(simnic.RQAttr{
		PD: objs.pd.number, CQ: objs.recv.hw, Ring: mem, LogSize: bits.Len32(drv.RQWQECount) - 1,
		LogStride: int(drv.RQWQEShift),
		Record:    record, UserIndex: drv.UIDX, Timestamps: format, Events: q.passQueueError,
		VLANStrip:  req.CreateFlags&uverbs.QPCreateCVLANStripping != 0,
		ScatterFCS: req.CreateFlags&uverbs.QPCreateScatterFCS != 0,
		EndPad:     req.CreateFlags&uverbs.QPCreatePCIWriteEndPadding != 0,
	})
	if err != nil {
		return errnoOf(err)
	}
	q.rq, q.rqSegments = rq, uint32(1)<<drv.RQWQEShift/16
	q.tir, err = n.createTIR(simnic.TIRAttr{TD: n.ctx.td, RQ: rq,
		SelfLoopbackUnicast:   drv.Flags&uverbs.Mlx5QPFlagAllowSelfLBUC != 0,
		SelfLoopbackMulticast: drv.Flags&uverbs.Mlx5QPFlagAllowSelfLBMC != 0})
	return errnoOf(err)
}
