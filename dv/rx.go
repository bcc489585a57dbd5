package dv

import (
	"fmt"
	"log/slog"
	"runtime"
	"sync/atomic"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
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

// rqFormat says how received frames lie in the buffers of a ring. Its methods are the owner's.
type rqFormat interface {
	// poll does Poll's part: it fills dst and returns how many.
	poll(dst []Packet) int
	// release does Release's: it takes buffers back, without publishing them.
	release(pkts []Packet)
	// placeBuffer puts a buffer into the ring; false: the ring has all it can take.
	placeBuffer(f Frame) bool
	// room says how many buffers the ring could take.
	room() uint32
	// mostBuffers returns the count up to which descriptors may be published.
	mostBuffers() uint32
	// allCompleted reports whether the NIC is known to have no descriptor left.
	allCompleted() bool
	// restart sets the ring to its state after a reset, with what it holds.
	restart()
}

// newRing returns a queue whose format is still to be set, over memory that the NIC does not know
// yet: entries (a power of two) of wqe bytes in ring, each a pointer to write at its end.
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

// rewindRing sets the ring to its state after a reset: empty, counters 0.
func (q *RxQueue) rewindRing() {
	q.cc, q.pc, q.posted = 0, 0, 0
	q.filled, q.stalled = false, false
	q.block = cqeBlock{}
	q.rec.StoreBE32(mlx5.RecordRecv, 0)
}

// Index returns the queue's number in its device.
func (q *RxQueue) Index() int { return q.index }

// Poll fills dst with received frames and returns how many; 0 if there are
// none. It never blocks. The frames are the caller's until Release.
func (q *RxQueue) Poll(dst []Packet) int {
	if !q.signals.isClear() && !q.handleSignals() {
		return 0
	}
	q.count.polls.n++
	n := q.format.poll(dst)
	if n > 0 {
		q.countPoll(n)
	}
	if q.pc-q.cc < q.low {
		q.Refill()
	}
	return n
}

// flagsOf returns what the NIC found out about a frame.
func (q *RxQueue) flagsOf(cqe *mlx5.CQE) RxFlags {
	flags := q.headerStatus.flagsFor(cqe.HeaderStatus())
	if cqe.HashType() != 0 {
		flags |= RxHash
	}
	return flags
}

// describePacket fills in what the NIC found out about a frame, but for Flags: with
// flagsOf it would be too large to be inlined.
func describePacket(p *Packet, cqe *mlx5.CQE) {
	p.Timestamp = cqe.Timestamp()
	p.Hash = cqe.Hash()
	p.VLAN = cqe.VLAN()
}

// countPoll counts a poll that returned n frames.
func (q *RxQueue) countPoll(n int) {
	q.count.hits.n++
	q.count.packets.n += uint64(n)
	q.recovery.endResetRow()
	if q.posted == q.cc {
		q.noteStall()
	}
	q.count.publishCounts()
}

// Release gives frames back, in any order and any portion, also those of other queues of the
// device. Packets whose Frame is NoFrame are skipped; Release makes it so in each.
func (q *RxQueue) Release(pkts []Packet) {
	q.format.release(pkts)
	if q.pc-q.posted >= q.batch {
		q.publishBuffers()
	}
}

// giveBuffer puts buffer f, the caller's, into the ring, or into the pool if the ring
// has all it can take.
func (q *RxQueue) giveBuffer(f Frame) {
	if !q.pool.ownsFrame(f) {
		panic(fmt.Sprintf("dv: frame %d given to a receive queue, the pool has %d", f,
			q.pool.count))
	}
	if !q.format.placeBuffer(f) {
		q.pool.returnFrames([]Frame{f})
	}
}

// Refill hands every free buffer to the NIC at once, filling gaps in the ring
// from the pool, and returns how many. Release and Poll do this in time by
// themselves; before a long pause it returns the last few.
func (q *RxQueue) Refill() int {
	var some [64]Frame
	for room := q.format.room(); room > 0 && !q.signals.isStopped(); {
		n := q.pool.takeFrames(some[:min(room, uint32(len(some)))])
		if n == 0 {
			break
		}
		for _, f := range some[:n] {
			q.giveBuffer(f)
		}
		room -= uint32(n)
	}
	fresh := q.pc - q.posted
	if fresh > 0 {
		q.publishBuffers()
	}
	return int(fresh)
}

// publishBuffers tells the NIC of the buffers up to pc. The consumer index goes
// first: a NIC that saw the buffers without it might run out of completions.
func (q *RxQueue) publishBuffers() {
	q.noteStall()
	pc := q.pc
	if most := q.format.mostBuffers(); int32(pc-most) > 0 {
		pc = most
	}
	q.left.Store(q.posted - q.cc)
	q.cq.publishCI()
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

// Size returns how many descriptors the ring has.
func (q *RxQueue) Size() int { return int(q.mask) + 1 }

// Left returns how many of them had no frame yet, as far as Poll had seen, just before the NIC was
// given more for the last time: near 0 it is about to drop frames. Any goroutine may call it.
func (q *RxQueue) Left() int { return int(q.left.Load()) }

// waiter says where a queue asks for events, and where they come.
type waiter struct {
	channel  *uverbs.CompChannel
	page     *uverbs.Page // with the register for asking, at byte offset register
	register int
	cqn      uint32
	sn       uint32 // events that came; a request names how many it has seen
}

// Arm asks for an event at the next frame. Poll once more afterwards, then Wait. A request that is
// still open is renewed. Buffers that Release has kept back for its next batch go to the NIC, too.
func (q *RxQueue) Arm() {
	if q.signals.isStopped() || q.putOff() {
		return // completions that nobody looks at would raise the event at once, again and again
	}
	if q.pc != q.posted {
		q.publishBuffers()
	}
	word := mlx5.ArmWord(q.sn, false, q.cq.ci)
	q.cq.rec.StoreBE32(mlx5.RecordArm, word)
	mmio.ToDevice()
	q.page.Store64(q.register, mlx5.ArmDoorbell(word, q.cqn))
	q.count.arms.n++
	q.logResets()
	q.count.showWaits()
}

// Wait parks the goroutine until the event that Arm asked for, Wake, or the
// end: then it returns ErrClosed, or an error that is ErrFailed. It does not
// park on a ring without buffers, which no frame could wake it from: that is
// when all of them were sent on with TxQueue.PostFrame and are not back yet.
func (q *RxQueue) Wait() error { return q.waitBy((*uverbs.CompChannel).Wait) }

// WaitQuietly does what Wait does for callers that have made no other goroutine ready to run since
// the Wait before, with fewer system calls (uverbs.CompChannel.WaitQuietly).
func (q *RxQueue) WaitQuietly() error { return q.waitBy((*uverbs.CompChannel).WaitQuietly) }

func (q *RxQueue) waitBy(wait func(*uverbs.CompChannel) (int, error)) error {
	if q.signals.isStopped() {
		return q.ended()
	}
	if q.posted == q.cc && q.Refill() == 0 {
		runtime.Gosched()
		return nil
	}
	q.asleep.Begin()
	n, err := wait(q.channel)
	q.asleep.End()
	q.sn += uint32(n)
	q.count.events.n += uint64(n)
	if n == 0 {
		q.count.wakes.n++
	}
	q.count.showWaits()
	if err != nil && !q.signals.isStopped() {
		q.fail(fmt.Errorf("wait for receive queue %d: %w", q.index, err))
	}
	if q.signals.isStopped() {
		return q.ended()
	}
	return nil
}

// Wake makes the Wait that is going on, or else the next one, return nil. Any
// goroutine may call it.
func (q *RxQueue) Wake() { q.channel.Wake() }

// A receive ring without descriptors says nothing: the NIC drops what comes for it, and counts that
// for the port, not for the ring (Device.OutOfBuffer). That it was empty shows only in that the
// completion of the last descriptor published is there when the next is published.

// maxStallSteps says how many CQE blocks one publication looks at to find that out, at most. No
// block is looked at twice.
const maxStallSteps = 64

// noteStall counts the ring's being empty, once until the next publication.
func (q *RxQueue) noteStall() {
	if q.stalled || !q.filled || !q.format.allCompleted() {
		return
	}
	q.stalled = true
	q.count.stalls.n++
	q.count.stalls.publishCount()
}

// allCompleted reports whether every descriptor published is completed. Completions and descriptors
// correspond one to one, from the CQE block on that is being expanded.
func (q *RxQueue) allCompleted() bool {
	left := q.posted - q.cc
	return left <= q.block.n-q.block.i || q.cq.entryWritten(q.block.n, q.block.i+left)
}

// allCompleted of a striding ring is false while the last slab has room, or a completion waits.
func (q *striding) allCompleted() bool { return q.posted == q.cc }

// entryWritten reports whether the NIC has written entry n > 0 from ci on, counted from 1, the
// first of which are known to be written. Where there are many CQE blocks before it that no call
// has looked at yet, it may say no although it has.
//
// An entry inside a CQE block is marked as not written, unless it is one of those with minis, whose
// last byte may be anything. So one that looks as if it were ours has been written in this pass.
func (c *compRing) entryWritten(first, n uint32) bool {
	if _, ours := c.ownedEntry(c.ci + n - 1); ours || !c.compressed {
		return ours
	}
	if int32(c.seen-c.ci-first) < 0 {
		c.seen = c.ci + first
	}
	for range maxStallSteps {
		if int32(c.seen-c.ci-n) >= 0 {
			return true
		}
		own, ours := c.ownedEntry(c.seen)
		if !ours {
			return false
		}
		step := uint32(1)
		if own&0xfc == titleReceive {
			c.acquireEntries(1)
			step = max(1, blockLen(c.entryAt(c.seen), c.mask+1))
		}
		c.seen += step
	}
	return false
}

// headerStatusTable maps the parser status of a completion to RxFlags in one load:
// index [7:0] is the status' low byte, [9:8] its L3OK and L4OK bits.
type headerStatusTable [1024]RxFlags

func newHeaderStatusTable() *headerStatusTable {
	v := new(headerStatusTable)
	for i := range v {
		v[i] = headerFlags(uint16(i)&0xff | uint16(i)<<1&(mlx5.HdrL3OK|mlx5.HdrL4OK))
	}
	return v
}

// flagsFor returns the flags for a status (mlx5.CQE.HeaderStatus).
func (v *headerStatusTable) flagsFor(status uint16) RxFlags {
	return v[status&0xff|status>>1&0x300]
}

// headerFlags says what a status promises. A checksum is vouched for only where the NIC knows the
// header it belongs to: with fragments and unknown protocols its bit means nothing (linux
// drivers/net/ethernet/mellanox/mlx5/core/en_rx.c, VPP plugins/rdma/input.c).
func headerFlags(status uint16) RxFlags {
	var f RxFlags
	switch status & mlx5.HdrL3Mask >> mlx5.HdrL3Shift {
	case mlx5.L3IPv4:
		f |= RxIPv4
		if status&mlx5.HdrL3OK != 0 {
			f |= RxL3OK
		}
	case mlx5.L3IPv6:
		f |= RxIPv6 | RxL3OK
	}
	if status&mlx5.HdrVLANStripped != 0 {
		f |= RxVLAN
	}
	if status&mlx5.HdrFragment != 0 {
		return f | RxFragment
	}
	return f | headerFlagsL4(status, f&RxL3OK != 0)
}

func headerFlagsL4(status uint16, ipOK bool) RxFlags {
	var f RxFlags
	switch status & mlx5.HdrL4Mask >> mlx5.HdrL4Shift {
	case mlx5.L4UDP:
		f = RxUDP
	case mlx5.L4TCP, mlx5.L4TCPAck, mlx5.L4TCPData:
		f = RxTCP
	default:
		return 0
	}
	if ipOK && status&mlx5.HdrL4OK != 0 {
		f |= RxL4OK
	}
	return f
}
