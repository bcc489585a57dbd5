package pcie

import (
	"encoding/binary"
)

// program acts as a program that creates objects by commands of its own (DEVX), in memory that it
// registered. Commands pass through the driver, which adds the number of the user context.
type program struct {
	*driver
	uid uint32
}

// newProgram creates a user context that may send frames.
func (d *driver) newProgram() *program {
	d.t.Helper()
	in := input(0xa04, 0, 64)
	contextCaps.set(in, contextSendsRaw)
	p := &program{driver: d, uid: contextNumber.u32(d.do("CREATE_UCTX", in, 16))}
	if p.uid == 0 {
		d.t.Error("user context 0 is the driver's own")
	}
	return p
}

// in is the input of a command of the program.
func (p *program) in(op uint16, size int) []byte {
	in := input(op, 0, size)
	commandContext.set(in, uint64(p.uid))
	return in
}

// memory is a UMEM and its pages: no two are adjacent.
type memory struct {
	id     uint32
	ram    []byte
	offset int // of the first byte in the first page
	pages  []uint64
}

// register creates a UMEM of pages of 4 KiB.
func (p *program) register(offset int, pages ...uint64) *memory {
	p.t.Helper()
	in := p.in(0xa08, umemPages)
	umemPageOffset.set(in, uint64(offset))
	umemPageCount.set(in, uint64(len(pages)))
	for _, a := range pages {
		in = binary.BigEndian.AppendUint64(in, a|3) // may be read and written
	}
	id := number.u32(p.do("CREATE_UMEM", in, 16))
	return &memory{id: id, ram: p.ram, offset: offset, pages: pages}
}

// at is memory at an offset of the UMEM, to the end of its page.
func (m *memory) at(off int) []byte {
	off += m.offset
	return m.ram[m.pages[off/4096]+uint64(off%4096) : m.pages[off/4096]+4096]
}

// bytes gathers n bytes.
func (m *memory) bytes(off, n int) (b []byte) {
	for len(b) < n {
		b = append(b, m.at(off+len(b))...)
	}
	return b[:n]
}

// put makes a structure name the UMEM.
func (m *memory) put(p umemPlace, b []byte, off int) {
	p.valid.set(b, 1)
	p.id.set(b, uint64(m.id))
	p.offset.set(b, uint64(off))
}

// Offsets of the queues in the program's UMEM. The send ring crosses the end of a page.
const (
	umemCQ, umemRQ, umemSQ = 0, 1024, 3840
	umemRecords            = 5120 // of the completion, the send and the receive queue, 64 B apart
)

// cq creates a completion queue of 16 entries at an offset.
func (p *program) cq(m *memory, ring, record int) uint32 {
	p.t.Helper()
	return number.u32(p.do("CREATE_CQ", p.cqIn(m, ring, record), 16))
}

func (p *program) cqIn(m *memory, ring, record int) []byte {
	in := p.in(0x400, 272)
	ctx := in[createCQContext:]
	cqcLogSize.set(ctx, 4)
	cqcEQ.set(ctx, uint64(p.eqn))
	cqcUAR.set(ctx, firstUAR)
	m.put(cqRingUMEM, in, ring)
	m.put(cqRecordUMEM, ctx, record)
	return in
}

// queue is the input that creates a work queue of 16 entries.
func (p *program) queue(op uint16, m *memory, cqn uint32, ring, record, logStride int) []byte {
	in := p.in(op, queuePages)
	ctx := in[queueContext:]
	queueCQ.set(ctx, uint64(cqn))
	wq := ctx[queueWQ:]
	wqType.set(wq, wqCyclic)
	wqPD.set(wq, 2)
	wqUAR.set(wq, firstUAR)
	wqLogStride.set(wq, uint64(logStride))
	wqLogSize.set(wq, 4)
	m.put(wqRingUMEM, wq, ring)
	m.put(wqRecordUMEM, wq, record)
	return in
}

// ready moves a queue to the state RDY.
func (p *program) ready(op uint16, n uint32) {
	p.t.Helper()
	in := about(op, n, 272)
	commandContext.set(in, uint64(p.uid))
	queueState.set(in[queueContext:], 1)
	p.do("a queue to RDY", in, 16)
}

// rq creates a receive queue that is ready.
func (p *program) rq(m *memory, cqn uint32) uint32 {
	p.t.Helper()
	in := p.queue(0x908, m, cqn, umemRQ, umemRecords+128, 4)
	rqcVSD.set(in[queueContext:], 1)
	n := number.u32(p.do("CREATE_RQ", in, 16))
	p.ready(0x909, n)
	return n
}

// sqIn is the input that creates a send queue on a TIS.
func (p *program) sqIn(m *memory, cqn, tis uint32) []byte {
	in := p.queue(0x904, m, cqn, umemSQ, umemRecords+64, 6)
	sqcTISCount.set(in[queueContext:], 1)
	sqcTIS.set(in[queueContext:], uint64(tis))
	return in
}

// tis creates a transport domain and a TIS in it.
func (p *program) tis() (tis, td uint32) {
	p.t.Helper()
	td = number.u32(p.do("ALLOC_TRANSPORT_DOMAIN", p.in(0x816, 16), 16))
	in := p.in(0x912, 192)
	tiscDomain.set(in[createTISContext:], uint64(td))
	return number.u32(p.do("CREATE_TIS", in, 16)), td
}

// tirOf creates an indirection table of one receive queue, and a TIR for it.
func (p *program) tirOf(rqn, td uint32) (table, tir uint32) {
	p.t.Helper()
	in := p.in(0x916, rqtContext+rqtEntries)
	rqtcSize.set(in[rqtContext:], 1)
	table = number.u32(p.do("CREATE_RQT", binary.BigEndian.AppendUint32(in, rqn), 16))
	in = p.in(0x900, 272)
	tircDispatch.set(in[queueContext:], 1)
	tircTable.set(in[queueContext:], uint64(table))
	tircDomain.set(in[queueContext:], uint64(td))
	return table, number.u32(p.do("CREATE_TIR", in, 16))
}

// key creates a memory key over a whole UMEM, at an address of the program.
func (p *program) key(m *memory, addr uint64) uint32 {
	p.t.Helper()
	return number.u32(p.do("CREATE_MKEY", p.keyIn(m, addr, 4096*len(m.pages)-m.offset), 16)) << 8
}

func (p *program) keyIn(m *memory, addr uint64, size int) []byte {
	in := p.in(0x200, mkeyPages)
	ctx := in[mkeyContext:]
	mkcLocalWrite.set(ctx, 1)
	mkcMode.set(ctx, modeMTT)
	mkcPD.set(ctx, 2)
	mkcStart.set(ctx, addr)
	mkcLength.set(ctx, uint64(size))
	mkcLogPageSize.set(ctx, 12)
	m.put(mkeyUMEM, in, 0)
	return in
}
