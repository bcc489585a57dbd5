package kernel

import (
	"math/bits"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
)

// wq represents a receive work queue of the client.
type wq struct {
	hw    *simnic.RQ
	state uint32 // as the driver recorded it: 0 RESET, 1 RDY, 2 ERR
	async reports
	user  uint64
}

// wqStates holds the hardware's states by the number verbs gives them (enum
// ib_uverbs_wq_state... of include/rdma/ib_verbs.h).
var wqStates = [...]simnic.State{simnic.StateReset, simnic.StateReady, simnic.StateError}

const wqError = 2

// exCreateWQ implements CREATE_WQ.
func exCreateWQ(c *call) unix.Errno {
	var req uverbs.ExCreateWQReq
	if errno := c.readRequest(&req); errno != 0 {
		return errno
	}
	if req.CompMask != 0 {
		return unix.EOPNOTSUPP
	}
	n := c.node
	if errno := n.checkContext(); errno != 0 {
		return errno
	}
	domain, p, errno := findObject[*pd](n, uverbs.ObjectPD, req.PDHandle)
	if errno != 0 {
		return errno
	}
	completions, q, errno := findObject[*cq](n, uverbs.ObjectCQ, req.CQHandle)
	if errno != 0 {
		return errno
	}
	o, errno := c.makeWQ(req, p, q)
	if errno != 0 {
		return errno
	}
	o.uses = []*uobject{domain, completions}
	return c.finishCreate(o, func() unix.Errno {
		resp := uverbs.ExCreateWQResp{WQHandle: o.handle, MaxWR: req.MaxWR, MaxSGE: req.MaxSGE,
			WQN: o.impl.(*wq).hw.Number()}
		resp.ResponseLength = c.responseLength(resp)
		return c.writeReply(resp)
	})
}

// makeWQ returns the driver's part (mlx5_ib_create_wq in drivers/infiniband/hw/mlx5/qp.c).
func (c *call) makeWQ(req uverbs.ExCreateWQReq, p *pd, completions *cq) (*uobject, unix.Errno) {
	n := c.node
	if c.uhw.out.n != 0 && c.uhw.out.n < uverbs.SizeOf(uverbs.Mlx5CreateWQResp{}) {
		return nil, unix.EINVAL
	}
	if req.CreateFlags&uverbs.WQFlagDelayDrop != 0 && n.linux.cfg.NoRawIO {
		return nil, unix.EPERM
	}
	if req.WQType != uverbs.WQTypeRQ {
		return nil, unix.EINVAL
	}
	drv, errno := c.wqDriver(req)
	if errno != 0 {
		return nil, errno
	}
	q := &wq{user: req.UserHandle, async: reports{file: n.events.asyncFile()}}
	if n.linux.isRelease(Linux54) {
		q.user = 0 // not kept there
	}
	r := &ring{node: n}
	attr := simnic.RQAttr{PD: p.number, CQ: completions.hw, LogSize: bits.Len32(drv.RQWQECount) - 1,
		LogStride: int(drv.RQWQEShift),
		UserIndex: drv.UserIndex & 0xffffff, Striding: stridingOf(drv),
		Events: func(simnic.Event) { q.async.reportEvent(uverbs.EventWQFatal, q.user) }}
	if attr.Timestamps,
		errno = completions.stamps.stampFormat(n.nic.Caps().Timestamps); errno == 0 {
		errno = q.createWQ(n, r, &attr, req.CreateFlags, drv)
	}
	if errno == 0 {
		errno = c.uhw.out.putUpTo(uverbs.Mlx5CreateWQResp{ResponseLength: uint32(min(c.uhw.out.n,
			8))})
		if errno != 0 {
			_ = q.hw.Destroy()
		}
	}
	if errno != 0 {
		r.unpinAll()
		return nil, errno
	}
	return &uobject{kind: uverbs.ObjectWQ, impl: q, user: q.user,
		release: r.freeAfter(q.hw.Destroy)}, 0
}

// createWQ pins the memory, checks the features, and creates the queue.
func (q *wq) createWQ(n *node, r *ring, a *simnic.RQAttr, flags uint32,
	drv uverbs.Mlx5CreateWQReq) (errno unix.Errno) {
	if a.Ring, errno = r.pinBuffer(drv.BufAddr,
		uint64(drv.RQWQECount)<<drv.RQWQEShift, false); errno != 0 {
		return errno
	}
	if a.Record, errno = r.mapDoorbell(drv.DBAddr); errno != 0 {
		return errno
	}
	caps := n.nic.Caps()
	for _, f := range []struct {
		bit uint32
		has bool
		set *bool
	}{
		{uverbs.WQFlagCVLANStripping, caps.VLANStrip, &a.VLANStrip},
		{uverbs.WQFlagScatterFCS, caps.ScatterFCS, &a.ScatterFCS},
		{uverbs.WQFlagDelayDrop, caps.DelayDrop, &a.DelayDrop},
		{uverbs.WQFlagPCIWriteEndPadding, caps.EndPad, &a.EndPad},
	} {
		if *f.set = flags&f.bit != 0; *f.set && !f.has {
			return unix.EOPNOTSUPP
		}
	}
	var err error
	q.hw, err = n.nic.CreateRQ(*a)
	return errnoOf(err)
}

// wqDriverMin says where the first version of struct mlx5_ib_create_wq ends.
const wqDriverMin = 40

