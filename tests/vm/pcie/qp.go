package pcie

import (
	"bytes"

	"github.com/rdma-netstack/rdma-netstack/simnic"
)

// Queue pairs other than raw packet, which consists of a send and a receive queue. The driver has
// one that changes memory keys; a send queue executes its WQEs. For those of programs (RC, UC, UD)
// the model stores the context that the driver writes; they carry no traffic.

// Queue pair context (linux include/linux/mlx5/mlx5_ifc.h, qpc), at byte 24 of the commands
// that have one; the page list of CREATE_QP follows it.
var (
	qpcState       = field{0, 4}
	qpcType        = field{8, 8}
	qpcPD          = field{40, 24}
	qpcLogRQ       = field{73, 4}
	qpcLogRQStride = field{77, 3} // from 16 bytes
	qpcNoSQ        = field{80, 1}
	qpcLogSQ       = field{81, 4}
	qpcUAR         = field{104, 24}
	qpcUserIndex   = field{136, 24}
	qpcLogPageSize = field{163, 5}
	qpcSendCQ      = field{1000, 24}
	qpcPageOffset  = field{1172, 6}
	qpcRecord      = field{1280, 64}
	qpcRQKind      = field{1381, 3}
)

// Places of ring and doorbell record in a UMEM: in the command, and in the context.
var (
	qpRingUMEM   = umemPlace{field{2144, 1}, field{2112, 32}, field{2048, 64}}
	qpRecordUMEM = umemPlace{field{1667, 1}, field{1824, 32}, qpcRecord}
)

const (
	qpContext     = 24
	qpContextSize = 232
	qpPages       = 272

	qpUMR       = 0x0c // MLX5_QP_ST_REG_UMR
	rqInQP      = 0    // qpcRQKind: the ring starts with receive WQEs
	rqStrideMin = 4
)

// qpState is a state of a queue pair, in the numbers of the context.
type qpState uint8

// Queue pair states.
const (
	qpReset    qpState = 0
	qpInit     qpState = 1
	qpReceives qpState = 2 // RTR
	qpSends    qpState = 3 // RTS
	qpSendErr  qpState = 4
	qpError    qpState = 6
)

// queuePair is a queue pair: its context as the driver wrote it, and the send queue that executes
// WQEs which change memory keys.
type queuePair struct {
	number uint32
	ctx    [qpContextSize]byte
	sq     *simnic.SQ // nil: nothing is executed
}

// Destroy destroys the send queue of the queue pair.
func (q *queuePair) Destroy() error {
	if q.sq == nil {
		return nil
	}
	return q.sq.Destroy()
}

func (f *Function) createQP(in, out []byte) error {
	q := &queuePair{}
	copy(q.ctx[:], part(in, qpContext, qpContextSize))
	qpcState.set(q.ctx[:], uint64(qpReset))
	var err error
	if qpcType.get(q.ctx[:]) == qpUMR {
		if q.sq, err = f.keyQueue(in, q.ctx[:]); err == nil {
			q.number = q.sq.Number()
		}
	} else {
		q.number, err = f.numbers[kindQueue].alloc(firstPlain)
	}
	if err != nil {
		return err
	}
	f.objects.qps[q.number] = q
	number.set(out, uint64(q.number))
	return nil
}

// keyQueue is the send queue of a queue pair that changes memory keys.
func (f *Function) keyQueue(in, ctx []byte) (*simnic.SQ, error) {
	cq, err := find(f.objects.cqs, "completion queue", qpcSendCQ.u32(ctx))
	if err != nil {
		return nil, err
	}
	if qpcNoSQ.is(ctx) {
		return nil, errorf(statusBadParam, "queue pair for memory keys without a send queue")
	}
	shift, log := 12+int(qpcLogPageSize.get(ctx)), int(qpcLogSQ.get(ctx))
	skew, receive := pageOffsetBytes(qpcPageOffset.get(ctx), shift), 0
	if qpcRQKind.get(ctx) == rqInQP && qpcLogRQ.is(ctx) {
		receive = 1 << (qpcLogRQ.get(ctx) + qpcLogRQStride.get(ctx) + rqStrideMin)
	}
	ring, ringID, err := f.ringOf(qpRingUMEM, in, pageList{in, qpPages, shift, skew, receive},
		64<<log)
	if err != nil {
		return nil, err
	}
	rec, recordID, err := f.recordOf(qpRecordUMEM, ctx)
	if err != nil {
		return nil, err
	}
	sq, err := f.nic.CreateSQ(simnic.SQAttr{PD: qpcPD.u32(ctx), CQ: cq, Ring: ring, LogSize: log,
		Record: rec, UAR: qpcUAR.u32(ctx), UserIndex: qpcUserIndex.u32(ctx), UMR: true,
		Netdev: true, Events: f.queueEvent})
	if err == nil {
		f.objects.uses(sq.Number(), umemUse{ringID, recordID})
	}
	return sq, err
}

