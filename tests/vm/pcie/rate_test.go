package pcie

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
	"github.com/rdma-netstack/rdma-netstack/simnic"
)

// rateIn returns SET_PP_RATE_LIMIT as Linux sends it (mlx5/core/rl.c, mlx5_set_pp_rate_limit_cmd).
func rateIn(index uint16, kbps, burst uint64) []byte {
	in := input(0x780, 0, 64)
	rateIndex.set(in, uint64(index))
	rateLimit.set(in, kbps)
	rateBurst.set(in, burst)
	return in
}

// toRate returns MODIFY_SQ as Linux sends it for a queue that is ready (mlx5_ib,
// modify_raw_packet_qp_sq).
func (d *driver) toRate(sqn uint32, index uint64) []byte {
	in := about(0x905, sqn, 272)
	modifyState.set(in, uint64(simnic.StateReady))
	modifySQBits.set(in, modifySQBit)
	queueState.set(in[queueContext:], uint64(simnic.StateReady))
	sqcRate.set(in[queueContext:], index)
	return in
}

// pacedDriver returns the driver of a function on virtual time whose NIC keeps two rates.
func pacedDriver(t *testing.T, card string, pacing bool) (*driver, *clocktest.Clock) {
	c := clocktest.New()
	caps := simnic.DefaultCaps()
	if card != "" {
		one, err := simnic.CardNamed(card)
		if err != nil {
			t.Fatal(err)
		}
		caps = one.Caps
	}
	caps.Pacing.Rates = 2
	return driverOf(newClientOf(t, simnic.Config{Clock: c.Clock(), Caps: caps},
		Config{Pacing: pacing})), c
}

// TestRate: a send queue keeps to the entry of the table that its driver gives it, on the NIC's
// clock, until the driver takes the limit away.
func TestRate(t *testing.T) {
	const entry, kbps = 2, 480 // 60 bytes take a millisecond
	for what, create := range map[string]func(p *program, in []byte) (sqn uint32){
		"by MODIFY_SQ": func(p *program, in []byte) uint32 {
			sqn := number.u32(p.do("CREATE_SQ", in, 16))
			p.ready(0x905, sqn)
			p.driver.do("SET_PP_RATE_LIMIT", rateIn(entry, kbps, 0), 16)
			p.driver.do("MODIFY_SQ", p.toRate(sqn, entry), 16)
			return sqn
		},
		// Makes an entry for the program alone and names it to CREATE_SQ, as DPDK does of those by
		// mlx5dv_pp_alloc (drivers/net/mlx5/mlx5_txpp.c).
		"by CREATE_SQ": func(p *program, in []byte) uint32 {
			rate := rateIn(entry, kbps, 0)
			commandContext.set(rate, uint64(p.uid))
			p.do("SET_PP_RATE_LIMIT", rate, 16)
			sqcRate.set(in[queueContext:], entry)
			sqn := number.u32(p.do("CREATE_SQ", in, 16))
			p.ready(0x905, sqn)
			return sqn
		},
	} {
		t.Run(what, func(t *testing.T) { testRate(t, create) })
	}
}

// testRate sends through a queue that create makes of a CREATE_SQ, a frame in each millisecond.
func testRate(t *testing.T, create func(p *program, in []byte) (sqn uint32)) {
	d, c := pacedDriver(t, "", true)
	w := &sentFrames{}
	if err := d.nic.ConnectWire(w); err != nil {
		t.Fatal(err)
	}
	p := d.newProgram()
	memory := p.register(0, 0x94000)
	copy(memory.at(0), frameTo([6]byte{2, 0, 0, 0, 0, 9}, 0x88b5).Data)
	key := p.key(memory, userAddress)
	rings := p.register(192, 0x9c000, 0xa0000)
	cqn := p.cq(rings, umemCQ, umemRecords)
	tis, _ := p.tis()
	sqn := create(p, p.sqIn(rings, cqn, tis))
	const frames = 8
	var wqe []byte
	for i := range uint16(frames) {
		wqe = sendWQE(sqn, i, pointer(60, key, userAddress))
		copy(rings.at(umemSQ+64*int(i)), wqe)
	}
	binary.BigEndian.PutUint32(rings.at(umemRecords + 64)[4:], frames)
	d.store64(firstUAR<<uarShift|0x800, binary.BigEndian.Uint64(wqe))
	for ms := range 4 {
		if n := len(w.take()); n != 1 {
			t.Errorf("%d frames left after %d ms, want 1", n, ms)
		}
		c.Advance(time.Millisecond)
	}
	d.do("MODIFY_SQ to no limit", d.toRate(sqn, 0), 16)
	if n := len(w.take()); n != frames-4 {
		t.Errorf("%d frames left when the limit ended, want %d", n, frames-4)
	}
}

// TestRateRefused: what the table and the card do not have.
func TestRateRefused(t *testing.T) {
	d, _ := pacedDriver(t, "", true)
	sqn := d.sender(d.cq(4))[0].n // has set rate 1
	down := d.toRate(sqn, 1)
	queueState.set(down[queueContext:], uint64(simnic.StateError))
	d.refused("a rate for a queue that is to fail", down, 16, statusBadState)
	for what, in := range map[string][]byte{
		"rate 0": rateIn(0, 1000, 0), "rate 3 of 2": rateIn(3, 1000, 0),
		"beyond the card's":        rateIn(2, 100_000_001, 0),
		"a queue to an unset rate": d.toRate(sqn, 2),
	} {
		d.refused(what, in, 16, statusBadParam)
	}
	d.do("a rate of 0 frees the entry", rateIn(1, 0, 0), 16)
	d.refused("a queue to a freed rate", d.toRate(sqn, 1), 16, statusBadParam)
	p, other := d.newProgram(), d.newProgram()
	rate := rateIn(2, 1000, 0)
	commandContext.set(rate, uint64(other.uid))
	other.do("a rate of another program", rate, 16)
	m := p.register(192, 0x9c000, 0xa0000)
	tis, _ := p.tis()
	in := p.sqIn(m, p.cq(m, umemCQ, umemRecords), tis)
	sqcRate.set(in[queueContext:], 1)
	p.refused("a new queue with an unset rate", in, 16, statusBadParam)
	sqcRate.set(in[queueContext:], 2)
	p.refused("a new queue with another program's rate", in, 16, statusBadParam)
	commandContext.set(rate, sharedContext)
	d.do("a rate for all", rate, 16)
	p.do("a new queue with a rate for all", in, 16)

	d, _ = pacedDriver(t, "cx4lx", true)
	d.refused("a burst on a ConnectX-4 Lx", rateIn(1, 1000, 4000), 16, statusBadParam)
	d.do("a rate on a ConnectX-4 Lx", rateIn(1, 1000, 0), 16)
	rate = rateIn(1, 1000, 0)
	commandContext.set(rate, uint64(d.newProgram().uid))
	d.refused("a rate of a program on a ConnectX-4 Lx", rate, 16, statusBadParam)

	d, _ = pacedDriver(t, "", false)
	d.refused("a rate of a function without pacing", rateIn(1, 1000, 0), 16, statusBadOp)
	for _, group := range []uint16{capGeneral, capQoS} {
		caps := d.do("QUERY_HCA_CAP", input(0x100, group<<1|1, 16), 16+capSize)[16:]
		if qos, pacing := (field{539, 1}), (field{0, 1}); group == capGeneral && qos.is(caps) ||
			group == capQoS && pacing.is(caps) {
			t.Errorf("group %d of a function without pacing announces it", group)
		}
	}
}
