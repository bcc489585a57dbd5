package dv

import (
	"cmp"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
)

// TxQueue is one send queue. It is not safe for concurrent use: hold Lock
// around calls when there is more than one user, or a Device.Close about.
//
// The send ring counts in blocks of 64 bytes. Four free-running counters walk
// it: descriptors up to cc are completed, up to rung the NIC knows them, up to
// pc they are written, and up to asked a completion has been asked for.
//
//	           make, INIT, RTR, RTS           Device.Stop, Close
//	(no QP) ─────────────────────▶ sending ─────────────────────────▶ stopped
//	                                │   ▲                                ▲
//	  error CQE, event, or ring     ▼   │ start: QP and CQ made anew,    │
//	  that stands still for 15 s  error │ ring empty, counters 0         │
//	                                │   │                                │
//	  halt: at once, or 1 to 100 ms │   │                                │
//	  later from the fifth reset    ▼   │                                │
//	  in a row on                 halted┘                                │
//	                                │  halt or start refused, or         │
//	                                ▼  too many errors in a row          │
//	                              failed: the device ends ───────────────┘
//
// What was posted and not reported as sent when a reset begins is lost, and
// counted in TxDrops.Lost; the stack above sends it again.
type TxQueue struct {
	mu sync.Mutex // taken by users through Lock, and by Device.Close

	// Set by newTxQueue; read only afterwards.
	index   int
	pool    *Pool
	ring    []byte       // descriptors, as the NIC reads them
	rec     *mmio.Region // doorbell record: the 16 low bits of rung
	size    uint32       // ring blocks, a power of two
	mask    uint32       // size - 1
	quarter uint32       // after so many blocks a completion is asked for
	limits  txLimits
	log     *slog.Logger

	longest atomic.Int32 // frame that is sent, in bytes; follows the netdev's MTU

	// The holder's of mu.
	cq             compRing
	pc             uint32 // block after the last written one; this and the next three wrap at 2^32
	cc             uint32 // block after the last completed descriptor
	rung           uint32 // pc as the NIC knows it
	asked          uint32 // block after the last descriptor that asks for a completion
	last           uint32 // where the last written descriptor starts, or the open one
	mpw            mpw    // the multi-packet descriptor that is open
	stage          staging
	marks          []mark // by block: what a completion there frees
	inFlightFrames inFlightRing[Frame]
	lent           sendMemory            // of WithSendMemory
	held           inFlightRing[Holder]  // of packets in it; made with the first
	stamped        inFlightRing[Stamper] // of packets with TxStamp; made with the first
	done           uint64                // packets completed, in counts of count.packets
	recovery       recovery
	stall          txStall
	slowest        time.Duration             // of a full ring at the queue's rate; 0: no rate
	shown          uint64                    // completions when the counters were shown last
	scratch        [MaxBlocks * mlx5.BB]byte // a descriptor that wraps is written here first
	datagrams      datagramParts             // of the packet at hand

	// Of the queue pair; replaced by a reset, under mu.
	queueControl
	sqn       uint32
	page      *uverbs.Page // with the doorbell register, at byte offset register
	register  int
	blueFlame blueFlame

	signals ownerSignals // atomic: written by any goroutine, read by mu's holder
	count   txCounts     // written by mu's holder, shown to others by atomics
}

// txLimits holds what the device takes, in bytes.
type txLimits struct {
	minInline int // header bytes that must be in the descriptor
	inline    int // longest frame that is in its descriptor as a whole; 0: inlineMax
	small     int // longest frame that is in a shared descriptor as a whole; set by newTxQueue
	frame     int // longest frame at first, without FCS; then TxQueue.longest
	tso       int // longest payload to be segmented; 0: none
	lsoHeader int // longest header of such a packet

	mpw uint32 // longest multi-packet descriptor in 16-byte units; 0: none
}

// MaxBlocks gives the most blocks of the ring one descriptor takes: with Free at least this, Post
// can fail for want of staging memory only, but for a packet of datagrams that takes two.
const MaxBlocks = mlx5.MaxDS / 4

// inlineMax is, by default, the longest frame that is written into its
// descriptor as a whole: what fits two blocks. Longer ones take one block and a piece of
// staging memory, which the NIC has to fetch in a second read.
const inlineMax = 2*mlx5.BB - mlx5.CtrlSegSize - mlx5.InlineOffset

// newTxQueue makes a queue over memory that the NIC does not know yet: blocks
// (a power of two) of 64 bytes in ring.
func newTxQueue(index, blocks int, ring, rec *mmio.Region, pool *Pool, stage staging,
	limits txLimits) *TxQueue {
	limits.inline = max(cmp.Or(limits.inline, inlineMax), limits.minInline)
	if limits.mpw > 0 {
		limits.small = limits.inline
	}
	q := &TxQueue{
		index: index, pool: pool, ring: ring.Slice(0, blocks*mlx5.BB), rec: rec,
		size: uint32(blocks), mask: uint32(blocks - 1), quarter: uint32(blocks / 4),
		limits: limits, log: slog.New(slog.DiscardHandler), recovery: newRecovery(clock.Clock{}),
		stage: stage, marks: make([]mark, blocks),
		inFlightFrames: inFlightRing[Frame]{ring: make([]inFlight[Frame], blocks*dsPerBB)},
	}
	q.longest.Store(int32(limits.frame))
	q.rewindRing()
	return q
}

// longestFrame returns the longest frame that is sent, in bytes, without FCS.
func (q *TxQueue) longestFrame() int { return int(q.longest.Load()) }

