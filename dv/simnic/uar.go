package simnic

import "github.com/rdma-netstack/rdma-netstack/dv/mlx5"

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
			n.strict.add("arm request %#016x on UAR page %d names no completion queue of it", v,
				uar)
			return
		}
		arm(cq, uint32(v>>32))
	case off >= uarSend && off%uarHalf == 0:
		sq, ok := n.SQ(uint32(v) >> 8)
		if !ok || sq.attr.UAR != uar {
			n.strict.add("doorbell %#016x on UAR page %d names no send queue of it", v, uar)
			return
		}
		doorbell(sq, v)
	}
}
