package pcie

import (
	"encoding/binary"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/simnic"
)

// A completion queue moves to a larger ring: a CQE in the old ring marks the move, and the next CQE
// is in the new ring (libmlx5, mlx5_cq_resize_copy_cqes).
func TestResizeCQ(t *testing.T) {
	d := newDriver(t)
	cqn := d.cq(2)
	qpn := d.umrQP(cqn)
	nop := func(i uint16) {
		w := make([]byte, 64)
		binary.BigEndian.PutUint16(w[1:], i)
		binary.BigEndian.PutUint32(w[4:], qpn<<8|1)
		w[11] = 8
		copy(d.ram[sqAt+64*int(i):], w)
		d.ring(w, uint32(i)+1)
	}
	nop(0)
	in := about(0x403, cqn, 280)
	binary.BigEndian.PutUint16(in[6:], cqResize)
	modifyCQSelect.set(in, 7)
	cqcLogSize.set(in[createCQContext:], 4)
	binary.BigEndian.PutUint64(in[createCQPages:], resizeAt)
	d.do("MODIFY_CQ, resize", in, 16)
	nop(1)
	if e := d.cqe(1); e[63]>>4 != 5 {
		t.Errorf("last entry of the old ring has opcode %#x, want 5", e[63]>>4)
	}
	if e := d.ram[resizeAt+2*64:][:64]; e[63] != 0 || binary.BigEndian.Uint16(e[60:]) != 1 {
		t.Errorf("entry 2 of the new ring ends in % x", e[56:])
	}
	out := d.do("QUERY_CQ", about(0x402, cqn, 16), 80)[createCQContext:]
	if log, pi := cqcLogSize.get(out), cqcProducer.get(out); log != 4 || pi != 3 {
		t.Errorf("2^%d entries, producer %d", log, pi)
	}
	cqcEntrySize.set(in[createCQContext:], 1)
	d.refused("entries of another size", in, 16, statusBadParam)
}

// MODIFY_CQ changes only the selected members of the moderation.
func TestModerateCQ(t *testing.T) {
	d := newDriver(t)
	cqn := d.cq(2)
	modify := func(what, period, count uint64) uint64 {
		in := about(0x403, cqn, 80)
		cqcPeriodMode.set(in[createCQContext:], uint64(simnic.PeriodFromCompletion))
		modifyCQSelect.set(in, what)
		cqcPeriod.set(in[createCQContext:], period)
		cqcMaxCount.set(in[createCQContext:], count)
		d.do("MODIFY_CQ", in, 16)
		a := d.fn.objects.cqs[cqn].Attr()
		return uint64(a.PeriodMode)<<32 | uint64(a.PeriodUsec)<<16 | uint64(a.MaxCount)
	}
	for _, s := range []struct{ what, period, count, want uint64 }{
		{3, 8, 64, 8<<16 | 64}, {1, 16, 99, 16<<16 | 64}, {2, 99, 32, 16<<16 | 32},
		{1 << 4, 99, 99, 1<<32 | 16<<16 | 32}, // only the mode
	} {
		if got := modify(s.what, s.period, s.count); got != s.want {
			t.Errorf("selection %#x: %#x, want %#x", s.what, got, s.want)
		}
	}
}

// The context of a program's queue pair is stored as its driver writes it, in each state.
func TestQueryQP(t *testing.T) {
	d := newDriver(t)
	cqn := d.cq(2)
	for _, kind := range []struct {
		name string
		st   uint64
	}{{"RC", 0}, {"UC", 1}, {"UD", 2}} {
		in := input(0x500, 0, 280)
		qpcType.set(in[qpContext:], kind.st)
		qpcPD.set(in[qpContext:], 3)
		qpcSendCQ.set(in[qpContext:], uint64(cqn))
		qpn := number.u32(d.do("CREATE_QP", in, 16))
		state := func(want qpState) []byte {
			t.Helper()
			ctx := d.do("QUERY_QP", about(0x50b, qpn, 16), 272)[qpContext:]
			if got := qpState(qpcState.get(ctx)); got != want || qpcPD.get(ctx) != 3 {
				t.Errorf("%s: state %d, PD %d, want state %d, PD 3", kind.name, got,
					qpcPD.get(ctx), want)
			}
			return ctx
		}
		state(qpReset)
		d.refused("INIT2RTR_QP of a new queue pair", about(0x503, qpn, 272), 16, statusBadState)
		for _, s := range []struct {
			op   uint16
			want qpState
		}{{0x502, qpInit}, {0x50e, qpInit}, {0x503, qpReceives}, {0x504, qpSends},
			{0x505, qpSends}, {0x507, qpError}, {0x50a, qpReset}} {
			step := about(s.op, qpn, 272)
			if s.op == 0x503 {
				field{168, 24}.set(step[qpContext:], 0xabcdef) // remote_qpn
			}
			d.do("a transition", step, 16)
			ctx := state(s.want)
			if s.want == qpSends && (field{168, 24}).get(ctx) != 0xabcdef {
				t.Errorf("%s: remote_qpn is lost", kind.name)
			}
		}
		d.do("DESTROY_QP", about(0x501, qpn, 16), 16)
		d.refused("QUERY_QP", about(0x50b, qpn, 16), 272, statusBadResource)
	}
}

// Shared receive queues of both kinds are described, modified and queried.
func TestQuerySRQ(t *testing.T) {
	d := newDriver(t)
	in := input(0x90c, 0, 280)
	queueState.set(in[queueContext:], 1)
	wqLogSize.set(in[queueContext+queueWQ:], 5)
	rmp := number.u32(d.do("CREATE_RMP", in, 16))
	limit := about(0x90d, rmp, 272)
	modifyRMPBits.set(limit, modifyRMPLimit)
	queueState.set(limit[queueContext:], 1)
	memoryPool.limit.set(limit[queueContext:], 7)
	d.do("MODIFY_RMP", limit, 16)
	ctx := d.do("QUERY_RMP", about(0x90f, rmp, 16), 272)[queueContext:]
	if s, log, n := queueState.get(ctx), wqLogSize.get(ctx[queueWQ:]),
		memoryPool.limit.get(ctx); s != 1 || log != 5 || n != 7 {
		t.Errorf("pool in state %d, 2^%d entries, limit %d", s, log, n)
	}
	in = input(0x705, 0, 280)
	in[16] = 0x04 // 2^4 entries
	xrc := number.u32(d.do("CREATE_XRC_SRQ", in, 16))
	arm := about(0x708, xrc, 16)
	armLimit.set(arm, 3)
	d.do("ARM_XRC_SRQ", arm, 16)
	ctx = d.do("QUERY_XRC_SRQ", about(0x707, xrc, 16), 272)[16:]
	if ctx[0] != 4 || xrcQueue.limit.get(ctx) != 3 {
		t.Errorf("XRC SRQ % x", ctx[:32])
	}
	d.do("DESTROY_XRC_SRQ", about(0x706, xrc, 16), 16)
	d.do("DESTROY_RMP", about(0x90e, rmp, 16), 16)
	d.refused("QUERY_RMP", about(0x90f, rmp, 16), 272, statusBadResource)
}
