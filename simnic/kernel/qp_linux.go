package kernel

import (
	"math/bits"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
)

// qp holds a queue pair of the client: a raw packet one, with a send queue, a receive queue or
// both, or an RSS queue pair, which is only a destination of flow rules and has no states.
//
// MODIFY_QP moves a raw packet queue pair through the states of verbs, and the driver moves the
// hardware's queues with it (qp_state_table in drivers/infiniband/core/verbs.c; optab and
// modify_raw_packet_qp in drivers/infiniband/hw/mlx5/qp.c):
//
//	       port number               no command               rate limit allowed
//	RESET ────────────▶ INIT ◀─┐ ──────────────▶ RTR ─────────────────────▶ RTS ◀─┐
//	       RQ: RST2RDY    └────┘                      SQ: RST2RDY             └───┘
//
//	any state but RESET ──▶ ERR      RQ and SQ: 2ERR
//	any state           ──▶ RESET    RQ and SQ: 2RST, counters return to the start
//	RTS ─ ─ ─ ─ ─ ─ ─ ─ ─ ─▶ SQE      the SQ has failed by itself, the RQ works: found by
//	                                 QUERY_QP; left through RESET or ERR
//
// All other transitions are EINVAL. So are SQD, which verbs has and mlx5's raw packet queues cannot
// enter, and the transition from SQE back to RTS.
type qp struct {
	// Set by CREATE_QP, read-only afterwards.
	sq         *simnic.SQ  // nil without a send side
	rq         *simnic.RQ  // nil without a receive side
	tir        *simnic.TIR // nil without a receive side
	rss        bool
	user       uint64 // the client's handle, returned in its asynchronous events
	asked      uverbs.ExCreateQPReq
	rqSegments uint32 // of one receive WQE
	ring       ring
	bfregs     *bfregs // nil without a register
	bfreg      uint32  // register of bfregs
	async      reports

	// Changed by MODIFY_QP and QUERY_QP, under the node's lock.
	state          uint8        // of the verbs queue pair
	rate           rate         // of the send queue
	sqSeen, rqSeen simnic.State // states of the hardware's queues as the driver recorded them
}

// createQPReq mirrors struct ib_uverbs_create_qp.
type createQPReq struct {
	Response                                          uint64
	UserHandle                                        uint64
	PDHandle, SendCQHandle, RecvCQHandle, SRQHandle   uint32
	MaxSendWR, MaxRecvWR, MaxSendSGE, MaxRecvSGE, Inl uint32
	SQSigAll, QPType, IsSRQ, Reserved                 uint8
}

// createQP implements CREATE_QP.
func createQP(c *call) unix.Errno {
	var old createQPReq
	if errno := c.readRequest(&old); errno != 0 {
		return errno
	}
	return c.createQP(uverbs.ExCreateQPReq{UserHandle: old.UserHandle, PDHandle: old.PDHandle,
		SendCQHandle: old.SendCQHandle, RecvCQHandle: old.RecvCQHandle, SRQHandle: old.SRQHandle,
		MaxSendWR: old.MaxSendWR, MaxRecvWR: old.MaxRecvWR, MaxSendSGE: old.MaxSendSGE,
		MaxRecvSGE:    old.MaxRecvSGE,
		MaxInlineData: old.Inl, SQSigAll: old.SQSigAll, QPType: old.QPType, IsSRQ: old.IsSRQ})
}

// exCreateQP returns the extended CREATE_QP.
func exCreateQP(c *call) unix.Errno {
	var req uverbs.ExCreateQPReq
	if errno := c.readRequest(&req); errno != 0 {
		return errno
	}
	if req.CompMask&^uverbs.CreateQPMaskIndTable != 0 || req.Reserved != 0 {
		return unix.EINVAL
	}
	return c.createQP(req)
}

// Queue pair types other than raw packet that the core accepts (enum ib_uverbs_qp_type), and
// creation flags it accepts (enum ib_uverbs_qp_create_flags).
const (
	qpTypeRC      = 2
	qpTypeUC      = 3
	qpTypeUD      = 4
	qpTypeXRCInit = 9
	qpTypeXRCTgt  = 10
	qpTypeDriver  = 0xff

	qpCreateFlags = 1<<1 | 1<<2 | 1<<3 | 1<<4 | 1<<10 |
		uverbs.QPCreateScatterFCS | uverbs.QPCreateCVLANStripping |
		uverbs.QPCreatePCIWriteEndPadding
)