// wqDriver reads and checks the driver's part of the request (prepare_user_rq,
// set_user_rq_size, create_user_rq).
func (c *call) wqDriver(req uverbs.ExCreateWQReq) (drv uverbs.Mlx5CreateWQReq, errno unix.Errno) {
	if c.uhw.in.n < wqDriverMin {
		return drv, unix.EINVAL
	}
	if !c.uhw.in.zeroFrom(uverbs.SizeOf(drv)) {
		return drv, unix.EOPNOTSUPP
	}
	if errno := c.uhw.in.copyStruct(&drv); errno != 0 {
		return drv, errno
	}
	if drv.CompMask&^uverbs.Mlx5CreateWQMaskStridingRQ != 0 {
		return drv, unix.EOPNOTSUPP
	}
	caps := c.node.nic.Caps()
	if drv.CompMask&uverbs.Mlx5CreateWQMaskStridingRQ != 0 {
		if errno := stridingAllowed(drv, caps); errno != 0 {
			return drv, errno
		}
	}
	switch {
	case req.MaxWR > 1<<caps.LogMaxQueue,
		drv.RQWQECount == 0,
		drv.RQWQEShift > 31 || uint64(drv.RQWQECount)<<drv.RQWQEShift > 1<<32-1,
		drv.BufAddr == 0:
		return drv, unix.EINVAL
	}
	return drv, 0
}

func stridingAllowed(drv uverbs.Mlx5CreateWQReq, caps simnic.Caps) unix.Errno {
	outside := func(v uint32, low, high int) bool { return v < uint32(low) || v > uint32(high) }
	switch {
	case !caps.StridingRQ:
		return unix.EOPNOTSUPP
	case outside(drv.StrideLogBytes, caps.LogMinStride, caps.LogMaxStride),
		outside(drv.WQELogNumStrides, caps.LogMinStrides, caps.LogMaxStrides):
		return unix.EINVAL
	}
	return 0
}

func stridingOf(drv uverbs.Mlx5CreateWQReq) *simnic.Striding {
	if drv.CompMask&uverbs.Mlx5CreateWQMaskStridingRQ == 0 {
		return nil
	}
	return &simnic.Striding{LogStrideBytes: int(drv.StrideLogBytes),
		LogStrides: int(drv.WQELogNumStrides), TwoByteShift: drv.TwoByteShiftEn != 0}
}

// exModifyWQ implements MODIFY_WQ (mlx5_ib_modify_wq in qp.c).
func exModifyWQ(c *call) unix.Errno {
	var req uverbs.ExModifyWQReq
	if errno := c.readRequest(&req); errno != 0 {
		return errno
	}
	if req.AttrMask == 0 ||
		req.AttrMask > uverbs.WQAttrState|uverbs.WQAttrCurState|uverbs.WQAttrFlags {
		return unix.EINVAL
	}
	_, q, errno := findObject[*wq](c.node, uverbs.ObjectWQ, req.WQHandle)
	if errno != 0 {
		return errno
	}
	from := q.state
	if req.AttrMask&uverbs.WQAttrCurState != 0 {
		from = req.CurrWQState
	}
	to := from
	if req.AttrMask&uverbs.WQAttrState != 0 {
		to = req.WQState
	}
	if from > wqError || to > wqError {
		return unix.EINVAL
	}
	if errno := c.modifyWQDriver(); errno != 0 {
		return errno
	}
	if req.AttrMask&uverbs.WQAttrFlags == 0 {
		req.Flags, req.FlagsMask = 0, 0
	}
	return q.modifyWQ(c.node.linux, from, to, req.Flags, req.FlagsMask)
}

// modifyWQDriver checks the driver's part, which must be present and zero.
func (c *call) modifyWQDriver() unix.Errno {
	var drv uverbs.Mlx5ModifyWQReq
	if c.uhw.in.n < uverbs.SizeOf(drv) {
		return unix.EINVAL
	}
	if !c.uhw.in.zeroFrom(uverbs.SizeOf(drv)) {
		return unix.EOPNOTSUPP
	}
	if errno := c.uhw.in.copyStruct(&drv); errno != 0 {
		return errno
	}
	if drv.CompMask != 0 || drv.Reserved != 0 {
		return unix.EOPNOTSUPP
	}
	return 0
}

// modifyWQ moves the queue and switches VLAN stripping.
func (q *wq) modifyWQ(l *Linux, from, to, flags, mask uint32) unix.Errno {
	strip := mask&uverbs.WQFlagCVLANStripping != 0
	if strip && !l.nic.Caps().VLANStrip || mask&uverbs.WQFlagPCIWriteEndPadding != 0 {
		return unix.EOPNOTSUPP
	}
	if err := q.hw.Modify(wqStates[from], wqStates[to]); err != nil {
		l.refused.Add(1)
		return errnoOf(err)
	}
	q.state = to
	if strip {
		return errnoOf(q.hw.SetVLANStrip(flags&uverbs.WQFlagCVLANStripping != 0))
	}
	return 0
}

// exDestroyWQ implements DESTROY_WQ.
func exDestroyWQ(c *call) unix.Errno {
	var req uverbs.ExDestroyWQReq
	if errno := c.readRequest(&req); errno != 0 {
		return errno
	}
	if req.CompMask != 0 {
		return unix.EOPNOTSUPP
	}
	o, errno := c.node.destroyObject(uverbs.ObjectWQ, req.WQHandle)
	if errno != 0 {
		return errno
	}
	resp := uverbs.ExDestroyWQResp{EventsReported: o.impl.(*wq).async.sent.Load()}
	resp.ResponseLength = c.responseLength(resp)
	return c.writeReply(resp)
}
