package dv

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
)

// DumpSlots says how many slots of each ring a dump has, at most: up to half of them outstanding,
// and those completed before.
const DumpSlots = 64

// Dump holds what the two rings of a queue held at one time. It is a copy.
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

// DumpedWQE describes a descriptor in words. Slot is its free-running count in the ring, in
// 64-byte blocks of a send ring, of which the NIC knows the 16 low bits.
type DumpedWQE struct {
	Slot  uint32 `json:"slot"`
	State string `json:"state"` // completed, posted or unpublished
	mlx5.WQE
}

// DumpedCQE describes a completion in words. Slot is its free-running count in the ring.
type DumpedCQE struct {
	Slot  uint32 `json:"slot"`
	State string `json:"state"` // completed or new
	mlx5.Completion
}

// WQEs returns the descriptors, in order. Frames that are written into them are left out.
func (d *Dump) WQEs() []DumpedWQE {
	all := []DumpedWQE{}
	for at := 0; at < len(d.wqes.mem); {
		b := d.wqes.mem[at:]
		slot := d.wqes.first + uint32(at/d.wqes.unit)
		if int32(d.pc-slot-d.wqes.entries) > 0 { // used again since
			slot += d.wqes.entries
		}
		w, size, ok := d.describeWQE(b, slot)
		if ok {
			all = append(all, DumpedWQE{slot, d.slotState(slot), w})
		}
		at += size
	}
	slices.SortStableFunc(all, func(a, b DumpedWQE) int { return int(int32(a.Slot - b.Slot)) })
	return all
}

// describeWQE reads the descriptor at b[0], and says how many bytes it takes; ok is false for a
// slot where none starts.
func (d *Dump) describeWQE(b []byte, slot uint32) (w mlx5.WQE, size int, ok bool) {
	if !d.send {
		return mlx5.DescribeReceive(b[d.head:d.wqes.unit]), d.wqes.unit, true
	}
	w = mlx5.DescribeSend(b)
	if w.QPN != d.sqn || w.Index != uint16(slot) || w.DS == 0 {
		return w, mlx5.BB, false
	}
	return w, mlx5.BBs(w.DS) * mlx5.BB, true
}

func (d *Dump) slotState(slot uint32) string {
	switch {
	case int32(slot-d.cc) < 0:
		return dumpCompleted
	case int32(slot-d.posted) < 0:
		return dumpPosted
	}
	return dumpUnpublished
}

// CQEs returns the completions, in order. Entries that hold none are left out: never written, or
// in a CQE block behind its title.
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

// ringCopy is some slots of a ring of descriptors.
type ringCopy struct {
	mem     []byte
	unit    int    // bytes of a slot
	first   uint32 // count of the first
	entries uint32 // of the ring
}

// copyRing copies slots around cc of a ring whose last written slot is before pc.
func copyRing(ring []byte, unit int, cc, pc uint32) ringCopy {
	entries := uint32(len(ring) / unit)
	n := min(DumpSlots, entries)
	r := ringCopy{make([]byte, 0, int(n)*unit), unit, cc + min(pc-cc, n/2) - n, entries}
	for i := range n {
		at := int((r.first+i)&(entries-1)) * unit
		r.mem = append(r.mem, ring[at:at+unit]...)
	}
	return r
}

// copiedCQE describes an entry of a ring of completions.
type copiedCQE struct {
	slot  uint32
	state string
	cqe   mlx5.CQE
}

