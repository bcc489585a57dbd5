package dv

import (
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/dv/internal/mmio"
	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
)

// RxQueue is one receive queue. It has one owner, the goroutine that calls
// Poll, Release, Refill, Arm and Wait; Wake and Stats are for everybody.
//
// Three free-running 32-bit counters walk the receive ring, cc <= posted <= pc
// <= cc + entries: the NIC takes descriptors at cc, we complete new ones at pc,
// and posted is the pc that the doorbell record tells the NIC, modulo 2^16. How
// frames lie in the buffers of a descriptor is for the rqFormat to know.
//
//	           make, RST2RDY                  Device.Stop, Close
//	(no ring) ───────────────▶ receiving ──────────────────────────▶ stopped
//	                            │     ▲                                 ▲
//	  error CQE or event        ▼     │ restart: counters 0, RST2RDY    │
//	                          error   │                                 │
//	  halt: at once, or 1 to    │     │                                 │
//	  100 ms later from the     ▼     │                                 │
//	  fifth reset in a row on  halted ┘                                 │
//	                            │  halt or restart refused, or          │
//	                            ▼  too many resets in a row             │
//	                           failed: the device ends ─────────────────┘
//
// In the states error and halted the NIC drops frames for the queue. Frames in
// the ring stay in it, and frames that the caller holds stay the caller's.
type RxQueue struct {
	// Set by newRing; read only afterwards.
	index        int
	pool         *Pool
	ring         []byte       // descriptors, as the NIC reads them; the owner writes them
	wqe          int          // bytes of a descriptor
	head         int          // of these, ahead of its data segments
	rec          *mmio.Region // doorbell record: posted, which the owner writes, the NIC reads
	slots        []Frame      // which frame buffer is where in the ring; the owner's
	mask         uint32       // ring entries - 1
	batch        uint32       // how many new descriptors make a publication worth it
	low          uint32       // fewer descriptors than this in the ring: ask the pool
	longest      uint32       // frame that a descriptor takes, in bytes
	headerStatus *headerStatusTable
	format       rqFormat // how frames lie in the buffers
	log          *slog.Logger

	// The owner's, without a lock: it alone polls, posts and recovers.
	cq       compRing
	block    cqeBlock // compressed completions that are being expanded
	cc       uint32   // next descriptor that the NIC completes; wraps at 2^32
	pc       uint32   // next descriptor to write; wraps at 2^32
	posted   uint32   // pc as the doorbell record has it
	inError  bool     // the NIC has said that the ring is in its error state
	filled   bool     // something has been published since the ring was made or reset
	stalled  bool     // the ring was found empty since the last publication
	recovery recovery

	queueControl // the kernel's part; called by the owner
	waiter       // completion channel; Wake is for everybody

	signals ownerSignals // atomic: written by any goroutine, read by the owner
	count   rxCounts     // written by the owner, shown to others by atomics

	asleep *clock.Asleep // Begin and End are the owner's; set by newRing, and at bring-up
	left   atomic.Uint32 // descriptors that the NIC had before the last publication; the owner's

	dumpTo atomic.Pointer[chan Dump] // where signalDump wants it; of capacity 1
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

// rqFormat is how received frames lie in the buffers of a ring. Its methods are
// the owner's.
type rqFormat interface {
	// poll is Poll's part: it fills dst and returns how many.
	poll(dst []Packet) int
	// release is Release's: it takes buffers back, without publishing them.
	release(pkts []Packet)
	// place puts a buffer into the ring; false: the ring has all it can take.
	place(f Frame) bool
	// room is how many buffers the ring could take.
	room() uint32
	// most is the count up to which descriptors may be published.
	most() uint32
	// drained reports whether the NIC is known to have no descriptor left.
	drained() bool
	// restart sets the ring to its state after a reset, with what it holds.
	restart()
}

// newRing is a queue whose format is still to be set, over memory that the NIC
// does not know yet: entries (a power of two) of wqe bytes in ring, each a
// pointer to write at its end.
func newRing(index, entries, wqe int, ring, rec *mmio.Region, cq compRing, pool *Pool) *RxQueue {
	return &RxQueue{
		index: index, pool: pool, ring: ring.Slice(0, entries*wqe), wqe: wqe, rec: rec, cq: cq,
		mask: uint32(entries - 1), batch: uint32(min(32, entries/4)), low: uint32(entries / 2),
		longest: uint32(pool.size), headerStatus: newHeaderStatusTable(),
		log:      slog.New(slog.DiscardHandler),
		recovery: newRecovery(clock.Clock{}),
		asleep:   clock.NewAsleep(clock.Clock{}),
	}
}

// rewind sets the ring to its state after a reset: empty, counters 0.
func (q *RxQueue) rewind() {
	q.cc, q.pc, q.posted = 0, 0, 0
	q.filled, q.stalled = false, false
	q.block = cqeBlock{}
	q.rec.StoreBE32(mlx5.RecordRecv, 0)
}

// Index is the queue's number in its device.
func (q *RxQueue) Index() int { return q.index }

// Poll fills dst with received frames and returns how many; 0 if there are
// none. It never blocks. The frames are the caller's until Release.
func (q *RxQueue) Poll(dst []Packet) int {
	if !q.signals.none() && !q.handleSignals() {
		return 0
	}
	q.count.polls.n++
	n := q.format.poll(dst)
	if n > 0 {
		q.polled(n)
	}
	if q.pc-q.cc < q.low {
		q.Refill()
	}
	return n
}

// flagsOf is what the NIC found out about a frame.
func (q *RxQueue) flagsOf(cqe *mlx5.CQE) RxFlags {
	flags := q.headerStatus.of(cqe.HeaderStatus())
	if cqe.HashType() != 0 {
		flags |= RxHash
	}
	return flags
}

// describe fills in what the NIC found out about a frame, but for Flags: with
// flagsOf it would be too large to be inlined.
func describe(p *Packet, cqe *mlx5.CQE) {
	p.Timestamp = cqe.Timestamp()
	p.Hash = cqe.Hash()
	p.VLAN = cqe.VLAN()
}

// polled counts a poll that returned n frames.
func (q *RxQueue) polled(n int) {
	q.count.hits.n++
	q.count.packets.n += uint64(n)
	q.recovery.good()
	if q.posted == q.cc {
		q.noteStall()
	}
	q.count.show()
}

// Release gives frames back, in any order and any portion, also those of
// other queues of the device. Packets whose Frame is NoFrame are skipped;
// Release makes it so in each.
func (q *RxQueue) Release(pkts []Packet) {
	q.format.release(pkts)
	if q.pc-q.posted >= q.batch {
		q.publish()
	}
}

// give puts buffer f, the caller's, into the ring, or into the pool if the ring
// has all it can take.
func (q *RxQueue) give(f Frame) {
	if !q.pool.valid(f) {
		panic(fmt.Sprintf("dv: frame %d given to a receive queue, the pool has %d", f,
			q.pool.count))
	}
	if !q.format.place(f) {
		q.pool.put([]Frame{f})
	}
}

// Refill hands every free buffer to the NIC at once, filling gaps in the ring
// from the pool, and returns how many. Release and Poll do this in time by
// themselves; before a long pause it returns the last few.
func (q *RxQueue) Refill() int {
	var some [64]Frame
	for room := q.format.room(); room > 0 && !q.signals.stopped(); {
		n := q.pool.get(some[:min(room, uint32(len(some)))])
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
	q.noteStall()
	pc := q.pc
	if most := q.format.most(); int32(pc-most) > 0 {
		pc = most
	}
	q.left.Store(q.posted - q.cc)
	q.cq.publish()
	mmio.ToDevice()
	q.rec.StoreBE32(mlx5.RecordRecv, pc&0xffff)
	q.posted, q.filled, q.stalled = pc, true, false
	q.count.refills.n++
}

// Stats returns the queue's counters; any goroutine may call it.
func (q *RxQueue) Stats() RxStats {
	s := q.count.stats()
	s.AsleepNanos = uint64(q.asleep.Total())
	return s
}

// Size is how many descriptors the ring has.
func (q *RxQueue) Size() int { return int(q.mask) + 1 }

// Left is how many of them had no frame yet, as far as Poll had seen, just before the NIC was given
// more for the last time: near 0 it is about to drop frames. Any goroutine may call it.
func (q *RxQueue) Left() int { return int(q.left.Load()) }
