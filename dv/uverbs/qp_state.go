package uverbs

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// QPState is the state of a queue pair (enum ib_qp_state).
type QPState uint8

// States of a raw packet queue pair. It sends in RTS only.
//
//	          port            .               .
//	RESET ────────> INIT ────────> RTR ────────> RTS ─┐ rate limit
//	  ^               │              │            │ <─┘
//	  │               └──────────────┴────────────┤
//	  │                                           v
//	  ├─────────────────────────────── any but   ERR
//	  └───────────────────────────────────────────┘
//
// Forbidden, and refused here with EINVAL before the kernel is asked: skipping a state upwards,
// transitions down other than to RESET or ERR, RESET to ERR, and ERR to any state but RESET. (SQD
// and SQE exist for RDMA queues only.)
const (
	QPReset QPState = 0 // ring empty, counters zero
	QPInit  QPState = 1 // has a port; a receive queue would receive
	QPRTR   QPState = 2 // "ready to receive"
	QPRTS   QPState = 3 // "ready to send"
	QPSQD   QPState = 4
	QPSQE   QPState = 5
	QPErr   QPState = 6 // all work is flushed with errors
)

var qpStateNames = []string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}

// String returns the kernel's name of the state.
func (s QPState) String() string {
	if int(s) < len(qpStateNames) {
		return qpStateNames[s]
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// mayBecome reports whether the kernel allows the transition (linux
// drivers/infiniband/core/verbs.c, qp_state_table).
func (s QPState) mayBecome(to QPState) bool {
	switch to {
	case QPReset:
		return true
	case QPErr:
		return s != QPReset
	case QPInit, QPRTR, QPRTS:
		return s == to-1
	}
	return false
}

// QPInfo holds the result of QUERY_QP.
type QPInfo struct {
	State QPState // the kernel's record: a send queue that hit an error may still be in RTS here
	Port  uint8
}

// ToReady takes the queue pair from RESET to RTS on port (counted from 1). The send word of the
// doorbell record must be zero. On failure the queue pair stays in the state it reached.
func (qp *QP) ToReady(port uint8) error {
	if err := qp.Init(port); err != nil {
		return err
	}
	if err := qp.Modify(QPRTR); err != nil {
		return err
	}
	return qp.Modify(QPRTS)
}

// Init takes the queue pair from RESET to INIT on port (counted from 1).
func (qp *QP) Init(port uint8) error {
	return qp.modifyState(ModifyQPReq{AttrMask: QPAttrState | QPAttrPort,
		QPState: uint8(QPInit), PortNum: port})
}

// Modify takes the queue pair to a state other than INIT. A transition that the state diagram
// forbids fails with EINVAL. An RSS queue pair has no states: ENOSYS.
func (qp *QP) Modify(to QPState) error {
	return qp.modifyState(ModifyQPReq{AttrMask: QPAttrState, QPState: uint8(to)})
}

func (qp *QP) modifyState(r ModifyQPReq) error {
	qp.c.mu.Lock()
	defer qp.c.mu.Unlock()
	to := QPState(r.QPState)
	noun := fmt.Sprintf("%s from %v to %v", qp.noun, qp.state, to)
	if err := qp.checkTransition(noun, to, r.AttrMask); err != nil {
		return err
	}
	r.QPHandle = qp.handle
	err := qp.c.writeLocked(write{op: opModifyQP, noun: noun, in: r, uses: []*object{&qp.object}})
	if err == nil {
		qp.state = to
	}
	return err
}

// checkTransition checks a transition against the diagram; c.mu is held.
func (qp *QP) checkTransition(noun string, to QPState, mask uint32) error {
	switch {
	case qp.gone || qp.c.kernel == nil:
		return qp.checkUsable()
	case qp.Reg == nil:
		return &Error{Cmd: opModifyQP.verb, Object: noun, Errno: unix.ENOSYS,
			Hint: opHints[opModifyQP.name][unix.ENOSYS]}
	case !qp.state.mayBecome(to):
		return refuseArgs(opModifyQP, noun, "there is no such step")
	case (to == QPInit) != (mask&QPAttrPort != 0):
		return refuseArgs(opModifyQP, noun, "INIT, and only it, takes a port: use Init")
	}
	return nil
}

// Pacing limits the rate at which the device sends the frames of a send queue.
type Pacing struct {
	Kbps          uint32 // rate in kbit/s, DeviceCaps.PacingMinKbps to PacingMaxKbps; 0: no limit
	MaxBurst      uint32 // bytes sent back to back; 0: the device's choice
	TypicalPacket uint16 // bytes of most packets, for the device's precision; 0: unknown
}

// Pace limits the rate of a queue pair in RTS. ToReady after a reset starts without a limit.
// Errors: EOPNOTSUPP if the device cannot, EINVAL outside of its range, or for a burst or packet
// size with a rate of 0 or without DeviceCaps.PacingBurst; ENOSPC if all entries of the device's
// table hold other rates. The rate before then stays.
func (qp *QP) Pace(p Pacing) error {
	qp.c.mu.Lock()
	defer qp.c.mu.Unlock()
	noun := fmt.Sprintf("%s to %d kbit/s", qp.noun, p.Kbps)
	switch {
	case qp.gone || qp.c.kernel == nil:
		return qp.checkUsable()
	case qp.state != QPRTS:
		return refuseArgs(opPaceQP, noun, "only a queue that sends takes a rate")
	}
	w := write{op: opPaceQP, noun: noun, uses: []*object{&qp.object}, out: &ExModifyQPResp{},
		in: ExModifyQPReq{Base: ModifyQPReq{QPHandle: qp.handle, AttrMask: QPAttrRateLimit},
			RateLimit: p.Kbps}}
	if p.MaxBurst != 0 || p.TypicalPacket != 0 {
		w.uhwIn = Mlx5ModifyQPReq{BurstInfo: Mlx5BurstInfo{MaxBurstSz: p.MaxBurst,
			TypicalPktSz: p.TypicalPacket}}
	}
	return qp.c.writeLocked(w)
}

// Query queries the state. It also makes the kernel read the state of the hardware's send queue,
// which the next Modify presents to the firmware.
func (qp *QP) Query() (QPInfo, error) {
	var r QueryQPResp
	err := qp.c.runWrite(write{op: opQueryQP, noun: qp.noun, uses: []*object{&qp.object},
		in: QueryQPReq{QPHandle: qp.handle, AttrMask: QPAttrState}, out: &r})
	return QPInfo{State: QPState(r.QPState), Port: r.PortNum}, err
}

// Reset takes a queue pair whose send queue hit an error back to RESET. It queries first: the
// firmware refuses a transition if the current state in the command is wrong, and the kernel's
// record does not follow errors. Afterwards: drop stale completions of SQN, clear the doorbell
// record, start at index 0, ToReady.
func (qp *QP) Reset() error {
	if _, err := qp.Query(); err != nil {
		return err
	}
	return qp.Modify(QPReset)
}

// Replace returns the alternative recovery from an error, with fewer assumptions about firmware: it
// destroys the queue pair, creates a new one from a (which needs a cleared ring and doorbell
// record, and a different user index so that late completions can be told apart) and takes it to
// RTS. On failure the old queue pair may or may not be closed; the new one is.
func (qp *QP) Replace(a QPAttr, port uint8) (*QP, error) {
	if err := qp.Close(); err != nil {
		return nil, err
	}
	fresh, err := qp.pd.CreateRawQP(a)
	if err != nil {
		return nil, err
	}
	if err := fresh.ToReady(port); err != nil {
		fresh.Close()
		return nil, err
	}
	return fresh, nil
}
