package pcie

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/simnic"
)

// script builds hostile input.
type script struct {
	b   []byte
	ops []opcode
}

func (s *script) do(kind byte, b ...byte) *script {
	s.b = append(append(s.b, kind), b...)
	return s
}

// command adds a command with body from byte 8 on.
func (s *script) command(op opcode, mod byte, body []byte) *script {
	at, _ := slices.BinarySearch(s.ops, op)
	s.do(doCommand, byte(at), mod, byte(len(body)>>8), byte(len(body)))
	s.b = append(s.b, body...)
	return s
}

// writeMemory adds bytes to be written to guest memory.
func (s *script) writeMemory(at uint32, b []byte) *script {
	s.do(doPoke, byte(at>>16), byte(at>>8), byte(at), byte(len(b)))
	s.b = append(s.b, b...)
	return s
}

// Guest memory of the scripts.
const (
	fuzzEQ, fuzzCQ, fuzzSQ, fuzzRQ = 0x40000, 0x50000, 0x60000, 0x70000
	fuzzRecords, fuzzFrame         = 0x80000, 0x90000
)

// body is the input of a command from byte 8 on. size is the length of the whole input; set writes
// fields at offsets of the whole input.
func body(size int, set func(in []byte)) []byte {
	in := make([]byte, size)
	set(in)
	return in[8:]
}

// bringUp is the sequence of a driver until frames can flow: event queue, completion queue, key,
// both work queues, a TIR and rules. Object numbers are those that a guest with the same sequence
// gets.
func bringUp(t testing.TB, s *script) {
	h := newHostile(t)
	defer h.close()
	made := func(op opcode, b []byte) uint32 {
		s.command(op, 0, b)
		out := h.command(op, 0, b)
		if out[0] != 0 {
			t.Fatalf("%v: status %#x", op, out[0])
		}
		return number.u32(out)
	}
	made(0x104, nil)
	made(0x102, nil)
	uar, pd, td := made(0x802, nil), made(0x800, nil), made(0x816, nil)
	eqn := made(0x301, body(280, func(in []byte) {
		eqcLogSize.set(in[createEQContext:], 4)
		binary.BigEndian.PutUint64(in[createEQMask:],
			1<<eventPort|1<<eventCommand|1<<eventWQCatas|1<<eventCQError)
		binary.BigEndian.PutUint64(in[createEQPages:], fuzzEQ)
	}))
	cqn := made(0x400, body(280, func(in []byte) {
		ctx := in[createCQContext:]
		cqcLogSize.set(ctx, 4)
		cqcUAR.set(ctx, uint64(uar))
		cqcEQ.set(ctx, uint64(eqn))
		cqcRecord.set(ctx, fuzzRecords)
		binary.BigEndian.PutUint64(in[createCQPages:], fuzzCQ)
	}))
	key := made(0x200, body(280, func(in []byte) {
		ctx := in[mkeyContext:]
		mkcLocalWrite.set(ctx, 1)
		mkcMode.set(ctx, modeMTT)
		mkcPD.set(ctx, uint64(pd))
		mkcStart.set(ctx, fuzzFrame)
		mkcLength.set(ctx, 4096)
		mkcLogPageSize.set(ctx, 12)
		binary.BigEndian.PutUint64(in[mkeyPages:], fuzzFrame)
	}))
	tis := made(0x912,
		body(192, func(in []byte) { tiscDomain.set(in[createTISContext:], uint64(td)) }))
	queue := func(op opcode, ring, record uint64, logStride int) uint32 {
		return made(op, body(queuePages+8, func(in []byte) {
			ctx := in[queueContext:]
			queueCQ.set(ctx, uint64(cqn))
			if op == 0x904 {
				sqcTISCount.set(ctx, 1)
				sqcTIS.set(ctx, uint64(tis))
			}
			wq := ctx[queueWQ:]
			wqType.set(wq, wqCyclic)
			wqPD.set(wq, uint64(pd))
			wqUAR.set(wq, uint64(uar))
			wqRecord.set(wq, record)
			wqLogStride.set(wq, uint64(logStride))
			wqLogSize.set(wq, 4)
			binary.BigEndian.PutUint64(in[queuePages:], ring)
		}))
	}
	sqn, rqn := queue(0x904, fuzzSQ, fuzzRecords+64, 6), queue(0x908, fuzzRQ, fuzzRecords+128, 4)
	for op, n := range map[opcode]uint32{0x905: sqn, 0x909: rqn} {
		made(op, body(272, func(in []byte) {
			number.set(in, uint64(n))
			queueState.set(in[queueContext:], 1)
		}))
	}
	tir := made(0x900, body(272, func(in []byte) {
		tircRQ.set(in[queueContext:], uint64(rqn))
		tircDomain.set(in[queueContext:], uint64(td))
	}))
	table := made(0x930, body(64, func(in []byte) { ftcLogSize.set(in[ftContext:], 2) }))
	made(0x933, body(1024, func(in []byte) {
		ftTableID.set(in, uint64(table))
		fgEnd.set(in, 3)
	}))
	made(0x936, body(flowDest+8, func(in []byte) {
		ftTableID.set(in, uint64(table))
		ctx := in[flowContext:]
		fcGroup.set(ctx, 1)
		fcAction.set(ctx, actionForward)
		fcDestCount.set(ctx, 1)
		in[flowDest] = destTIR
		putU24(in[flowDest+1:], tir)
	}))
	made(0x92f, body(64, func(in []byte) { ftTableID.set(in, uint64(table)) }))
	traffic(s, sqn, key)
}

