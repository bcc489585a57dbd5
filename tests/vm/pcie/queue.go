package pcie

import "github.com/rdma-netstack/rdma-netstack/simnic"

// Work queue (mlx5_ifc.h, wq): embedded in send and receive queue contexts at byte 48; its
// page list follows at byte 192.
var (
	wqType        = field{0, 4}
	wqEndPad      = field{5, 2}
	wqPageOffset  = field{43, 5}
	wqPD          = field{72, 24}
	wqUAR         = field{104, 24}
	wqRecord      = field{128, 64}
	wqLogStride   = field{268, 4}
	wqLogPageSize = field{275, 5}
	wqLogSize     = field{283, 5}
	wqLogStrides  = field{308, 4}
	wqByteShift   = field{312, 1}
	wqLogStrideSz = field{317, 3}
)

// Places of ring and doorbell record in a UMEM.
var (
	wqRingUMEM   = umemPlace{field{289, 1}, field{352, 32}, field{384, 64}}
	wqRecordUMEM = umemPlace{field{288, 1}, field{320, 32}, wqRecord}
)

// Kinds of receive work queues.
const (
	wqLinked         = 0
	wqCyclic         = 1
	wqLinkedStriding = 2
	wqCyclicStriding = 3
)

// Contexts of send and receive queues start at byte 32 of their commands.
const (
	queueContext     = 32
	queueContextSize = 240
	queueWQ          = 48
	queueWQSize      = 192
	queuePages       = queueContext + queueWQ + queueWQSize
)

// Send queue context (sqc).
var (
	queueState   = field{8, 4}
	queueIndex   = field{40, 24}
	queueCQ      = field{72, 24}
	sqcLegacyMPW = field{4, 1}
	sqcUMR       = field{12, 1}
	sqcTISCount  = field{256, 16}
	sqcTIS       = field{360, 24}
	rqcFCS       = field{2, 1}
	rqcVSD       = field{3, 1}
	rqcDelayDrop = field{1, 1}
	rqcMemory    = field{4, 4} // mem_rq_type
	rqcHairpin   = field{14, 1}
	queueStamps  = field{26, 2}
	modifyState  = field{64, 4}
)

func (f *Function) createSQ(in, out []byte) error {
	ctx := part(in, queueContext, queueContextSize)
	wq := ctx[queueWQ:]
	cq, err := find(f.objects.cqs, "completion queue", queueCQ.u32(ctx))
	if err != nil {
		return err
	}
	var td uint32 // 0 for a queue without TIS, which sends no frames: the driver's internal queues
	if sqcTISCount.is(ctx) {
		if td, err = find(f.objects.tis, "TIS", sqcTIS.u32(ctx)); err != nil {
			return err
		}
		if err = f.sendsRaw(in); err != nil {
			return err
		}
	}
	rate, err := f.rateFor(in)
	if err != nil {
		return err
	}
	ring, rec, use, err := f.workQueue(in, wq)
	if err != nil {
		return err
	}
	sq, err := f.nic.CreateSQ(simnic.SQAttr{
		PD: wqPD.u32(wq), TD: td, CQ: cq, Ring: ring, LogSize: int(wqLogSize.get(wq)), Record: rec,
		UAR: wqUAR.u32(wq), UserIndex: queueIndex.u32(ctx),
		Timestamps: simnic.TimestampFormat(queueStamps.get(ctx)),
		// allow_multi_pkt_send_wqe concerns only legacy multi-packet WQEs: linux 6.12 mlx5e sends
		// eMPWs without it.
		MPW: f.nic.Caps().EnhancedMPW, LegacyMPW: sqcLegacyMPW.is(ctx),
		UMR:  sqcUMR.is(ctx),
		Rate: rate.kbps * 1000, Burst: int(rate.burst),
		Netdev: f.isNetdev(wq), Events: f.queueEvent,
	})
	if err != nil {
		return err
	}
	f.objects.sqs[sq.Number()] = sq
	f.objects.uses(sq.Number(), use)
	number.set(out, uint64(sq.Number()))
	return nil
}

// workQueue maps a queue's ring and doorbell record.
func (f *Function) workQueue(in, wq []byte) (ring, rec *simnic.Memory, use umemUse, err error) {
	shift := 12 + int(wqLogPageSize.get(wq))
	size := 1 << (wqLogSize.get(wq) + wqLogStride.get(wq))
	ring, use.ring, err = f.ringOf(wqRingUMEM, wq, pageList{in, queuePages, shift,
		pageOffsetBytes(wqPageOffset.get(wq), shift), 0}, size)
	if err == nil {
		rec, use.record, err = f.recordOf(wqRecordUMEM, wq)
	}
	return ring, rec, use, err
}

// isNetdev tells the netdev's queues from those of programs: the netdev's are in the first
// protection domain that the driver allocates.
func (f *Function) isNetdev(wq []byte) bool { return wqPD.u32(wq) == firstPD }

const firstPD = 1

