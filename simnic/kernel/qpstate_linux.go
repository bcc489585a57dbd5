package kernel

import (
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"golang.org/x/sys/unix"
)

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

// qpStepMask is the attributes that a transition of a raw packet queue pair requires, and those it
// allows besides the state itself.
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
	if has(uverbs.QPAttrRateLimit) && (req.RateLimit != 0 || drv.BurstInfo.MaxBurstSz != 0) {
		return unix.EOPNOTSUPP // the model paces nothing
	}
	return q.stepQueues(from, to)
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
