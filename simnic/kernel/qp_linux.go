package kernel

import (
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

// qpObjects are the objects that a queue pair uses.
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

// qpFlags are the flags of the driver's request that are supported, or can be ignored
// (process_vendor_flags in qp.c). Signatures and tunnels are not.
const (
	qpFlags = uverbs.Mlx5QPFlagScatterCQE | qpFlagAllowScatter | qpFlagsSelfLB

	qpFlagAllowScatter = 0x100
	qpFlagsSelfLB      = uverbs.Mlx5QPFlagAllowSelfLBUC | uverbs.Mlx5QPFlagAllowSelfLBMC
)

// qpDriverWhole is sizeof(struct mlx5_ib_create_qp). The fields after the part in package uverbs
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