// copyAround copies the entries around ci. It is the owner's, but for the entries before ci, which
// the NIC may write at any time: one that it does write meanwhile is left out.
func (c *compRing) copyAround() (all []copiedCQE) {
	n := min(DumpSlots, c.mask+1)
	plain, title := c.fillPlain(int(n / 2))
	fresh := uint32(plain)
	if title {
		fresh++
	}
	for slot := c.ci + fresh - n; slot != c.ci+fresh; slot++ {
		e, state := copiedCQE{slot: slot}, dumpCompleted
		if int32(slot-c.ci) >= 0 {
			state = dumpNew
		}
		at := int(slot&c.mask) * mlx5.CQESize
		own := c.mem.LoadBE32(at + mlx5.CQEOwnWord)
		copy(e.cqe[:], c.buf[at:at+mlx5.CQESize])
		if c.mem.LoadBE32(at+mlx5.CQEOwnWord) != own || e.cqe.Tail() != own {
			continue
		}
		e.state = state
		if own&1 != slot>>c.log&1 && own>>4&0xf != uint32(mlx5.CQEInvalid) {
			e.slot, e.state = slot+c.mask+1, dumpNew
		}
		all = append(all, e)
	}
	return all
}

// takeDump copies what the queue has. It is the owner's.
func (q *RxQueue) takeDump(why error) Dump {
	return Dump{Queue: fmt.Sprintf("rx%d", q.index), Time: q.recovery.now(), Err: why,
		head: q.head, cc: q.cc, posted: q.posted, pc: q.pc,
		wqes: copyRing(q.ring, q.wqe, q.cc, q.pc), cqes: q.cq.copyAround()}
}

// takeDump copies what the queue has. It is the lock's holder's. A descriptor that is open is left
// out.
func (q *TxQueue) takeDump(why error) Dump {
	pc := q.pc
	if q.mpw.ds > 0 {
		pc = q.last
	}
	return Dump{Queue: fmt.Sprintf("tx%d", q.index), Time: q.recovery.now(), Err: why,
		send: true, sqn: q.sqn, cc: q.cc, posted: q.rung, pc: pc,
		wqes: copyRing(q.ring, mlx5.BB, q.cc, pc), cqes: q.cq.copyAround()}
}

// tellDump tells Config.Dumped why a queue is in error, and what it has.
func (r *recovery) tellDump(cause string, dumped func(Dump), take func(error) Dump) {
	if dumped != nil && r.dumpDue() {
		dumped(take(errors.New(cause)))
	}
}

// Dump copies what the rings of all queues hold now. The part of a receive queue is done by its
// owner at its next Poll, which this wakes it for: ctx bounds the wait. The error is that of Err if
// the device is over; Config.Dumped has been told of a failure then.
func (d *Device) Dump(ctx context.Context) (all []Dump, err error) {
	for _, q := range d.tx {
		q.Lock()
		if err := d.Err(); err != nil {
			q.Unlock()
			return nil, err
		}
		all = append(all, q.takeDump(nil))
		q.Unlock()
	}
	for _, q := range d.rx {
		dump, err := d.dumpRx(ctx, q)
		if err != nil {
			return nil, err
		}
		all = append(all, dump)
	}
	return all, nil
}

// dumpRx has the owner of q copy what it has.
func (d *Device) dumpRx(ctx context.Context, q *RxQueue) (Dump, error) {
	answer := make(chan Dump, 1)
	q.dumpTo.Store(&answer)
	q.signals.raiseBits(signalDump)
	q.Wake()
	select {
	case dump := <-answer:
		return dump, nil
	case <-d.done:
		return Dump{}, d.Err()
	case <-ctx.Done():
		return Dump{}, fmt.Errorf("dump of receive queue %d: nobody polls it: %w", q.index,
			ctx.Err())
	}
}

// answerDump does the owner's part of Device.Dump.
func (q *RxQueue) answerDump() {
	if answer := q.dumpTo.Swap(nil); answer != nil {
		*answer <- q.takeDump(nil)
	}
}

// tellDumps tells Config.Dumped of all queues of a device that has failed. Nobody is at them.
func (d *Device) tellDumps(why error) {
	if d.config.Dumped == nil {
		return
	}
	for _, q := range d.tx {
		d.config.Dumped(q.takeDump(why))
	}
	for _, q := range d.rx {
		d.config.Dumped(q.takeDump(why))
	}
}