// inUMEM creates a UMEM, queues and keys in it, and a key of those keys, resizes a queue, and
// destroys the UMEM in use.
func inUMEM(t testing.TB, s *script) {
	h := newHostile(t)
	defer h.close()
	made := func(op opcode, mod byte, b []byte) uint32 {
		s.command(op, mod, b)
		out := h.command(op, uint16(mod), b)
		if out[0] != 0 {
			t.Fatalf("%v: status %#x", op, out[0])
		}
		return number.u32(out)
	}
	eqn := made(0x301, 0, body(280, func(in []byte) {
		eqcLogSize.set(in[createEQContext:], 4)
		binary.BigEndian.PutUint64(in[createEQPages:], fuzzEQ)
	}))
	made(0xa04, 0, body(64, func(in []byte) { contextCaps.set(in, contextSendsRaw) }))
	m := &memory{id: made(0xa08, 0, body(umemPages+16, func(in []byte) {
		umemPageCount.set(in, 2)
		binary.BigEndian.PutUint64(in[umemPages:], fuzzCQ)
		binary.BigEndian.PutUint64(in[umemPages+8:], fuzzSQ)
	}))}
	cqn := made(0x400, 0, body(272, func(in []byte) {
		cqcLogSize.set(in[createCQContext:], 4)
		cqcEQ.set(in[createCQContext:], uint64(eqn))
		m.put(cqRingUMEM, in, 0)
		m.put(cqRecordUMEM, in[createCQContext:], 4096)
	}))
	made(0x403, cqResize, body(272, func(in []byte) {
		number.set(in, uint64(cqn))
		cqcLogSize.set(in[createCQContext:], 3)
		m.put(cqRingUMEM, in, 1024)
	}))
	for _, op := range []opcode{0x904, 0x908} {
		made(op, 0, body(queuePages, func(in []byte) {
			queueCQ.set(in[queueContext:], uint64(cqn))
			wq := in[queueContext+queueWQ:]
			wqType.set(wq, wqCyclic)
			wqLogStride.set(wq, 6)
			wqLogSize.set(wq, 3)
			m.put(wqRingUMEM, wq, 2048)
			m.put(wqRecordUMEM, wq, 4096+64)
		}))
	}
	key := made(0x200, 0, body(mkeyPages, func(in []byte) {
		mkcMode.set(in[mkeyContext:], modeMTT)
		mkcLength.set(in[mkeyContext:], 8192)
		mkcLogPageSize.set(in[mkeyContext:], 12)
		m.put(mkeyUMEM, in, 0)
	}))
	for _, mode := range []uint64{modeKLM, modeKSM} {
		made(0x200, 0, body(mkeyPages+simnic.KeyPartLen, func(in []byte) {
			mkcMode.set(in[mkeyContext:], mode)
			mkcLength.set(in[mkeyContext:], 64)
			mkcLogPageSize.set(in[mkeyContext:], 6)
			mkeyListed.set(in, 1)
			copy(in[mkeyPages:], pointer(100, key<<8, 4090))
		}))
	}
	s.command(0xa0a, 0, body(16, func(in []byte) { number.set(in, uint64(m.id)) }))
}

