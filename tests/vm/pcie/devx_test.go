package pcie

import (
	"bytes"
	"encoding/binary"
	"slices"
	"sync"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

// sentFrames is a wire that keeps the frames sent to it.
type sentFrames struct {
	hostileWire
	mu   sync.Mutex
	sent [][]byte // guarded by mu
}

func (w *sentFrames) Send(f []frame.Frame) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, one := range f {
		w.sent = append(w.sent, slices.Clone(one.Data))
	}
	return len(f), nil
}

func (w *sentFrames) take() [][]byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	sent := w.sent
	w.sent = nil
	return sent
}

// pointer is a data segment.
func pointer(n int, key uint32, addr uint64) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(n))
	b = binary.BigEndian.AppendUint32(b, key)
	return binary.BigEndian.AppendUint64(b, addr)
}

// sendWQE is a send WQE with one data segment, which reports its completion.
func sendWQE(sqn uint32, i uint16, data []byte) []byte {
	w := make([]byte, 32, 48)
	binary.BigEndian.PutUint16(w[1:], i)
	w[3], w[7], w[11] = 0x0a, 3, 8
	putU24(w[4:], sqn)
	return append(w, data...)
}

// userAddress is an address of the program; the low bits are those of its UMEM.
const userAddress = 0x7f0012345000

// TestQueuesInUMEM: queues of a program move frames both ways, through rings, doorbell records and
// buffers in UMEMs whose pages are not adjacent.
func TestQueuesInUMEM(t *testing.T) {
	d := newDriver(t)
	w := &sentFrames{}
	if err := d.nic.ConnectWire(w); err != nil {
		t.Fatal(err)
	}
	p := d.newProgram()
	rings, data := p.register(192, 0x94000, 0x90000), p.register(16, 0xa4000, 0xa0000)
	for i := range 16 {
		rings.at(umemCQ + 64*i)[63] = 0xf1
	}
	key := p.key(data, userAddress+16)
	cqn := p.cq(rings, umemCQ, umemRecords)
	rqn := p.rq(rings, cqn)
	tis, td := p.tis()
	_, tir := p.tirOf(rqn, td)
	sqn := number.u32(p.do("CREATE_SQ", p.sqIn(rings, cqn, tis), 16))
	p.ready(0x905, sqn)
	mac := [6]byte{2, 0, 0, 0, 0, 1}
	table, group := d.table(tableNICReceive)
	d.do("SET_FLOW_TABLE_ENTRY", entry(tableNICReceive, table, group, 0, mac, actionForward,
		[]uint32{tir}, nil), 16)

	const at = 4096 - 16 - 20 // the buffer crosses the end of a page
	copy(rings.at(umemRQ), pointer(2048, key, userAddress+16+at))
	binary.BigEndian.PutUint32(rings.at(umemRecords+128), 1)
	in := frameTo(mac, 0x88b5)
	copy(in.Data[14:], "into a UMEM, across two pages that are apart")
	w.recv([]frame.Frame{in})
	if e := rings.at(umemCQ); e[63] != 0x20 || be32(e, 44) != 60 {
		t.Fatalf("completion of the receive ends in % x", e[40:64])
	}
	if got := data.bytes(at, 60); !bytes.Equal(got, in.Data) {
		t.Errorf("received % x\nwant     % x", got, in.Data)
	}
	copy(data.at(at), []byte{2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1})
	out := data.bytes(at, 60)
	for i := range uint16(2) { // the second WQE is in another page
		wqe := sendWQE(sqn, i, pointer(60, key, userAddress+16+at))
		copy(rings.at(umemSQ+64*int(i)), wqe)
		binary.BigEndian.PutUint32(rings.at(umemRecords + 64)[4:], uint32(i)+1)
		d.store64(firstUAR<<uarShift|0x800, binary.BigEndian.Uint64(wqe))
		if e := rings.at(umemCQ + 64*(int(i)+1)); e[63] != 0 ||
			binary.BigEndian.Uint16(e[60:]) != i {
			t.Fatalf("completion of send %d ends in % x", i, e[40:64])
		}
		if got := w.take(); len(got) != 1 || !bytes.Equal(got[0], out) {
			t.Errorf("send %d: % x\nwant % x", i, got, out)
		}
	}
	if v := d.nic.Violations(); len(v) > 0 {
		t.Errorf("violations: %q", v)
	}
}

