package simnic

import "github.com/rdma-netstack/rdma-netstack/dv/mlx5"

// UARWriteLate is UARWrite for a store that travelled: between the store and its
// arrival the driver went on, so its records may be ahead of what v says, as on
// any bus with posted writes.
func (n *NIC) UARWriteLate(uar uint32, off int, v uint64) {
	n.uarWrite(uar, off, v, (*SQ).doorbellLate, (*CQ).armed)
}

func (sq *SQ) doorbellLate(v uint64) { sq.onDoorbell(v, (*SQ).checkLateDoorbell) }

// checkLateDoorbell notes a doorbell for what is not posted. One for WQEs that
// an earlier doorbell announced is in order, and so is one in the middle of what
// is posted; its WQE must be in the ring then.
func (sq *SQ) checkLateDoorbell(v uint64) {
	if sqn := uint32(v) >> 8; sqn != sq.number {
		sq.violation("doorbell %#016x names queue %#x", v, sqn)
		return
	}
	index := uint16(v >> 40)
	end := index + uint16(mlx5.BBs(int(v&0x3f)))
	pi := uint16(sq.attr.Record.LoadBE32(mlx5.RecordSend))
	switch {
	case int16(pi-end) < 0:
		sq.violation("doorbell %#016x: WQE %#x ends behind the record's counter %#x", v, index, pi)
	case int16(end-sq.db.announced) > 0:
		sq.checkRung(v, index)
	}
}
