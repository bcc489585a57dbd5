package simnic

import (
	"bytes"
	"encoding/binary"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
)

// UARCopy is a BlueFlame copy: b, a WQE in whole basic blocks, is written to half
// a doorbell register at offset off of page uar. combined says that the page is mapped
// write-combining, so that the copy arrives as one. The queue executes the WQE in its ring before
// UARCopy returns. Hardware may use either the copy or the ring, so they must be equal.
func (n *NIC) UARCopy(uar uint32, off int, b []byte, combined bool) {
	if off < uarSend || off%uarHalf != 0 || len(b) == 0 || len(b) > uarHalf || len(b)%mlx5.BB != 0 {
		n.strict.add("copy of %d bytes to offset %#x of UAR page %d", len(b), off, uar)
		return
	}
	if !combined {
		n.strict.add("copy of %d bytes to UAR page %d, which is mapped uncached", len(b), uar)
	}
	n.uarWrite(uar, off, binary.BigEndian.Uint64(b), func(sq *SQ, v uint64) {
		n.counters.add(ctrBlueFlames, 1)
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
	whole := sq.attr.Ring.Gather(sq.slot(index), ring[:min(size, sq.toEnd(index))])
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

// toEnd is the bytes of the ring from block index to its end.
func (sq *SQ) toEnd(index uint16) int {
	return int(uint64(mlx5.BB)<<sq.attr.LogSize - sq.slot(index))
}