// TestUMEMLife: a UMEM stays as long as an object is in it, and a user context as long as it owns
// a UMEM.
func TestUMEMLife(t *testing.T) {
	d := newDriver(t)
	p := d.newProgram()
	rings, records := p.register(0, 0x94000, 0x90000), p.register(64, 0x98000)
	end := func(op uint16, n uint32) []byte {
		in := about(op, n, 16)
		commandContext.set(in, uint64(p.uid))
		return in
	}
	context := input(0xa06, 0, 16)
	contextNumber.set(context, uint64(p.uid))
	d.refused("user context with UMEMs", context, 16, statusBusy)
	cqn := p.cq(rings, umemCQ, umemRecords)
	in := p.queue(0x908, records, cqn, 0, 1024, 4)
	rings.put(wqRingUMEM, in[queueContext+queueWQ:], umemRQ)
	rqn := number.u32(p.do("CREATE_RQ", in, 16))
	for _, step := range []struct {
		what   string
		object []byte // destroyed first
		m      *memory
		busy   bool
	}{
		{"ring and doorbell record", nil, rings, true},
		{"only a doorbell record", nil, records, true},
		{"after the receive queue", end(0x90a, rqn), records, false},
		{"completion queue", nil, rings, true},
		{"after the completion queue", end(0x401, cqn), rings, false},
	} {
		if step.object != nil {
			p.do(step.what, step.object, 16)
		}
		if step.busy {
			p.refused(step.what, end(0xa0a, step.m.id), 16, statusBusy)
		} else {
			p.do(step.what, end(0xa0a, step.m.id), 16)
		}
	}
	p.refused("twice", end(0xa0a, rings.id), 16, statusBadResource)
	d.do("DESTROY_UCTX", context, 16)
	p.refused("a command of a context that is gone", p.in(0x816, 16), 16, statusBadResource)
}

// TestUMEMRefused: what a program must not do.
func TestUMEMRefused(t *testing.T) {
	d := newDriver(t)
	p := d.newProgram()
	m := p.register(192, 0x94000, 0x90000)
	quiet := &program{d, contextNumber.u32(d.do("CREATE_UCTX", input(0xa04, 0, 64), 16))}
	cqn := p.cq(m, umemCQ, umemRecords)
	tis, _ := p.tis()
	with := func(in []byte, change func([]byte)) []byte { change(in); return in }
	pages := func(in []byte, list ...uint64) []byte {
		for _, a := range list {
			in = binary.BigEndian.AppendUint64(in, a)
		}
		return in
	}
	count := func(n uint64) func([]byte) {
		return func(in []byte) { umemPageCount.set(in, n) }
	}
	for _, c := range []struct {
		name string
		in   []byte
	}{
		{"UMEM without pages", p.in(0xa08, umemPages)},
		{"UMEM of more pages than listed", pages(with(p.in(0xa08, umemPages), count(2)), 0x94000)},
		{"UMEM of 2^63 pages", pages(with(p.in(0xa08, umemPages), count(1<<63)), 0x94000)},
		{"UMEM outside the guest", pages(with(p.in(0xa08, umemPages), count(1)), 1<<40)},
		{"UMEM that starts behind its page", pages(with(p.in(0xa08, umemPages), func(b []byte) {
			umemPageCount.set(b, 1)
			umemPageOffset.set(b, 4096)
		}), 0x94000)},
		{"UMEM of pages of 2^43 bytes", pages(with(p.in(0xa08, umemPages), func(b []byte) {
			umemPageCount.set(b, 1)
			umemLogPageSize.set(b, 31)
		}), 0x94000)},
		{"ring behind the end", p.cqIn(m, 2*4096-192-1023, umemRecords)},
		{"ring at 2^64-64", with(p.cqIn(m, 0, umemRecords),
			func(b []byte) { cqRingUMEM.offset.set(b, 1<<64-64) })},
		{"ring that is not aligned", p.cqIn(m, 32, umemRecords)},
		{"doorbell record that is not aligned", p.cqIn(m, 0, umemRecords+4)},
		{"doorbell record behind the end", p.cqIn(m, 0, 2*4096-192)},
		{"key longer than the UMEM", p.keyIn(m, userAddress+192, 2*4096)},
		{"key that starts behind the UMEM", with(p.keyIn(m, userAddress, 64),
			func(b []byte) { mkeyUMEM.offset.set(b, 1<<40) })},
		{"key in pages larger than the UMEM's", with(p.keyIn(m, userAddress, 64),
			func(b []byte) { mkcLogPageSize.set(b[mkeyContext:], 13) })},
		{"key for physical addresses", with(p.keyIn(m, 0, 0),
			func(b []byte) { mkcMode.set(b[mkeyContext:], modePhys) })},
		{"send queue of a context that may not send", quiet.sqIn(m, cqn, tis)},
		{"receive queue in a memory pool", with(p.queue(0x908, m, cqn, 0, umemRecords, 4),
			func(b []byte) { rqcMemory.set(b[queueContext:], 1) })},
		{"receive queue on a completion queue of the driver's",
			p.queue(0x908, m, d.cq(4), 0, umemRecords, 4)},
		{"receive queue on the device", with(p.queue(0x908, m, cqn, 0, umemRecords, 4),
			func(b []byte) { rqcHairpin.set(b[queueContext:], 1) })},
	} {
		t.Run(c.name, func(t *testing.T) { d.refused(c.name, c.in, 16, statusBadParam) })
	}
	d.refused("a UMEM that does not exist", with(p.cqIn(m, 0, umemRecords),
		func(b []byte) { cqRingUMEM.id.set(b, 99) }), 16, statusBadResource)
	other := &program{d, 77}
	d.refused("a context that does not exist", other.in(0x816, 16), 16, statusBadResource)
}