// qpObjects names the objects that a queue pair uses.
type qpObjects struct {
	pd         *pd
	send, recv *cq
	table      *indTable
	uses       []*uobject
}

// createQP makes the checks of the core (create_qp in uverbs_cmd.c).
func (c *call) createQP(req uverbs.ExCreateQPReq) unix.Errno {
	n := c.node
	switch req.QPType {
	case uverbs.QPTypeRawPacket:
		if n.linux.cfg.NoNetRaw {
			return unix.EPERM
		}
	case qpTypeRC, qpTypeUC, qpTypeUD, qpTypeXRCInit, qpTypeXRCTgt, qpTypeDriver:
	default:
		return unix.EINVAL
	}
	if errno := n.checkContext(); errno != 0 {
		return errno
	}
	objs, errno := n.qpObjects(req)
	if errno != 0 {
		return errno
	}
	if req.CreateFlags&^qpCreateFlags != 0 {
		return unix.EINVAL
	}
	return c.driverCreateQP(req, objs)
}

// qpObjects looks up the objects that the request names, in the core's order.
func (n *node) qpObjects(req uverbs.ExCreateQPReq) (p qpObjects, errno unix.Errno) {
	var u *uobject
	take := func(u *uobject, errno unix.Errno) unix.Errno {
		if errno == 0 {
			p.uses = append(p.uses, u)
		}
		return errno
	}
	hasSQ := true
	if req.CompMask&uverbs.CreateQPMaskIndTable != 0 {
		u, p.table, errno = findObject[*indTable](n, uverbs.ObjectRWQIndTable, req.RWQIndTblHandle)
		if errno = take(u, errno); errno != 0 {
			return p, errno
		}
		if req.MaxRecvWR != 0 || req.MaxRecvSGE != 0 || req.IsSRQ != 0 {
			return p, unix.EINVAL
		}
		hasSQ = req.MaxSendWR != 0
	}
	if req.IsSRQ != 0 {
		return p, unix.EINVAL // no shared receive queue can exist
	}
	if p.table == nil && req.RecvCQHandle != req.SendCQHandle {
		u, p.recv, errno = findObject[*cq](n, uverbs.ObjectCQ, req.RecvCQHandle)
		if errno = take(u, errno); errno != 0 {
			return p, errno
		}
	}
	if hasSQ {
		u, p.send, errno = findObject[*cq](n, uverbs.ObjectCQ, req.SendCQHandle)
		if errno = take(u, errno); errno != 0 {
			return p, errno
		}
		if p.table == nil && p.recv == nil {
			p.recv = p.send
			p.uses = append(p.uses, u)
		}
	}
	u, p.pd, errno = findObject[*pd](n, uverbs.ObjectPD, req.PDHandle)
	return p, take(u, errno)
}

// driverCreateQP returns the driver's part (mlx5_ib_create_qp in drivers/infiniband/hw/mlx5/qp.c).
func (c *call) driverCreateQP(req uverbs.ExCreateQPReq, objs qpObjects) unix.Errno {
	n := c.node
	if req.QPType != uverbs.QPTypeRawPacket {
		return unix.EOPNOTSUPP // the model has no queues for RDMA
	}
	if n.ctx.version == 0 || !n.carriesEthernet() {
		return unix.EINVAL
	}
	q := &qp{user: req.UserHandle, asked: req, ring: ring{node: n},
		async: reports{file: n.events.asyncFile()}}
	var errno unix.Errno
	if objs.table != nil {
		errno = c.createRSS(q, req, objs)
	} else {
		errno = c.createRaw(q, req, objs)
	}
	if errno != 0 {
		return errno
	}
	if req.MaxRecvWR == 0 {
		req.MaxRecvSGE = 0
	}
	o := &uobject{kind: uverbs.ObjectQP, impl: q, user: q.user, uses: objs.uses,
		release: q.destroyAll}
	return c.finishCreate(o, func() unix.Errno {
		resp := uverbs.ExCreateQPResp{Base: uverbs.CreateQPResp{QPHandle: o.handle,
			QPN:       q.qpNumber(),
			MaxSendWR: req.MaxSendWR, MaxSendSGE: req.MaxSendSGE, MaxRecvWR: req.MaxRecvWR,
			MaxRecvSGE:    req.MaxRecvSGE,
			MaxInlineData: req.MaxInlineData}}
		resp.ResponseLength = c.responseLength(resp)
		return c.writeReply(resp)
	})
}