// qpTransition is a command that moves a queue pair into a state; from lists the states it may be
// in; an empty list allows any.
func qpTransition(to qpState, from ...qpState) func(*Function, []byte, []byte) error {
	return func(f *Function, in, _ []byte) error {
		q, err := find(f.objects.qps, "queue pair", number.u32(in))
		if err != nil {
			return err
		}
		now, allowed := qpState(qpcState.get(q.ctx[:])), len(from) == 0
		for _, s := range from {
			allowed = allowed || s == now
		}
		if !allowed {
			return errorf(statusBadState, "queue pair %#x is in state %d", q.number, now)
		}
		if len(in) >= qpContext+qpContextSize {
			q.modify(in[qpContext:])
		}
		qpcState.set(q.ctx[:], uint64(to))
		return q.follow(to)
	}
}

// qpcModified are the fields that a driver changes after creation, except the address paths.
var qpcModified = []field{
	{19, 2},    // pm_state
	{64, 3},    // mtu
	{67, 5},    // log_msg_max
	{96, 8},    // counter_set_id
	{168, 24},  // remote_qpn
	{896, 4},   // log_ack_req_freq
	{904, 3},   // log_sra_max
	{909, 3},   // retry_count
	{912, 3},   // rnr_retry
	{968, 24},  // next_send_psn
	{1160, 3},  // log_rra_max
	{1164, 4},  // atomic_mode
	{1168, 1},  // rre
	{1169, 1},  // rwe
	{1170, 1},  // rae
	{1187, 5},  // min_rnr_nak
	{1192, 24}, // next_rcv_psn
	{1344, 32}, // q_key
}

// Primary and secondary address path of a queue pair's context, in bytes.
var qpcPaths = [2]int{24, 68}

const qpcPathSize = 44

// modify merges the context of a modify command: a field that is zero there keeps its value, as the
// driver fills in only the fields it changes.
func (q *queuePair) modify(ctx []byte) {
	for _, f := range qpcModified {
		if f.is(ctx) {
			f.set(q.ctx[:], f.get(ctx))
		}
	}
	for _, at := range qpcPaths {
		path := ctx[at : at+qpcPathSize]
		if !bytes.Equal(path, make([]byte, qpcPathSize)) {
			copy(q.ctx[at:], path)
		}
	}
}

// follow moves the send queue into the state of its queue pair.
func (q *queuePair) follow(to qpState) error {
	if q.sq == nil {
		return nil
	}
	next, ok := map[qpState]simnic.State{qpReset: simnic.StateReset, qpSends: simnic.StateReady,
		qpError: simnic.StateError}[to]
	if !ok {
		return nil
	}
	return q.sq.Modify(q.sq.State(), next)
}

// queryQP executes QUERY_QP. A failed send queue shows as the state ERR.
func (f *Function) queryQP(in, out []byte) error {
	q, err := find(f.objects.qps, "queue pair", number.u32(in))
	if err != nil {
		return err
	}
	copy(out[qpContext:], q.ctx[:])
	if q.sq != nil && q.sq.State() == simnic.StateError {
		qpcState.set(out[qpContext:], uint64(qpError))
	}
	return nil
}

func (f *Function) destroyQP(in, _ []byte) error {
	q, err := find(f.objects.qps, "queue pair", number.u32(in))
	if err != nil {
		return err
	}
	if err := q.Destroy(); err != nil {
		return err
	}
	delete(f.objects.qps, q.number)
	delete(f.objects.inUMEM, q.number)
	if q.sq == nil {
		f.numbers[kindQueue].give(q.number)
	}
	return nil
}