// TestResizeInUMEM: a completion queue moves from one UMEM to another.
func TestResizeInUMEM(t *testing.T) {
	d := newDriver(t)
	p := d.newProgram()
	from, to := p.register(0, 0x94000, 0x90000), p.register(0, 0x98000)
	cqn := p.cq(from, umemCQ, umemRecords)
	in := about(0x403, cqn, 272)
	binary.BigEndian.PutUint16(in[6:], cqResize)
	cqcLogSize.set(in[createCQContext:], 5)
	to.put(cqRingUMEM, in, 0)
	p.do("MODIFY_CQ, resize", in, 16)
	if e := from.at(umemCQ); e[63]>>4 != 5 {
		t.Errorf("last entry of the old ring has opcode %#x, want 5", e[63]>>4)
	}
	p.refused("new ring", about(0xa0a, to.id, 16), 16, statusBusy)
	p.refused("doorbell record", about(0xa0a, from.id, 16), 16, statusBusy)
	p.do("DESTROY_CQ", about(0x401, cqn, 16), 16)
	p.do("DESTROY_UMEM", about(0xa0a, to.id, 16), 16)
}

// TestKeyQueueInUMEM: a queue pair that changes memory keys executes WQEs in a UMEM.
func TestKeyQueueInUMEM(t *testing.T) {
	d := newDriver(t)
	p := d.newProgram()
	m := p.register(0, 0x94000, 0x90000)
	cqn := p.cq(m, umemCQ, umemRecords)
	in := p.in(0x500, qpPages)
	ctx := in[qpContext:]
	qpcType.set(ctx, qpUMR)
	qpcSendCQ.set(ctx, uint64(cqn))
	qpcLogSQ.set(ctx, 4)
	qpcUAR.set(ctx, firstUAR)
	qpcLogRQ.set(ctx, 4) // 16 receive WQEs of 64 bytes come first
	qpcLogRQStride.set(ctx, 2)
	m.put(qpRingUMEM, in, umemSQ-1024)
	m.put(qpRecordUMEM, ctx, umemRecords+64)
	qpn := number.u32(p.do("CREATE_QP", in, 16))
	for _, op := range []uint16{0x502, 0x503, 0x504} {
		p.do("a transition", about(op, qpn, 272), 16)
	}
	nop := make([]byte, 64)
	binary.BigEndian.PutUint32(nop[4:], qpn<<8|1)
	nop[11] = 8
	copy(m.at(umemSQ), nop)
	binary.BigEndian.PutUint32(m.at(umemRecords + 64)[4:], 1)
	m.at(umemCQ)[63] = 0xf1
	d.store64(firstUAR<<uarShift|0x800, binary.BigEndian.Uint64(nop))
	if e := m.at(umemCQ); e[63] != 0 {
		t.Errorf("completion ends in % x", e[40:64])
	}
	p.refused("UMEM of a queue pair", about(0xa0a, m.id, 16), 16, statusBusy)
	p.do("DESTROY_QP", about(0x501, qpn, 16), 16)
	p.do("DESTROY_CQ", about(0x401, cqn, 16), 16)
	p.do("DESTROY_UMEM", about(0xa0a, m.id, 16), 16)
}

