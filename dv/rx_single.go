package dv

import (
	"encoding/binary"

	"github.com/rdma-netstack/rdma-netstack/dv/internal/mmio"
	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
)

// singleSGE is the format of a ring that has one buffer for each frame: a
// descriptor is one data segment.
type singleSGE struct{ *RxQueue }

// newRxQueue makes a queue of this format over memory that the NIC does not
// know yet: entries (a power of two) of 16 bytes in ring, as many completions
// in cq.
func newRxQueue(index, entries int, ring, rec *mmio.Region, cq compRing, pool *Pool) *RxQueue {
	q := newRing(index, entries, mlx5.DataSegSize, ring, rec, cq, pool)
	q.slots, q.format = make([]Frame, entries), singleSGE{q}
	for at := 0; at < len(q.ring); at += mlx5.DataSegSize {
		mlx5.PutData(q.ring[at:], uint32(pool.size), pool.lkey, 0)
	}
	q.rewind()
	return q
}

func (r singleSGE) poll(dst []Packet) int {
	if r.cq.compressed {
		return r.pollCompressed(r, dst)
	}
	n, _ := r.plain(dst, r.cq.ready(min(len(dst), int(r.posted-r.cc))))
	return n
}

// plain fills dst from the next ready completions. It reports false if the
// queue was reset.
func (r singleSGE) plain(dst []Packet, ready int) (int, bool) {
	q, n := r.RxQueue, 0
	for range ready {
		cqe := q.cq.next()
		length := cqe.ByteCount()
		tail := cqe.Tail()
		if !q.isFrame(tail, length) {
			if !q.handleErrorCQE(r, cqe) {
				return n, false
			}
			continue
		}
		p := &dst[n]
		f := q.slots[q.cc&q.mask]
		at := int(f) * q.pool.size
		p.Data = q.pool.buf[at : at+int(length) : at+q.pool.size]
		p.Frame, p.More = f, 0
		describe(p, cqe)
		p.Flags = q.flagsOf(cqe)
		q.count.bytes.n += uint64(length)
		q.cq.ci++
		q.cc++
		n++
	}
	return n, true
}

// isFrame reports whether a completion, of which these are the last word and
// the length, is that of a frame in the descriptor at cc.
func (q *RxQueue) isFrame(tail, length uint32) bool {
	return tail&0xfc == plainReceive && q.isNext(tail>>16) &&
		length-ethHeader <= q.longest-ethHeader
}

// isNext reports whether a completion that names its descriptor by index is of the one at
// cc. Index is a counter of 16 bits, or already the place in the ring: libmlx5 and DPDK do
// not look at it, and no document tells.
func (q *RxQueue) isNext(index uint32) bool { return (index^q.cc)&q.mask == 0 }

func (r singleSGE) release(pkts []Packet) {
	q := r.RxQueue
	pc, full := q.pc, q.cc+q.mask+1
	for i := range pkts {
		f := pkts[i].Frame
		if f == NoFrame {
			continue
		}
		pkts[i].Frame = NoFrame
		if pc == full || !q.pool.valid(f) { // the pool gets it, or its owner a panic
			q.pc = pc
			q.give(f)
			continue
		}
		q.put(pc, f)
		pc++
	}
	q.pc = pc
}

func (r singleSGE) place(f Frame) bool {
	if r.room() == 0 {
		return false
	}
	r.put(r.pc, f)
	r.pc++
	return true
}

// put writes buffer f into the descriptor at count pc.
func (q *RxQueue) put(pc uint32, f Frame) {
	slot := pc & q.mask
	q.slots[slot] = f
	at := (int(slot)+1)*q.wqe - 8 // the address is what a descriptor ends with
	binary.BigEndian.PutUint64(q.ring[at:at+8], q.pool.addr(f))
}

func (r singleSGE) room() uint32 { return r.mask + 1 - (r.pc - r.cc) }

// most keeps back what would need a completion that the CQE block at the
// consumer index still occupies: it is delivered as a whole.
func (r singleSGE) most() uint32 { return r.cc - r.block.i + r.mask + 1 }

func (r singleSGE) drop() {
	f := r.slots[r.cc&r.mask]
	r.cc++
	r.give(f)
}

func (r singleSGE) restart() { r.reload() }
