package simnic

import "github.com/rdma-netstack/rdma-netstack/dv/mlx5"

// UARWriteLate is UARWrite for a store that arrives late: the driver went on after the store, so
// its records may be ahead of v, as on any bus with posted writes. The queue executes no further
// than v. A driver whose ring is full therefore waits until its doorbells have arrived, without a
// time limit; on the bus the store itself waits for room.
func (n *NIC) UARWriteLate(uar uint32, off int, v uint64) {
	if off == mlx5.UARArm {
		n.armLate(uar, v)
		return
	}
	n.uarWrite(uar, off, v, (*SQ).doorbellLate, (*CQ).armed)
}

// armLate passes on an arm request. A request for a destroyed queue is legal: a driver may arm a
// queue and destroy it before the store arrives.
func (n *NIC) armLate(uar uint32, v uint64) {
	cq, ok := n.CQ(uint32(v) & 0xffffff)
	if !ok || cq.attr.UAR != uar {
		n.counters.add(ctrStaleArms, 1)
		return
	}
	cq.armed(uint32(v >> 32))
}

func (sq *SQ) doorbellLate(v uint64) { sq.onDoorbell(v, (*SQ).checkLateDoorbell) }

// checkLateDoorbell records a violation if a doorbell announces WQEs that are not posted. It
// announces the WQEs up to its own; one for WQEs that an earlier doorbell announced announces
// nothing. WQEs posted and not announced fit into the ring, of up to 2^15 blocks, so that indices
// of 16 bits tell the two apart.
func (sq *SQ) checkLateDoorbell(v uint64) (announced uint16) {
	pi := sq.record()
	if sqn := uint32(v) >> 8; sqn != sq.number {
		sq.violation("doorbell %#016x names queue %#x", v, sqn)
		return pi
	}
	index := uint16(v >> 40)
	end := index + uint16(mlx5.BBs(int(v&0x3f)))
	before := sq.db.announced
	switch more := end - before; {
	case more == 0:
	case more <= pi-before:
		sq.checkRung(v, index)
		return end
	case int16(more) > 0:
		sq.violation("doorbell %#016x: WQE %#x ends behind the record's counter %#x", v, index, pi)
		return pi
	}
	return before
}