// rewindRing sets the ring to its state after a reset: empty, counters 0.
func (q *TxQueue) rewindRing() {
	q.pc, q.cc, q.rung, q.asked, q.last = 0, 0, 0, 0, 0
	q.mpw = mpw{}
	q.stage.head, q.stage.tail = 0, 0
	clear(q.marks)
	clear(q.ring)
	q.rec.StoreBE32(mlx5.RecordSend, 0)
}

// Index returns the queue's number in its device.
func (q *TxQueue) Index() int { return q.index }

// Lock and Unlock guard the queue for its users. Hold it briefly.
func (q *TxQueue) Lock() { q.mu.Lock() }

// Unlock ends what Lock began.
func (q *TxQueue) Unlock() { q.mu.Unlock() }

// TryLock is Lock if that takes no waiting, and reports whether it did.
func (q *TxQueue) TryLock() bool { return q.mu.TryLock() }

// Free returns the number of free 64-byte blocks of the ring. A packet takes up to
// MaxBlocks, mostly one or two.
func (q *TxQueue) Free() int { return int(q.room()) }

// Clock returns what [Device.Clock] returns, for the time stamps of packets with TxStamp.
func (q *TxQueue) Clock() (c Clock, ok bool) {
	if q.clock == nil {
		return c, false
	}
	return q.clock()
}

// Size returns how many blocks the ring has, see Free.
func (q *TxQueue) Size() int { return int(q.size) }

func (q *TxQueue) room() uint32 { return q.size - (q.pc - q.cc) }

// allocStage returns the offset of n bytes of staging memory, false if there is no room now. With
// descriptors outstanding it does not restart, though all of them be inline: their marks have the
// present count.
func (q *TxQueue) allocStage(n uint32) (uint32, bool) {
	if q.cc == q.pc {
		q.stage.restartIfEmpty()
	}
	return q.stage.allocPiece(n)
}

// descriptor returns blocks of zero or stale bytes to write the descriptor at
// pc in: the ring's own, or scratch memory when they would wrap.
func (q *TxQueue) descriptor(blocks uint32) []byte {
	q.closeMPW()
	slot := q.pc & q.mask
	if slot+blocks > q.size {
		return q.scratch[:blocks*mlx5.BB]
	}
	return q.ring[slot*mlx5.BB : (slot+blocks)*mlx5.BB]
}

// commitWQE ends the writing of the descriptor at pc, the blocks that
// descriptor returned. It asks for a completion once per quarter of the ring.
func (q *TxQueue) commitWQE(blocks uint32) {
	if slot := q.pc & q.mask; slot+blocks > q.size {
		n := copy(q.ring[slot*mlx5.BB:], q.scratch[:blocks*mlx5.BB])
		copy(q.ring, q.scratch[n:blocks*mlx5.BB])
	}
	q.last = q.pc
	q.pc += blocks
	q.count.packets.n++
	if q.pc-q.asked >= q.quarter {
		q.askForCompletion()
	}
}

// askForCompletion makes the last descriptor ask for a completion. The NIC does not know it yet.
func (q *TxQueue) askForCompletion() {
	slot := q.last & q.mask
	q.ring[slot*mlx5.BB+ctrlFlags] = mlx5.CEAlways
	q.marks[slot] = mark{start: q.last, end: q.pc, stage: q.stage.head, packets: q.count.packets.n}
	q.asked = q.pc
}

// ctrlFlags gives the offset of fm_ce_se in a control segment.
const ctrlFlags = 11

// Flush shows the NIC what was posted: one doorbell for all of it. The last
// descriptor asks for a completion, which covers those before it.
func (q *TxQueue) Flush() {
	if q.pc == q.rung {
		return
	}
	if !q.signals.isClear() {
		q.count.showPosts()
		return
	}
	q.closeMPW()
	if q.asked != q.pc {
		q.askForCompletion()
	}
	mmio.ToDevice()
	q.rec.StoreBE32(mlx5.RecordSend, q.pc&0xffff)
	mmio.ToDevice()
	alone := q.rung == q.last
	q.rung = q.pc
	q.count.doorbells.n++
	q.count.showPosts()
	if alone && q.ringBlueFlame() {
		return
	}
	q.page.Store64(q.register, mlx5.Doorbell(q.ring[(q.last&q.mask)*mlx5.BB:]))
}

// Stats returns the queue's counters; any goroutine may call it, without Lock.
func (q *TxQueue) Stats() TxStats { return q.count.stats() }

// BlueFlame: the doorbell of a descriptor that was posted alone carries the descriptor itself, so
// that the NIC does not have to fetch it. A doorbell register has two halves for that, which take
// turns. rdma-core providers/mlx5/qp.c does the same, with inlined descriptors only.

// blueFlame is the doorbell register's room for descriptors.
type blueFlame struct {
	size uint32 // bytes of a half; 0: none
	half int    // offset of the half that is next
}

// ringBlueFlame rings for the last descriptor by writing all of it into the register,
// and reports whether that could be done.
func (q *TxQueue) ringBlueFlame() bool {
	slot, size := q.last&q.mask, (q.pc-q.last)*mlx5.BB
	if size > q.blueFlame.size || slot*mlx5.BB+size > q.size*mlx5.BB {
		return false
	}
	q.page.Copy(q.register+q.blueFlame.half, q.ring[slot*mlx5.BB:slot*mlx5.BB+size])
	q.blueFlame.half ^= int(q.blueFlame.size)
	q.count.blueFlames.n++
	return true
}
