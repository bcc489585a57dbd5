package dv

import (
	"encoding/binary"
	"fmt"
	"log/slog"

	"github.com/rdma-netstack/rdma-netstack/dv/internal/mmio"
	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
)

// RxQueue is one receive queue. It has one owner, the goroutine that calls
// Poll, Release, Refill, Arm and Wait; Wake and Stats are for everybody.
//
// The receive ring holds one frame per entry, in a data segment of 16 bytes.
// Three free-running counters walk it: the NIC takes buffers at cc, we put new
// ones at pc, and posted is the pc that the doorbell record tells the NIC.
type RxQueue struct {
	// Set by newRxQueue.
	index    int
	pool     *Pool
	ring     []byte
	wqe      int // bytes of a descriptor
	rec      *mmio.Region
	slots    []Frame // which frame is in which ring entry
	mask     uint32  // ring entries - 1
	batch    uint32  // how many new buffers make a publication worth it
	low      uint32  // fewer buffers than this in the ring: ask the pool
	verdicts *verdicts
	omitted  RxFlags                // what compressed completions do not tell of each frame
	receive  func(dst []Packet) int // Poll's part that depends on what the ring is like
	log      *slog.Logger

	// The owner's.
	cq             compRing
	session        session
	strider        strider
	cc, pc, posted uint32
	futile         int // resets since the last good frame

	backing
	waiter

	alarm alarm
	count rxCounts
}

// Smallest frame that can have an Ethernet header, and the size that shorter
// frames are padded to, in bytes without FCS (IEEE 802.3).
const (
	ethHeader = 14
	ethMin    = 60
)

// plainReceive is the last byte of a completion for a received frame, leaving
// out the solicited and the owner bit.
const plainReceive = uint32(mlx5.CQERecv) << 4

// newRxQueue makes a queue over memory that the NIC does not know yet: entries
// (a power of two) of 16 bytes in ring, as many completions in cq.
func newRxQueue(index, entries int, ring, rec *mmio.Region, cq compRing, pool *Pool) *RxQueue {
	q := &RxQueue{
		index: index, pool: pool, ring: ring.Slice(0, entries*mlx5.DataSegSize), wqe: mlx5.DataSegSize, rec: rec, cq: cq,
		slots: make([]Frame, entries), mask: uint32(entries - 1),
		batch: uint32(min(32, entries/4)), low: uint32(entries / 2),
		verdicts: newVerdicts(), log: slog.New(slog.DiscardHandler),
	}
	for at := 0; at < len(q.ring); at += mlx5.DataSegSize {
		mlx5.PutData(q.ring[at:], uint32(pool.size), pool.lkey, 0)
	}
	q.receive = q.pollCyclic
	q.rewind()
	return q
}

// newStridingRxQueue is newRxQueue for entries slabs of descriptors of
// stridingWQE bytes, and as many completions as they have strides.
func newStridingRxQueue(index, entries int, ring, rec *mmio.Region, cq compRing, pool *Pool) *RxQueue {
	q := newRxQueue(index, entries, ring, rec, cq, pool)
	q.ring, q.wqe, q.batch, q.receive = ring.Slice(0, entries*stridingWQE), stridingWQE, 1, q.pollStriding
	for at := 0; at < len(q.ring); at += stridingWQE {
		mlx5.PutNext(q.ring[at:], 0)
		mlx5.PutData(q.ring[at+mlx5.DataSegSize:], uint32(pool.size), pool.lkey, 0)
	}
	return q
}

// compress prepares for compressed completions, which do not tell what omitted
// names: RxSum or RxHash.
func (q *RxQueue) compress(omitted RxFlags) {
	q.omitted, q.cq.zip = omitted, true
	if q.wqe == mlx5.DataSegSize {
		q.receive = q.pollCompressed
	}
}

// rewind sets the ring to its state after a reset: empty, counters 0.
func (q *RxQueue) rewind() {
	q.cc, q.pc, q.posted = 0, 0, 0
	q.session, q.strider = session{}, strider{}
	q.rec.StoreBE32(mlx5.RecordRecv, 0)
}

// Index is the queue's number in its device.
func (q *RxQueue) Index() int { return q.index }

// Poll fills dst with received frames and returns how many; 0 if there are
// none. It never blocks. The frames are the caller's until Release.
func (q *RxQueue) Poll(dst []Packet) int {
	if !q.alarm.quiet() && !q.attend() {
		return 0
	}
	q.count.polls.n++
	n := q.receive(dst)
	if n > 0 {
		q.polled(n)
	}
	if q.pc-q.cc < q.low {
		q.Refill()
	}
	return n
}

// pollCyclic is Poll for a ring of one frame per buffer, without compression.
func (q *RxQueue) pollCyclic(dst []Packet) int {
	n, _ := q.pollPlain(dst, q.cq.ready(min(len(dst), int(q.posted-q.cc))))
	return n
}

