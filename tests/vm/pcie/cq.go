package pcie

import "github.com/rdma-netstack/rdma-netstack/simnic"

// Completion queue context (linux include/linux/mlx5/mlx5_ifc.h, cqc), at byte 16 of
// CREATE_CQ, MODIFY_CQ and the reply of QUERY_CQ; pages from byte 272.
var (
	cqcStatus      = field{0, 4}
	cqcEntrySize   = field{8, 3}
	cqcCollapsed   = field{11, 1}
	cqcIgnore      = field{14, 1}
	cqcPeriodMode  = field{15, 2}
	cqcCompress    = field{17, 1}
	cqcMiniFormat  = field{18, 2}
	cqcPageOffset  = field{84, 6}
	cqcLogSize     = field{99, 5}
	cqcUAR         = field{104, 24}
	cqcPeriod      = field{132, 12}
	cqcMaxCount    = field{144, 16}
	cqcEQ          = field{160, 32}
	cqcLogPageSize = field{195, 5}
	cqcConsumer    = field{328, 24}
	cqcProducer    = field{360, 24}
	cqcRecord      = field{448, 64}
)

// Places of ring and doorbell record in a UMEM: in the command, and in the context.
var (
	cqRingUMEM   = umemPlace{field{736, 1}, field{704, 32}, field{640, 64}}
	cqRecordUMEM = umemPlace{field{6, 1}, field{32, 32}, cqcRecord}
)

const (
	createCQContext = 16
	createCQPages   = 272
)

// pageOffsetBytes converts a page_offset, in units of 1/64 of a page of 1<<shift bytes.
func pageOffsetBytes(units uint64, shift int) int { return int(units) << shift >> 6 }

// cqEntrySize is the size of an entry in bytes.
func cqEntrySize(ctx []byte) int {
	if cqcEntrySize.get(ctx) == 1 {
		return 128
	}
	return 64
}

func (f *Function) createCQ(in, out []byte) error {
	ctx := part(in, createCQContext, 64)
	size, log, use := cqEntrySize(ctx), int(cqcLogSize.get(ctx)), umemUse{}
	ring, id, err := f.cqRing(in, ctx, size<<log)
	if err != nil {
		return err
	}
	use.ring = id
	rec, id, err := f.recordOf(cqRecordUMEM, ctx)
	if err != nil {
		return err
	}
	use.record = id
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
		PeriodMode: simnic.PeriodMode(cqcPeriodMode.get(ctx)),
		Completion: func(cq *simnic.CQ) { f.eqs.completion(eqn, cq.Number()) },
		Events:     f.queueEvent,
	})
	if err != nil {
		return err
	}
	f.objects.cqs[cq.Number()] = cq
	f.objects.uses(cq.Number(), use)
	number.set(out, uint64(cq.Number()))
	return nil
}

// cqRing maps the ring of a completion queue.
func (f *Function) cqRing(in, ctx []byte, size int) (*simnic.Memory, uint32, error) {
	shift := 12 + int(cqcLogPageSize.get(ctx))
	return f.ringOf(cqRingUMEM, in, pageList{in, createCQPages, shift,
		pageOffsetBytes(cqcPageOffset.get(ctx), shift), 0}, size)
}

// MODIFY_CQ changes selected members of the context (MLX5_CQ_MODIFY_*), or the ring if its
// operation modifier is cqResize.
var modifyCQSelect = field{96, 32}

const (
	cqResize       = 1 // operation modifier
	selectPeriod   = 1 << 0
	selectMaxCount = 1 << 1
	selectMode     = 1 << 4
)

// modifyCQ executes MODIFY_CQ.
func (f *Function) modifyCQ(in, _ []byte) error {
	cq, err := find(f.objects.cqs, "completion queue", number.u32(in))
	if err != nil {
		return err
	}
	ctx := part(in, createCQContext, 64)
	if opMod(in) == cqResize {
		return f.resizeCQ(cq, in, ctx)
	}
	a, what := cq.Attr(), modifyCQSelect.get(in)
	if what&selectPeriod != 0 {
		a.PeriodUsec = uint16(cqcPeriod.get(ctx))
	}
	if what&selectMaxCount != 0 {
		a.MaxCount = uint16(cqcMaxCount.get(ctx))
	}
	if what&selectMode != 0 {
		cq.SetPeriodMode(simnic.PeriodMode(cqcPeriodMode.get(ctx)))
	}
	return cq.Moderate(a.MaxCount, a.PeriodUsec)
}

// resizeCQ moves a completion queue to the ring whose pages the command lists.
func (f *Function) resizeCQ(cq *simnic.CQ, in, ctx []byte) error {
	a := cq.Attr()
	if cqEntrySize(ctx) != a.EntrySize {
		return errorf(statusBadParam, "completion queue of %d-byte entries resized to %d-byte ones",
			a.EntrySize, cqEntrySize(ctx))
	}
	log := int(cqcLogSize.get(ctx))
	ring, id, err := f.cqRing(in, ctx, a.EntrySize<<log)
	if err != nil {
		return err
	}
	if err := cq.Resize(ring, log); err != nil {
		return err
	}
	f.objects.uses(cq.Number(), umemUse{id, f.objects.inUMEM[cq.Number()].record})
	return nil
}

// queryCQ executes QUERY_CQ.
func (f *Function) queryCQ(in, out []byte) error {
	cq, err := find(f.objects.cqs, "completion queue", number.u32(in))
	if err != nil {
		return err
	}
	a, ctx := cq.Attr(), out[createCQContext:]
	producer, consumer := cq.Indices()
	for _, v := range []capValue{
		{"status", cqcStatus, uint64(cq.Status())},
		{"cqe_sz", cqcEntrySize, flag(a.EntrySize == 128)},
		{"cc", cqcCollapsed, flag(a.Collapsed)},
		{"oi", cqcIgnore, flag(a.IgnoreOverrun)},
		{"log_cq_size", cqcLogSize, uint64(a.LogSize)},
		{"uar_page", cqcUAR, uint64(a.UAR)},
		{"cq_period", cqcPeriod, uint64(a.PeriodUsec)},
		{"cq_max_count", cqcMaxCount, uint64(a.MaxCount)},
		{"cq_period_mode", cqcPeriodMode, uint64(a.PeriodMode)},
		{"consumer_counter", cqcConsumer, uint64(consumer)},
		{"producer_counter", cqcProducer, uint64(producer)},
	} {
		v.f.set(ctx, v.v)
	}
	return nil
}