// qpNumber returns the QPN: that of the send queue, or of the receive queue if there is no send
// queue, 0 for an RSS queue pair.
func (q *qp) qpNumber() uint32 {
	switch {
	case q.sq != nil:
		return q.sq.Number()
	case q.rq != nil:
		return q.rq.Number()
	}
	return 0
}

// qpFlags holds the flags of the driver's request that are supported, or can be ignored
// (process_vendor_flags in qp.c). Signatures and tunnels are not.
const (
	qpFlags = uverbs.Mlx5QPFlagScatterCQE | qpFlagAllowScatter | qpFlagsSelfLB

	qpFlagAllowScatter = 0x100
	qpFlagsSelfLB      = uverbs.Mlx5QPFlagAllowSelfLBUC | uverbs.Mlx5QPFlagAllowSelfLBMC
)

// qpDriverWhole gives sizeof(struct mlx5_ib_create_qp). The fields after the part in package uverbs
// concern other kinds of queue pair.
const qpDriverWhole = 56

// qpDriver reads the driver's part of a request for a raw packet queue pair.
func (c *call) qpDriver() (drv uverbs.Mlx5CreateQPReq, errno unix.Errno) {
	if c.uhw.in.n < uverbs.SizeOf(drv) {
		return drv, unix.EINVAL
	}
	if !c.uhw.in.zeroFrom(qpDriverWhole) {
		return drv, unix.EINVAL
	}
	if errno := c.uhw.in.copyStruct(&drv); errno != 0 {
		return drv, errno
	}
	flags := qpFlags
	if drv.RQWQECount == 0 {
		flags |= uverbs.Mlx5QPFlagSignature // it concerns receive queues only
	}
	if drv.Flags&^flags != 0 || drv.UIDX > 0xffffff {
		return drv, unix.EINVAL
	}
	return drv, 0
}

// passQueueError passes on a catastrophic error of one of the queues.
func (q *qp) passQueueError(simnic.Event) { q.async.reportEvent(uverbs.EventQPFatal, q.user) }

// destroyAll frees all resources. It works in any state of the queues, and after an incomplete
// creation.
func (q *qp) destroyAll() error {
	if q.tir != nil {
		if err := q.ring.node.destroyTIR(q.tir); err != nil {
			return err
		}
		q.tir = nil
	}
	if !q.rss && q.state != qpReset &&
		q.moveQueues(simnic.StateReset, simnic.StateReset, true) == unix.EINVAL {
		// and continue (destroy_qp_common in drivers/infiniband/hw/mlx5/qp.c)
		q.ring.node.linux.refused.Add(1)
	}
	if q.rq != nil {
		if err := q.rq.Destroy(); err != nil {
			return err
		}
		q.rq = nil
	}
	if q.sq != nil {
		if err := q.sq.Destroy(); err != nil {
			return err
		}
		q.sq = nil
	}
	if q.bfregs != nil {
		q.bfregs.freeRegister(q.bfreg)
		q.bfregs = nil
	}
	q.ring.unpinAll()
	return nil
}

// destroyQP implements DESTROY_QP.
func destroyQP(c *call) unix.Errno {
	var req uverbs.DestroyQPReq
	if errno := c.readRequest(&req); errno != 0 {
		return errno
	}
	o, errno := c.node.destroyObject(uverbs.ObjectQP, req.QPHandle)
	if errno != 0 {
		return errno
	}
	return c.writeReply(uverbs.DestroyQPResp{EventsReported: o.impl.(*qp).async.sent.Load()})
}

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

// States of a verbs queue pair (enum ib_uverbs_qp_state in include/uapi/rdma/ib_user_verbs.h).
const (
	qpReset uint8 = 0
	qpInit  uint8 = 1
	qpRTR   uint8 = 2
	qpRTS   uint8 = 3
	qpSQD   uint8 = 4
	qpSQE   uint8 = 5
	qpErr   uint8 = 6
)

// qpStep describes a transition from one state to another.
type qpStep struct{ from, to uint8 }

// qpStepMask holds the attributes that a transition of a raw packet queue pair requires, and those
// it allows besides the state itself.
type qpStepMask struct{ needs, allows uint32 }

