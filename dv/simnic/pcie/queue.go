package pcie

import "github.com/rdma-netstack/rdma-netstack/dv/simnic"

// Completion queue context (linux include/linux/mlx5/mlx5_ifc.h, cqc), at byte 16 of
// CREATE_CQ; pages from byte 272.
var (
	cqcEntrySize   = field{8, 3}
	cqcCollapsed   = field{11, 1}
	cqcIgnore      = field{14, 1}
	cqcCompress    = field{17, 1}
	cqcMiniFormat  = field{18, 2}
	cqcPageOffset  = field{84, 6}
	cqcLogSize     = field{99, 5}
	cqcUAR         = field{104, 24}
	cqcPeriod      = field{132, 12}
	cqcMaxCount    = field{144, 16}
	cqcEQ          = field{160, 32}
	cqcLogPageSize = field{195, 5}
	cqcRecord      = field{448, 64}
)

const (
	createCQContext = 16
	createCQPages   = 272
)

// pageOffsetBytes converts a page_offset, in units of 1/64 of a page of 1<<shift bytes.
func pageOffsetBytes(units uint64, shift int) int { return int(units) << shift >> 6 }

func (f *Function) createCQ(in, out []byte) error {
	ctx := part(in, createCQContext, 64)
	size := 64
	if cqcEntrySize.get(ctx) == 1 {
		size = 128
	}
	log, shift := int(cqcLogSize.get(ctx)), 12+int(cqcLogPageSize.get(ctx))
	ring, err := f.ring(in, createCQPages, shift, pageOffsetBytes(cqcPageOffset.get(ctx), shift),
		size<<log)
	if err != nil {
		return err
	}
	rec, err := f.record(cqcRecord.get(ctx))
	if err != nil {
		return err
	}
	eqn := cqcEQ.u32(ctx) & 0xff
	if f.eqs.get(eqn) == nil {
		return errorf(statusBadParam, "completion queue on event queue %d, which does not exist",
			eqn)
	}
	cq, err := f.nic.CreateCQ(simnic.CQAttr{
		Ring: ring, LogSize: log, EntrySize: size, Record: rec, UAR: cqcUAR.u32(ctx),
		IgnoreOverrun: cqcIgnore.is(ctx), Collapsed: cqcCollapsed.is(ctx),
		Compress: cqcCompress.is(ctx), MiniFormat: simnic.MiniFormat(cqcMiniFormat.get(ctx)),
		MaxCount: uint16(cqcMaxCount.get(ctx)), PeriodUsec: uint16(cqcPeriod.get(ctx)),
		Completion: func(cq *simnic.CQ) { f.eqs.completion(eqn, cq.Number()) },
		Events:     f.queueEvent,
	})
	if err != nil {
		return err
	}
	f.objects.cqs[cq.Number()] = cq
	number.set(out, uint64(cq.Number()))
	return nil
}

// modifyCQ executes MODIFY_CQ: moderation only, a resize is refused.
func (f *Function) modifyCQ(in, _ []byte) error {
	cq, err := find(f.objects.cqs, "completion queue", number.u32(in))
	if err != nil {
		return err
	}
	if opMod(in) != 0 {
		return errorf(statusBadParam, "completion queue resize")
	}
	ctx := part(in, createCQContext, 64)
	return cq.Moderate(uint16(cqcMaxCount.get(ctx)), uint16(cqcPeriod.get(ctx)))
}

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
	sqcTISCount  = field{256, 16}
	sqcTIS       = field{360, 24}
	rqcFCS       = field{2, 1}
	rqcVSD       = field{3, 1}
	rqcDelayDrop = field{1, 1}
	modifyState  = field{64, 4}
)

func (f *Function) createSQ(in, out []byte) error {
	ctx := part(in, queueContext, queueContextSize)
	wq := ctx[queueWQ:]
	cq, err := find(f.objects.cqs, "completion queue", queueCQ.u32(ctx))
	if err != nil {
		return err
	}
	var td uint32 // a queue without TIS sends nothing to the wire: the driver's internal ones
	if sqcTISCount.is(ctx) {
		if td, err = find(f.objects.tis, "TIS", sqcTIS.u32(ctx)); err != nil {
			return err
		}
	}
	ring, rec, err := f.workQueue(in, wq)
	if err != nil {
		return err
	}
	sq, err := f.nic.CreateSQ(simnic.SQAttr{
		PD: wqPD.u32(wq), TD: td, CQ: cq, Ring: ring, LogSize: int(wqLogSize.get(wq)), Record: rec,
		UAR: wqUAR.u32(wq), UserIndex: queueIndex.u32(ctx),
		// allow_multi_pkt_send_wqe is about the legacy form only: linux 6.12 mlx5e sends
		// enhanced ones without it.
		MPW:    f.nic.Caps().EnhancedMPW,
		Netdev: f.isNetdev(wq), Events: f.queueEvent,
	})
	if err != nil {
		return err
	}
	f.objects.sqs[sq.Number()] = sq
	number.set(out, uint64(sq.Number()))
	return nil
}

// workQueue maps a queue's ring and doorbell record.
func (f *Function) workQueue(in, wq []byte) (ring, rec *simnic.Memory, err error) {
	shift := 12 + int(wqLogPageSize.get(wq))
	size := 1 << (wqLogSize.get(wq) + wqLogStride.get(wq))
	if ring, err = f.ring(in, queuePages, shift, pageOffsetBytes(wqPageOffset.get(wq), shift),
		size); err != nil {
		return nil, nil, err
	}
	rec, err = f.record(wqRecord.get(wq))
	return ring, rec, err
}

// isNetdev tells the netdev's queues from users': they are in the first protection domain
// the driver allocates.
func (f *Function) isNetdev(wq []byte) bool { return wqPD.u32(wq) == firstPD }

const firstPD = 1

func (f *Function) modifySQ(in, _ []byte) error {
	sq, err := find(f.objects.sqs, "send queue", number.u32(in))
	if err != nil {
		return err
	}
	return sq.Modify(stateChange(in))
}

// stateChange is the state the driver believes a queue is in, and the one it wants.
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
	ring, rec, err := f.workQueue(in, wq)
	if err != nil {
		return err
	}
	kind := wqType.get(wq)
	attr := simnic.RQAttr{
		PD: wqPD.u32(wq), CQ: cq, Ring: ring, LogSize: int(wqLogSize.get(wq)),
		LogStride: int(wqLogStride.get(wq)),
		Record:    rec, UserIndex: queueIndex.u32(ctx),
		LinkedList: kind == wqLinked || kind == wqLinkedStriding,
		VLANStrip:  !rqcVSD.is(ctx), ScatterFCS: rqcFCS.is(ctx), EndPad: wqEndPad.is(wq),
		DelayDrop: rqcDelayDrop.is(ctx),
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
	number.set(out, uint64(rq.Number()))
	return nil
}

// striding decodes the stride fields: the stride size counts from 64 bytes, the number of
// strides from 512, as a signed number where the device takes fewer.
func striding(wq []byte) *simnic.Striding {
	n := int(wqLogStrides.get(wq))
	if n > 7 {
		n -= 16
	}
	return &simnic.Striding{LogStrideBytes: 6 + int(wqLogStrideSz.get(wq)), LogStrides: 9 + n,
		TwoByteShift: wqByteShift.is(wq)}
}

// modifyRQBits of MODIFY_RQ select what besides the state changes.
var (
	modifyRQBits = field{128, 64}
)

const modifyVSD = 1 << 1

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
	return rq.Modify(stateChange(in))
}

// queueEvent tells the driver of a queue that failed. It may run with the queue's lock held.
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
