package simnic

import (
	"encoding/binary"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
)

// When a register write arrives late, the records may be ahead of it. That is legal; a doorbell for
// WQEs never posted is not. The queue executes no further than the write says.
func TestLateDoorbell(t *testing.T) {
	n := newNIC(t, Config{})
	sq := newSQ(t, n, newCQ(t, n, 3, nil), 4, nil)
	nop := make([]byte, 64)
	mlx5.PutCtrl(nop, mlx5.OpNOP, 0, 0, 0, 1, mlx5.CEOnError)
	var rung []uint64
	for range 3 {
		sq.post(nop)
		rung = append(rung, sq.last)
	}
	sq.rec.StoreBE32(4, uint32(sq.pc))
	for i, v := range rung {
		n.UARWriteLate(0, 0x800, v)
		if got := n.Counters().SendWQEs; got != uint64(i)+1 {
			t.Errorf("after doorbell %d: %d WQEs executed", i, got)
		}
	}
	if v := n.Violations(); len(v) != 0 {
		t.Errorf("late doorbells are no violation: %q", v)
	}
	n.UARWriteLate(0, 0x800, rung[2]+1<<40)        // WQE 3 was never posted
	n.UARWriteLate(0, 0x800, rung[0]&^0xff|0xbaff) // another queue's number
	if v := n.Violations(); len(v) != 2 {
		t.Errorf("violations %q", v)
	}
	n.UARWriteLate(0, 0x800, rung[1]) // rung again
	if v := n.Violations(); len(v) != 2 {
		t.Errorf("a doorbell that says nothing new: %q", v)
	}
	sq.post(nop)
	sq.post(nop)
	sq.rec.StoreBE32(4, uint32(sq.pc))
	n.UARWriteLate(0, 0x800, rung[2]+1<<40^1<<56) // another opcode than the ring has
	if v := n.Violations(); len(v) != 3 {
		t.Errorf("violations %q", v)
	}
}

// A driver that is ahead of its doorbells by more than half the range of an index sees
// its ring full, as it has no completions: 40,000 WQEs in a ring of the largest size.
func TestDoorbellsLateByMoreThanTheRing(t *testing.T) {
	n := newNIC(t, Config{})
	const log, batch = 15, 64
	cq := newCQ(t, n, 4, func(a *CQAttr) { a.Collapsed, a.IgnoreOverrun = true, true })
	sq := newSQ(t, n, cq, log, nil)
	nop := make([]byte, 64)
	mlx5.PutCtrl(nop, mlx5.OpNOP, 0, 0, 0, 1, mlx5.CEOnError)
	var late []uint64 // doorbells not yet arrived
	for posted := 0; posted < 40000; posted += batch {
		for uint64(posted+batch) > n.Counters().SendWQEs+1<<log { // the ring is full
			n.UARWriteLate(0, 0x800, late[0])
			late = late[1:]
		}
		for range batch {
			sq.post(nop)
		}
		sq.rec.StoreBE32(4, uint32(sq.pc))
		late = append(late, sq.last)
	}
	for i, v := range late {
		before := n.Counters().SendWQEs
		if n.UARWriteLate(0, 0x800, v); n.Counters().SendWQEs != before+batch {
			t.Fatalf("doorbell %d of %d on their way: %d WQEs executed, want %d", i, len(late),
				n.Counters().SendWQEs-before, batch)
		}
	}
	if v := n.Violations(); len(v) != 0 {
		t.Errorf("%d violations, the first %q", n.Counters().Violations, v[0])
	}
}

// An arm request may arrive after its queue is destroyed.
func TestLateArmOfDestroyedQueue(t *testing.T) {
	n := newNIC(t, Config{})
	cq := newCQ(t, n, 3, nil)
	if err := cq.Destroy(); err != nil {
		t.Fatal(err)
	}
	n.UARWriteLate(0, mlx5.UARArm, uint64(mlx5.ArmWord(0, false, 0))<<32|uint64(cq.Number()))
	if v := n.Violations(); len(v) != 0 || n.Counters().StaleArms != 1 {
		t.Errorf("%d stale arms, violations %q", n.Counters().StaleArms, v)
	}
	n.UARWrite(0, mlx5.UARArm, uint64(cq.Number()))
	if v := n.Violations(); len(v) != 1 {
		t.Errorf("a store that did not travel: violations %q", v)
	}
}

func TestLateArm(t *testing.T) {
	n := newNIC(t, Config{})
	events := 0
	cq := newCQ(t, n, 3, func(a *CQAttr) { a.Completion = func(*CQ) { events++ } })
	sq := newSQ(t, n, cq, 4, nil)
	arm := func(w uint32) {
		n.UARWriteLate(0, mlx5.UARArm, uint64(w)<<32|uint64(cq.Number()))
	}
	first, second := mlx5.ArmWord(0, false, 0), mlx5.ArmWord(0, true, 0)
	cq.rec.StoreBE32(4, second) // the driver has already written the next request
	arm(first)
	nop := make([]byte, 64)
	mlx5.PutCtrl(nop, mlx5.OpNOP, 0, 0, 0, 1, mlx5.CEAlways)
	sq.post(nop)
	binary.BigEndian.PutUint32(sq.rec.Bytes()[4:], uint32(sq.pc))
	n.UARWriteLate(0, 0x800, sq.last)
	if v := n.Violations(); len(v) != 0 || events != 1 {
		t.Errorf("%d events, violations %q", events, v)
	}
}