// pollPlain fills dst from the next ready completions. It reports false if the
// queue was reset.
func (q *RxQueue) pollPlain(dst []Packet, ready int) (int, bool) {
	n := 0
	for range ready {
		cqe := q.cq.next()
		length := binary.BigEndian.Uint32(cqe[0x2c:])
		tail := binary.BigEndian.Uint32(cqe[mlx5.CQEOwnWord:])
		if tail&0xfc != plainReceive || uint16(tail>>16) != uint16(q.cc) || length-ethHeader > uint32(q.pool.size-ethHeader) {
			if !q.odd(cqe[:]) {
				return n, false
			}
			continue
		}
		q.fill(&dst[n], cqe, length)
		q.cq.ci++
		q.cc++
		n++
	}
	return n, true
}

// flagsOf is what the NIC found out about a frame.
func (q *RxQueue) flagsOf(cqe *[mlx5.CQESize]byte) RxFlags {
	flags := q.verdicts.of(binary.BigEndian.Uint16(cqe[0x1c:]))
	if cqe[0x10] != 0 {
		flags |= RxHash
	}
	return flags
}

// fill makes p of the completion of the frame at cc.
func (q *RxQueue) fill(p *Packet, cqe *[mlx5.CQESize]byte, length uint32) {
	f := q.slots[q.cc&q.mask]
	at := int(f) * q.pool.size
	p.Data = q.pool.buf[at : at+int(length) : at+q.pool.size]
	p.Frame = f
	q.describe(p, cqe)
	q.count.bytes.n += uint64(length)
}

// describe fills in what the NIC found out about a frame.
func (q *RxQueue) describe(p *Packet, cqe *[mlx5.CQESize]byte) {
	p.Timestamp = binary.BigEndian.Uint64(cqe[0x30:])
	p.Hash = binary.BigEndian.Uint32(cqe[0x0c:])
	p.Sum = binary.BigEndian.Uint16(cqe[0x14:])
	p.VLAN = binary.BigEndian.Uint16(cqe[0x1e:])
	p.Flags = q.flagsOf(cqe)
}

// polled counts a poll that returned n frames.
func (q *RxQueue) polled(n int) {
	q.count.hits.n++
	q.count.packets.n += uint64(n)
	q.futile = 0
	if q.posted == q.cc {
		q.count.stalls.n++
	}
	q.count.show()
}

// Release gives frames back, in any order and any portion, also those of
// other queues of the device. Packets whose Frame is NoFrame are skipped;
// Release makes it so in each.
func (q *RxQueue) Release(pkts []Packet) {
	if q.pool.shares != nil {
		q.releaseShares(pkts)
		pkts = nil
	}
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
		q.place(pc, f)
		pc++
	}
	q.pc = pc
	if q.pc-q.posted >= q.batch {
		q.publish()
	}
}

// give puts frame f, the caller's, into the ring, or into the pool if the ring
// is full.
func (q *RxQueue) give(f Frame) {
	if !q.pool.valid(f) {
		panic(fmt.Sprintf("dv: frame %d given to a receive queue, the pool has %d", f, q.pool.count))
	}
	if q.pc-q.cc > q.mask {
		q.pool.put([]Frame{f})
		return
	}
	q.pool.hold(f)
	q.place(q.pc, f)
	q.pc++
}

// place writes frame f into the descriptor at count pc.
func (q *RxQueue) place(pc uint32, f Frame) {
	slot := pc & q.mask
	q.slots[slot] = f
	at := (int(slot)+1)*q.wqe - 8 // the address is what a descriptor ends with
	binary.BigEndian.PutUint64(q.ring[at:at+8], q.pool.addr(f))
}

// Refill hands every free buffer to the NIC at once, filling gaps in the ring
// from the pool, and returns how many. Release and Poll do this in time by
// themselves; before a long pause it returns the last few.
func (q *RxQueue) Refill() int {
	var some [64]Frame
	for room := q.mask + 1 - (q.pc - q.cc); room > 0 && !q.alarm.over(); {
		n := q.pool.take(some[:min(room, uint32(len(some)))])
		if n == 0 {
			break
		}
		for _, f := range some[:n] {
			q.give(f)
		}
		room -= uint32(n)
	}
	fresh := q.pc - q.posted
	if fresh > 0 {
		q.publish()
	}
	return int(fresh)
}

// publish tells the NIC of the buffers up to pc. The consumer index goes
// first: a NIC that saw the buffers without it might run out of completions.
func (q *RxQueue) publish() {
	pc := q.pc
	if most := q.cc - q.session.i + q.mask + 1; q.wqe == mlx5.DataSegSize && int32(pc-most) > 0 {
		pc = most // a session keeps its completions until it is delivered as a whole
	}
	q.cq.publish()
	mmio.ToDevice()
	q.rec.StoreBE32(mlx5.RecordRecv, pc&0xffff)
	q.posted = pc
	q.count.refills.n++
}

// Stats returns the queue's counters; any goroutine may call it.
func (q *RxQueue) Stats() RxStats { return q.count.stats() }