// TestTIRMoves: MODIFY_TIR makes another indirection table the destination of frames.
func TestTIRMoves(t *testing.T) {
	d := newDriver(t)
	w := d.wired()
	p := d.newProgram()
	m := p.register(0, 0x94000, 0x90000)
	cqn := p.cq(m, umemCQ, umemRecords)
	_, td := p.tis()
	var sets, tables, tirs [2]uint32
	for i := range sets {
		sets[i] = number.u32(p.do("ALLOC_Q_COUNTER", p.in(0x771, 16), 16))
		in := p.queue(0x908, m, cqn, umemRQ+256*i, umemRecords+128+64*i, 4)
		rqcCounterSet.set(in[queueContext:], uint64(sets[i]))
		rqn := number.u32(p.do("CREATE_RQ", in, 16))
		p.ready(0x909, rqn)
		tables[i], tirs[i] = p.tirOf(rqn, td)
	}
	mac := [6]byte{2, 0, 0, 0, 0, 1}
	table, group := d.table(tableNICReceive)
	d.do("SET_FLOW_TABLE_ENTRY", entry(tableNICReceive, table, group, 0, mac, actionForward,
		tirs[:1], nil), 16)
	starved := func(want [2]uint64) {
		t.Helper()
		w.recv([]frame.Frame{frameTo(mac, 0x88b5)})
		for i, set := range sets {
			in := p.in(0x773, 32)
			queryQueueSet.set(in, uint64(set))
			if n := outOfBuffer.get(p.do("QUERY_Q_COUNTER", in, 256)); n != want[i] {
				t.Errorf("queue %d was without buffer %d times, want %d", i, n, want[i])
			}
		}
	}
	starved([2]uint64{1, 0})
	in := about(0x901, tirs[0], 272)
	modifyTIRBits.set(in, modifyTable)
	tircDispatch.set(in[queueContext:], 1)
	tircTable.set(in[queueContext:], uint64(tables[1]))
	p.do("MODIFY_TIR", in, 16)
	starved([2]uint64{1, 1})
	p.do("DESTROY_RQT of the table before", about(0x918, tables[0], 16), 16)
	p.refused("DESTROY_RQT", about(0x918, tables[1], 16), 16, statusBusy)
	tircTable.set(in[queueContext:], uint64(tables[0]))
	p.refused("a table that is gone", in, 16, statusBadResource)
}

// TestQueryTIS returns the transport domain, with which a program creates its TIRs.
func TestQueryTIS(t *testing.T) {
	d := newDriver(t)
	p := d.newProgram()
	tis, td := p.tis()
	out := p.do("QUERY_TIS", about(0x915, tis, 16), queryTISOut)
	if got := tiscDomain.u32(out[queryTISContext:]); got != td || td == 0 {
		t.Errorf("transport domain %d, want %d", got, td)
	}
	p.refused("a TIS that does not exist", about(0x915, tis+1, 16), queryTISOut, statusBadResource)
}

// TestCountersInMemory: QUERY_FLOW_COUNTER writes counters to an address of a memory key.
func TestCountersInMemory(t *testing.T) {
	d := newDriver(t)
	w := d.wired()
	p := d.newProgram()
	in := p.in(0x939, 16)
	counterBulk.set(in, 4)
	base := counterID.u32(p.do("ALLOC_FLOW_COUNTER of 512", in, 16))
	mac := [6]byte{2, 0, 0, 0, 0, 1}
	table, group := d.table(tableNICReceive)
	d.do("SET_FLOW_TABLE_ENTRY", entry(tableNICReceive, table, group, 0, mac,
		actionDrop|actionCount, nil, []uint32{base + 300}), 16)
	for range 3 {
		w.recv([]frame.Frame{frameTo(mac, 0x88b5)})
	}
	m := p.register(8, 0x94000, 0x90000, 0x98000)
	key := p.key(m, userAddress+8)
	query := p.in(0x93b, 32)
	queryToMemory.set(query, 1)
	queryCounters.set(query, 512)
	queryCounterID.set(query, uint64(base))
	queryKey.set(query, uint64(key))
	queryAddress.set(query, userAddress+24)
	p.do("QUERY_FLOW_COUNTER", query, 32)
	for i := range 512 {
		got, want := m.bytes(16+16*i, 16), [2]uint64{}
		if i == 300 {
			want = [2]uint64{3, 180}
		}
		if be64(got, 0) != want[0] || be64(got, 8) != want[1] {
			t.Errorf("counter %d: % x, want %v", i, got, want)
		}
	}
	for _, c := range []struct {
		name string
		f    field
		v    uint64
	}{{"another variant of the key", queryKey, uint64(key) + 1},
		{"an address before the key", queryAddress, userAddress},
		{"more than the key has", queryAddress, userAddress + 8 + 3*4096 - 8 - 16*511},
		{"more counters than a query may read", queryCounters, 1<<logMaxCounterQuery + 1}} {
		bad := slices.Clone(query)
		c.f.set(bad, c.v)
		p.refused(c.name, bad, 32, statusBadParam)
	}
	queryKey.set(query, 0x12345600)
	p.refused("no such key", query, 32, statusBadResource)
}