func (f *Function) modifySQ(in, _ []byte) error {
	sq, err := find(f.objects.sqs, "send queue", number.u32(in))
	if err != nil {
		return err
	}
	cur, next := stateChange(in)
	rate, limits, err := f.rateOf(in, next)
	if err == nil {
		err = sq.Modify(cur, next)
	}
	if err != nil || !limits {
		return err
	}
	return sq.LimitRate(rate.kbps*1000, int(rate.burst))
}

// stateChange is the state in which the driver takes the queue to be, and the one it requests.
func stateChange(in []byte) (cur, next simnic.State) {
	return simnic.State(modifyState.get(in)),
		simnic.State(queueState.get(part(in, queueContext, queueContextSize)))
}

func (f *Function) createRQ(in, out []byte) error {
	ctx := part(in, queueContext, queueContextSize)
	wq := ctx[queueWQ:]
	cq, err := find(f.objects.cqs, "completion queue", queueCQ.u32(ctx))
	if err != nil {
		return err
	}
	if rqcMemory.is(ctx) || rqcHairpin.is(ctx) {
		return errorf(statusBadParam, "receive queue in memory of kind %d: there are rings of its "+
			"own (0)", rqcMemory.get(ctx))
	}
	ring, rec, use, err := f.workQueue(in, wq)
	if err != nil {
		return err
	}
	if use.ring != 0 && f.objects.inUMEM[cq.Number()].ring == 0 {
		// reported of ConnectX-7 (github.com/NVIDIA/daqiri, daqiri_ibverbs_engine.cpp)
		return errorf(statusBadParam, "receive queue in a UMEM on completion queue %#x, which is "+
			"in none: a program's receive queue needs one that it created by commands", cq.Number())
	}
	kind := wqType.get(wq)
	attr := simnic.RQAttr{
		PD: wqPD.u32(wq), CQ: cq, Ring: ring, LogSize: int(wqLogSize.get(wq)),
		LogStride: int(wqLogStride.get(wq)),
		Record:    rec, UserIndex: queueIndex.u32(ctx),
		Timestamps: simnic.TimestampFormat(queueStamps.get(ctx)),
		LinkedList: kind == wqLinked || kind == wqLinkedStriding,
		VLANStrip:  !rqcVSD.is(ctx), ScatterFCS: rqcFCS.is(ctx), EndPad: wqEndPad.is(wq),
		DelayDrop: rqcDelayDrop.is(ctx),
		Count:     f.objects.queueCounters[rqcCounterSet.u32(ctx)],
		Netdev:    f.isNetdev(wq), Events: f.queueEvent,
	}
	if kind == wqLinkedStriding || kind == wqCyclicStriding {
		attr.Striding = striding(wq)
	}
	rq, err := f.nic.CreateRQ(attr)
	if err != nil {
		return err
	}
	f.objects.rqs[rq.Number()] = rq
	f.objects.uses(rq.Number(), use)
	number.set(out, uint64(rq.Number()))
	return nil
}

// striding decodes the stride fields: the stride size is log2 relative to 64 bytes, the number of
// strides log2 relative to 512, signed where the device supports fewer.
func striding(wq []byte) *simnic.Striding {
	n := int(wqLogStrides.get(wq))
	if n > 7 {
		n -= 16
	}
	return &simnic.Striding{LogStrideBytes: 6 + int(wqLogStrideSz.get(wq)), LogStrides: 9 + n,
		TwoByteShift: wqByteShift.is(wq)}
}

// modifyRQBits of MODIFY_RQ select the fields that change besides the state.
var (
	modifyRQBits = field{128, 64}
)

const (
	modifyVSD        = 1 << 1
	modifyCounterSet = 1 << 3
)

func (f *Function) modifyRQ(in, _ []byte) error {
	rq, err := find(f.objects.rqs, "receive queue", number.u32(in))
	if err != nil {
		return err
	}
	if modifyRQBits.get(in)&modifyVSD != 0 {
		if err := rq.SetVLANStrip(!rqcVSD.is(part(in, queueContext,
			queueContextSize))); err != nil {
			return err
		}
	}
	if modifyRQBits.get(in)&modifyCounterSet != 0 {
		rq.SetCount(f.objects.queueCounters[rqcCounterSet.u32(part(in, queueContext,
			queueContextSize))])
	}
	return rq.Modify(stateChange(in))
}

// queueEvent tells the driver that a queue failed. It may run with the queue's lock held.
func (f *Function) queueEvent(e simnic.Event) {
	typ, n := byte(eventWQCatas), uint32(0)
	switch {
	case e.CQ != nil:
		typ, n = eventCQError, e.CQ.Number()
	case e.SQ != nil:
		n = e.SQ.Number()
	case e.RQ != nil:
		n = e.RQ.Number()
	}
	var data [28]byte
	if typ == eventCQError {
		putU24(data[1:], n)
		data[11] = 1 // overrun
	} else {
		putU24(data[25:], n)
	}
	f.eqs.raise(f.eqs.listeners(typ), typ, 0, data)
}

func putU24(b []byte, v uint32) { b[0], b[1], b[2] = byte(v>>16), byte(v>>8), byte(v) }
