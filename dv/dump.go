package dv

import (
	"slices"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
)

// DumpSlots is how many slots of each ring a dump has, at most: up to half of them outstanding, and
// those completed before.
const DumpSlots = 64

// Dump is what the two rings of a queue held at one time. It is a copy.
type Dump struct {
	Queue string // tx0, rx0: the direction and the queue's number
	Time  time.Time
	Err   error // what went wrong, which is ErrFailed if the device has; nil: it was asked for

	send           bool
	sqn            uint32 // of a send queue
	head           int    // bytes of a receive descriptor ahead of its segments
	wqes           ringCopy
	cc, posted, pc uint32 // as in the queue
	cqes           []copiedCQE
}

// States of a slot in a dump.
const (
	dumpCompleted   = "completed"   // the NIC is done with the descriptor; the driver with the CQE
	dumpPosted      = "posted"      // the NIC has the descriptor
	dumpUnpublished = "unpublished" // it has not been told of it yet
	dumpNew         = "new"         // the driver has not looked at the CQE yet
)

// DumpedWQE is a descriptor in words. Slot is its free-running count in the ring, in 64-byte blocks
// of a send ring, of which the NIC knows the 16 low bits.
type DumpedWQE struct {
	Slot  uint32 `json:"slot"`
	State string `json:"state"` // completed, posted or unpublished
	mlx5.WQE
}

// DumpedCQE is a completion in words. Slot is its free-running count in the ring.
type DumpedCQE struct {
	Slot  uint32 `json:"slot"`
	State string `json:"state"` // completed or new
	mlx5.Completion
}

// WQEs are the descriptors, in order. Frames that are written into them are left out.
func (d *Dump) WQEs() []DumpedWQE {
	all := []DumpedWQE{}
	for at := 0; at < len(d.wqes.mem); {
		b := d.wqes.mem[at:]
		slot := d.wqes.slot(at)
		if int32(d.pc-slot-d.wqes.entries) > 0 { // used again since
			slot += d.wqes.entries
		}
		w, size, ok := d.describe(b, slot)
		if ok {
			all = append(all, DumpedWQE{slot, d.state(slot), w})
		}
		at += size
	}
	slices.SortStableFunc(all, func(a, b DumpedWQE) int { return int(int32(a.Slot - b.Slot)) })
	return all
}

// describe reads the descriptor at b[0], and says how many bytes it takes; ok is false for a slot
// where none starts.
func (d *Dump) describe(b []byte, slot uint32) (w mlx5.WQE, size int, ok bool) {
	if !d.send {
		return mlx5.DescribeReceive(b[d.head:d.wqes.unit]), d.wqes.unit, true
	}
	w = mlx5.DescribeSend(b)
	if w.QPN != d.sqn || w.Index != uint16(slot) || w.DS == 0 {
		return w, mlx5.BB, false
	}
	return w, mlx5.BBs(w.DS) * mlx5.BB, true
}

func (d *Dump) state(slot uint32) string {
	switch {
	case int32(slot-d.cc) < 0:
		return dumpCompleted
	case int32(slot-d.posted) < 0:
		return dumpPosted
	}
	return dumpUnpublished
}

// CQEs are the completions, in order. Entries that hold none are left out: never written, or in a
// CQE block behind its title.
func (d *Dump) CQEs() []DumpedCQE {
	all := []DumpedCQE{}
	for i := range d.cqes {
		c := &d.cqes[i]
		if c.cqe.Opcode() != mlx5.CQEInvalid {
			all = append(all, DumpedCQE{c.slot, c.state, c.cqe.Describe()})
		}
	}
	return all
}
