package simnic

import (
	"encoding/binary"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
)

// Register writes that arrive late find records that are ahead of them: that is
// in order, what was never posted is not.
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
		if got := n.Counters().SendWQEs; got != 3 {
			t.Errorf("after doorbell %d: %d WQEs executed, want all 3 at the first", i, got)
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
	sq.post(nop)
	sq.post(nop)
	sq.rec.StoreBE32(4, uint32(sq.pc))
	n.UARWriteLate(0, 0x800, rung[2]+1<<40^1<<56) // another opcode than the ring has
	if v := n.Violations(); len(v) != 3 {
		t.Errorf("violations %q", v)
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
