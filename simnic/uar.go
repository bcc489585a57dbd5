package simnic

import (
	"bytes"
	"encoding/binary"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
)

// Registers of a UAR page: send doorbells from uarSend on, in registers of 512
// bytes with two halves of 256.
const (
	uarSend = 0x800
	uarHalf = 0x100
)

// UARWrite is an 8-byte store of v (as the big-endian number it is) at offset
// off of the page of device registers with number uar. The queue it names acts
// before UARWrite returns, unless frames have to wait (SQ.Doorbell). Stores that
// continue a BlueFlame copy are ignored: the device takes the WQE from the ring.
func (n *NIC) UARWrite(uar uint32, off int, v uint64) {
	n.uarWrite(uar, off, v, (*SQ).Doorbell, (*CQ).ArmWord)
}

// uarWrite passes a store to its queue.
func (n *NIC) uarWrite(uar uint32, off int, v uint64,
	doorbell func(*SQ, uint64), arm func(*CQ, uint32)) {
	switch {
	case off == mlx5.UARArm:
		cq, ok := n.CQ(uint32(v) & 0xffffff)
		if !ok || cq.attr.UAR != uar {
			n.strict.addViolation(
				"arm request %#016x on UAR page %d names no completion queue of it", v,
				uar)
			return
		}
		arm(cq, uint32(v>>32))
	case off >= uarSend && off%uarHalf == 0:
		sq, ok := n.SQ(uint32(v) >> 8)
		if !ok || sq.attr.UAR != uar {
			n.strict.addViolation("doorbell %#016x on UAR page %d names no send queue of it", v,
				uar)
			return
		}
		doorbell(sq, v)
	}
}

// UARWriteLate is UARWrite for a store that arrives late: the driver went on after the store, so
// its records may be ahead of v, as on any bus with posted writes. The queue executes no further
// than v. A driver whose ring is full therefore waits until its doorbells have arrived, without a
// time limit; on the bus the store itself waits for room.
func (n *NIC) UARWriteLate(uar uint32, off int, v uint64) {
	if off == mlx5.UARArm {
		n.armLate(uar, v)
		return
	}
	n.uarWrite(uar, off, v, (*SQ).doorbellLate, (*CQ).recordArming)
}

// armLate passes on an arm request. A request for a destroyed queue is legal: a driver may arm a
// queue and destroy it before the store arrives.
func (n *NIC) armLate(uar uint32, v uint64) {
	cq, ok := n.CQ(uint32(v) & 0xffffff)
	if !ok || cq.attr.UAR != uar {
		n.counters.addTo(ctrStaleArms, 1)
		return
	}
	cq.recordArming(uint32(v >> 32))
}

func (sq *SQ) doorbellLate(v uint64) { sq.onDoorbell(v, (*SQ).checkLateDoorbell) }

// checkLateDoorbell records a violation if a doorbell announces WQEs that are not posted. It
// announces the WQEs up to its own; one for WQEs that an earlier doorbell announced announces
// nothing. WQEs posted and not announced fit into the ring, of up to 2^15 blocks, so that indices
// of 16 bits tell the two apart.
func (sq *SQ) checkLateDoorbell(v uint64) (announced uint16) {
	pi := sq.postedRecord()
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

// UARCopy is a BlueFlame copy: b, a WQE in whole basic blocks, is written to half
// a doorbell register at offset off of page uar. combined says that the page is mapped
// write-combining, so that the copy arrives as one. The queue executes the WQE in its ring before
// UARCopy returns. Hardware may use either the copy or the ring, so they must be equal.
func (n *NIC) UARCopy(uar uint32, off int, b []byte, combined bool) {
	if off < uarSend || off%uarHalf != 0 || len(b) == 0 || len(b) > uarHalf || len(b)%mlx5.BB != 0 {
		n.strict.addViolation("copy of %d bytes to offset %#x of UAR page %d", len(b), off, uar)
		return
	}
	if !combined {
		n.strict.addViolation("copy of %d bytes to UAR page %d, which is mapped uncached", len(b),
			uar)
	}
	n.uarWrite(uar, off, binary.BigEndian.Uint64(b), func(sq *SQ, v uint64) {
		n.counters.addTo(ctrBlueFlames, 1)
		sq.onDoorbell(v, func(sq *SQ, v uint64) uint16 {
			announced := sq.checkDoorbell(v)
			sq.checkCopy(uint16(v>>40), int(v&0x3f), off, b)
			return announced
		})
	}, (*CQ).ArmWord)
}

// checkCopy records violations that make hardware execute a WQE different from that in the ring, or
// lose a copy: the processor may merge a copy with the previous one in the same half.
func (sq *SQ) checkCopy(index uint16, ds, off int, b []byte) {
	var ring [uarHalf]byte
	size := min(ds*mlx5.DSSize, len(b))
	whole := sq.attr.Ring.Gather(sq.ringOffset(index), ring[:min(size, sq.toEnd(index))])
	half := off / uarHalf % 2
	switch {
	case ds*mlx5.DSSize > len(b):
		sq.violation("BlueFlame copy of WQE %#x has %d of %d bytes", index, len(b), ds*mlx5.DSSize)
	case !whole || size > sq.toEnd(index):
		sq.violation("BlueFlame copy of WQE %#x goes on behind the end of the ring", index)
	case !bytes.Equal(ring[:size], b[:size]):
		sq.violation("BlueFlame copy of WQE %#x differs from the ring", index)
	case index != sq.db.rung:
		sq.violation("BlueFlame copy of WQE %#x while %#x was not rung for", index, sq.db.rung)
	case sq.db.blueFlamed && sq.db.half == half:
		sq.violation("BlueFlame copy of WQE %#x in the same half as that before it", index)
	}
	sq.db.blueFlamed, sq.db.half = true, half
}

// toEnd returns the bytes of the ring from block index to its end.
func (sq *SQ) toEnd(index uint16) int {
	return int(uint64(mlx5.BB)<<sq.attr.LogSize - sq.ringOffset(index))
}