// qpSteps gives the transitions of a raw packet queue pair, drawn at type qp (qp_state_table in
// drivers/infiniband/core/verbs.c, without those that the driver refuses).
var qpSteps = map[qpStep]qpStepMask{
	{qpReset, qpReset}: {},
	{qpReset, qpInit}:  {needs: uverbs.QPAttrPort},
	{qpInit, qpReset}:  {},
	{qpInit, qpErr}:    {},
	{qpInit, qpInit}:   {},
	{qpInit, qpRTR}:    {},
	{qpRTR, qpReset}:   {},
	{qpRTR, qpErr}:     {},
	{qpRTR, qpRTS}:     {allows: uverbs.QPAttrRateLimit},
	{qpRTS, qpReset}:   {},
	{qpRTS, qpErr}:     {},
	{qpRTS, qpRTS}:     {allows: uverbs.QPAttrRateLimit},
	{qpSQE, qpReset}:   {},
	{qpSQE, qpErr}:     {},
	{qpErr, qpReset}:   {},
	{qpErr, qpErr}:     {},
}

// Attributes of MODIFY_QP that the core accepts (IB_QP_ATTR_STANDARD_BITS), and the address
// attributes, which name ports.
const (
	qpAttrStandard = 1<<21 - 1
	qpAttrAV       = 1 << 7
	qpAttrAltPath  = 1 << 14
)

// modifyQP implements MODIFY_QP.
func modifyQP(c *call) unix.Errno {
	var req uverbs.ExModifyQPReq
	if errno := c.readRequest(&req.Base); errno != 0 {
		return errno
	}
	if req.Base.AttrMask&^qpAttrStandard != 0 {
		return unix.EOPNOTSUPP
	}
	return c.modifyQP(req)
}

// exModifyQP returns the extended MODIFY_QP, which can also limit the rate.
func exModifyQP(c *call) unix.Errno {
	var req uverbs.ExModifyQPReq
	if errno := c.readRequest(&req); errno != 0 {
		return errno
	}
	if req.Base.AttrMask&^(qpAttrStandard|uverbs.QPAttrRateLimit) != 0 {
		return unix.EOPNOTSUPP
	}
	if errno := c.modifyQP(req); errno != 0 {
		return errno
	}
	var resp uverbs.ExModifyQPResp
	resp.ResponseLength = c.responseLength(resp)
	return c.writeReply(resp)
}

// modifyQP makes the checks of the core (modify_qp in uverbs_cmd.c) and of the
// driver (mlx5_ib_modify_qp in qp.c).
func (c *call) modifyQP(req uverbs.ExModifyQPReq) unix.Errno {
	b := &req.Base
	_, q, errno := findObject[*qp](c.node, uverbs.ObjectQP, b.QPHandle)
	if errno != 0 {
		return errno
	}
	has := func(bit uint32) bool { return b.AttrMask&bit != 0 }
	switch {
	case has(uverbs.QPAttrPort) && b.PortNum != 1,
		has(qpAttrAV) && b.Dest.PortNum != 1,
		has(qpAttrAltPath) && (b.AltPortNum != 1 || b.AltDest.PortNum != 1),
		has(uverbs.QPAttrCurState) && b.CurQPState > qpErr,
		has(uverbs.QPAttrState) && b.QPState > qpErr:
		return unix.EINVAL
	}
	if q.rss {
		return unix.ENOSYS
	}
	drv, errno := c.modifyDriver()
	if errno != 0 {
		return errno
	}
	from, to := q.state, q.state
	if has(uverbs.QPAttrCurState) {
		from, to = b.CurQPState, b.CurQPState
	}
	if has(uverbs.QPAttrState) {
		to = b.QPState
	}
	if !stepAllowed(from, to, b.AttrMask) {
		return unix.EINVAL
	}
	if !has(uverbs.QPAttrRateLimit) {
		return q.stepQueues(from, to)
	}
	r, errno := rateOf(req.RateLimit, drv.BurstInfo, c.node.nic.Caps().Pacing)
	if errno != 0 {
		return errno
	}
	return q.stepLimited(from, to, r)
}