// traffic posts a receive buffer and a send WQE, injects one frame, and arms the queues that can be
// armed.
func traffic(s *script, sqn, key uint32) {
	pointer := func(n uint32) []byte {
		b := binary.BigEndian.AppendUint32(nil, n)
		b = binary.BigEndian.AppendUint32(b, key<<8)
		return binary.BigEndian.AppendUint64(b, fuzzFrame)
	}
	s.writeMemory(fuzzRQ, pointer(2048))
	s.writeMemory(fuzzRecords+128, []byte{0, 0, 0, 1})
	s.do(doFrame, 60)
	s.b = append(s.b, make([]byte, 74)...)
	wqe := make([]byte, 48)
	wqe[3], wqe[7], wqe[11] = 0x0a, 3, 8
	putU24(wqe[4:], sqn)
	copy(wqe[32:], pointer(60))
	s.writeMemory(fuzzSQ, wqe)
	s.writeMemory(fuzzRecords+68, []byte{0, 0, 0, 1})
	s.do(doUAR, 3, 0, 1)
	s.b = append(s.b, wqe[:8]...)
	s.do(doUAR, 0, 0, 0, 1, 0, 0, 0)
}

// FuzzHostileGuest takes commands, register accesses, memory writes, frames and the monitor's
// messages from the input.
func FuzzHostileGuest(f *testing.F) {
	s := &script{}
	for op := range commands {
		s.ops = append(s.ops, op)
	}
	slices.Sort(s.ops)
	for _, op := range s.ops {
		s.command(op, 0, nil).command(op, 1, []byte{0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff})
	}
	f.Add(s.b)
	s.b = nil
	inUMEM(f, s)
	f.Add(s.b)
	s.b = nil
	bringUp(f, s)
	f.Add(s.b)
	f.Add(append(slices.Clone(s.b), doConfig, 0, 4, 6, 4, 0, 0, doBAR, 0, 0, 0x10, 0, 0, 0, 0,
		doMessage, byte(cmdReset), 0, 1))
	entry := make([]byte, cmdEntrySize)
	entry[entryInLen+1], entry[entryOutLen+1] = 0x10, 0x10
	binary.BigEndian.PutUint64(entry[entryInPtr:], inBoxAt)
	binary.BigEndian.PutUint64(entry[entryOutPtr:], inBoxAt)
	f.Add((&script{}).writeMemory(inBoxAt+boxNext, []byte{0, 0, 0, 0, 0, 1, 0, 0}).do(doEntry,
		entry...).b)
	f.Add((&script{}).do(doMessage, byte(cmdDMAMap), 32, 0).do(doMessage, byte(cmdSetIRQs), 20, 0,
		20, 0, 0, 0, 0x24, 0, 0, 0, 2, 0, 0, 0, 255, 255, 255, 255, 1).b)
	f.Fuzz(func(t *testing.T, input []byte) {
		h := newHostile(t)
		defer h.close()
		h.run(input[:min(len(input), 8192)])
		if out := h.command(0x104, 0, nil); out[0] != 0 {
			t.Errorf("the next command: status %#x", out[0])
		}
	})
}

// TestBringUp checks that the seed script of the fuzz test makes frames flow both ways.
func TestBringUp(t *testing.T) {
	h := newHostile(t)
	defer h.close()
	s := &script{ops: h.ops}
	bringUp(t, s)
	h.run(s.b)
	if c := h.nic.Counters(); c.Netdev.RxPackets+c.Slice.RxPackets != 1 ||
		c.Wire.TxPackets != 1 || c.CQEs != 2 {
		t.Errorf("%+v", c)
	}
}