// modifyDriver reads the driver's part, which is optional.
func (c *call) modifyDriver() (drv uverbs.Mlx5ModifyQPReq, errno unix.Errno) {
	if c.uhw.in.n == 0 {
		return drv, 0
	}
	if c.uhw.in.n < uverbs.SizeOf(drv) {
		return drv, unix.EINVAL
	}
	if errno := c.uhw.in.copyStruct(&drv); errno != 0 {
		return drv, errno
	}
	if drv.CompMask != 0 || drv.BurstInfo.Reserved != 0 {
		return drv, unix.EOPNOTSUPP
	}
	return drv, 0
}

// stepAllowed reports whether verbs allows a transition with these attributes (ib_modify_qp_is_ok).
func stepAllowed(from, to uint8, mask uint32) bool {
	if mask&uverbs.QPAttrCurState != 0 && (from < qpRTR || from > qpSQE) {
		return false
	}
	m, known := qpSteps[qpStep{from, to}]
	return known && mask&m.needs == m.needs && mask&^(m.needs|m.allows|uverbs.QPAttrState) == 0
}

// stepQueues moves the queues to the states that a verbs state requires: the receive queue runs
// from INIT on, the send queue from RTS on.
func (q *qp) stepQueues(from, to uint8) unix.Errno {
	if from == qpReset && to == qpReset {
		return 0
	}
	var errno unix.Errno
	switch to {
	case qpReset:
		errno = q.moveQueues(simnic.StateReset, simnic.StateReset, true)
	case qpErr:
		errno = q.moveQueues(simnic.StateError, simnic.StateError, true)
	case qpInit:
		if from == qpReset {
			errno = q.moveQueues(simnic.StateReady, simnic.StateReset, true)
		}
	case qpRTS:
		errno = q.moveQueues(q.rqSeen, simnic.StateReady, false)
	}
	if errno == 0 {
		q.state = to
	}
	return errno
}

// moveQueues requests new states of the hardware, from those the driver recorded: EINVAL if the
// recorded states are wrong (modify_raw_packet_qp).
func (q *qp) moveQueues(rq, sq simnic.State, receive bool) unix.Errno {
	if q.rq != nil && receive {
		if err := q.rq.Modify(q.rqSeen, rq); err != nil {
			return errnoOf(err)
		}
		q.rqSeen = rq
	}
	if q.sq != nil {
		if err := q.sq.Modify(q.sqSeen, sq); err != nil {
			return errnoOf(err)
		}
		q.sqSeen = sq
		if sq != simnic.StateReady {
			q.dropRate()
		}
	}
	return 0
}

// queryQP implements QUERY_QP. It also updates the driver's record of the states of the queues.
func queryQP(c *call) unix.Errno {
	var req uverbs.QueryQPReq
	if errno := c.readRequest(&req); errno != 0 {
		return errno
	}
	_, q, errno := findObject[*qp](c.node, uverbs.ObjectQP, req.QPHandle)
	if errno != 0 {
		return errno
	}
	if q.rss {
		return unix.ENOSYS
	}
	if errno := q.refreshState(); errno != 0 {
		return errno
	}
	resp := uverbs.QueryQPResp{QPState: q.state, CurQPState: q.state, PortNum: 1,
		MaxInlineData: q.asked.MaxInlineData}
	if q.rq != nil {
		resp.MaxRecvWR, resp.MaxRecvSGE = uint32(1)<<q.rq.Attr().LogSize, q.rqSegments
	}
	if q.asked.SQSigAll != 0 {
		resp.SQSigAll = 1
	}
	return c.writeReply(resp)
}

// refreshState records the actual states of the queues and derives the verbs state from them: it
// does not change unless they contradict it (sqrq_state_to_qp_state).
func (q *qp) refreshState() unix.Errno {
	if q.sq != nil {
		q.sqSeen = q.sq.State()
	}
	if q.rq == nil {
		return 0
	}
	q.rqSeen = q.rq.State()
	if q.sq == nil {
		switch q.rqSeen {
		case simnic.StateReset:
			q.state = qpReset
		case simnic.StateError:
			q.state = qpErr
		}
		return 0
	}
	switch {
	case q.rqSeen == simnic.StateReset && q.sqSeen == simnic.StateReset:
		q.state = qpReset
	case q.rqSeen == simnic.StateError && q.sqSeen == simnic.StateError:
		q.state = qpErr
	case q.rqSeen == simnic.StateReady && q.sqSeen == simnic.StateError:
		q.state = qpSQE
	case q.rqSeen != simnic.StateReady:
		return unix.EINVAL // no verbs state has queues like this
	}
	return 0
}
