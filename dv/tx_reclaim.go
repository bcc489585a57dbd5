package dv

import (
	"fmt"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
)

// Reclaim consumes completions, frees what they cover and returns how many
// packets that were. It also recovers a queue that failed.
func (q *TxQueue) Reclaim() int {
	n := q.Reap()
	if q.shown != q.count.completions.n {
		q.publishCounts()
	}
	return n
}

// Reap is Reclaim for those who look before every small write: the counters are made visible for
// every 16 completions, and for the last of them by Check.
func (q *TxQueue) Reap() int {
	if !q.signals.isClear() && !q.handleSignals() {
		return 0
	}
	n := q.cq.countReady(int(q.cq.mask) + 1)
	if n == 0 {
		return 0
	}
	before, stamping := q.done, !q.stamped.isEmpty()
	for range n {
		cqe := q.cq.entryAtCI()
		tail := cqe.Tail()
		if tail&0xfc != plainSend || !q.retireThrough(uint16(tail>>16)) {
			done := q.done - before
			if done > 0 {
				q.recovery.endResetRow()
			}
			q.handleErrorCQE(cqe)
			return int(done)
		}
		if stamping {
			q.giveStamps(q.cc, cqe.Timestamp())
		}
		q.cq.ci++
	}
	q.cq.publishCI()
	if !q.inFlightFrames.isEmpty() {
		q.releaseFrames(q.cc)
	}
	if !q.held.isEmpty() {
		q.releaseHeld(q.cc)
	}
	q.recovery.endResetRow()
	q.count.completions.n += uint64(n)
	if q.count.completions.n-q.shown >= showEvery {
		q.publishCounts()
	}
	return int(q.done - before)
}

// plainSend is the last byte of a completion of a send, leaving out the
// solicited and the owner bit.
const plainSend = uint32(mlx5.CQEReq) << 4

// retireThrough frees everything up to the descriptor that starts at the 16-bit count index. It
// reports whether that one had asked for a completion and was not completed yet.
func (q *TxQueue) retireThrough(index uint16) bool {
	start := q.cc + (uint32(index)-q.cc)&q.mask
	m := &q.marks[start&q.mask]
	if m.start != start || m.end == start || q.rung-q.cc < m.end-q.cc {
		return false
	}
	q.cc, q.stage.tail, q.done = m.end, m.stage, m.packets
	return true
}

// handleErrorCQE handles a completion that is no success: it replaces the queue, or has
// handleSignals do so if that was done many times in a row.
func (q *TxQueue) handleErrorCQE(cqe *mlx5.CQE) {
	cause := fmt.Sprintf("%s in blocks %d to %d, bytes %x", cqe.String(),
		uint16(q.cc), uint16(q.rung), cqe[:])
	if q.recovery.pauseBeforeReset() > 0 {
		q.recovery.pending = cause
		q.signals.raiseBits(signalReset)
		return
	}
	q.resetQueue(cause)
}

// handleSignals acts on what other goroutines said and on a reset that was put off, and reports
// whether the queue may be used.
func (q *TxQueue) handleSignals() bool {
	if q.signals.isStopped() {
		return false
	}
	if !q.signals.wantsReset() {
		return true
	}
	if q.recovery.pauseBeforeReset() > 0 {
		return false
	}
	q.signals.clearReset()
	if q.stall.timedOut {
		q.recovery.timedOut("no completion in 15 s")
		q.replaceQueue()
	} else {
		q.resetQueue(q.recovery.takePending())
	}
	return !q.signals.isStopped()
}

// resetQueue replaces a queue in error. If there were too many errors in a row the device fails.
func (q *TxQueue) resetQueue(cause string) {
	if q.recovery.countReset(cause) {
		q.replaceQueue()
		return
	}
	q.countReset()
	q.fail(fmt.Errorf("send queue %d: %d resets in a row did not help, last error: %s", q.index,
		q.recovery.consecutiveResets-1, cause))
}

// countReset counts a reset, and what is lost by it.
func (q *TxQueue) countReset() {
	q.count.resets.n++
	q.count.lost.n += q.count.packets.n - q.done
	q.count.showFaults()
	q.recovery.tellDump(q.recovery.cause, q.dumped, q.takeDump)
	q.logResets()
}

// replaceQueue replaces the kernel's and the NIC's part of the queue by a new one.
// Packets not reported as sent are lost, frames in flight go back to the pool. If
// it cannot be done the device fails.
func (q *TxQueue) replaceQueue() {
	q.countReset()
	q.stall = txStall{}
	if err := q.halt(); err != nil {
		q.fail(fmt.Errorf("destroy send queue %d: %w", q.index, err))
		return
	}
	q.releaseFrames(q.pc)
	q.releaseAllHeld()
	q.giveStamps(q.pc, 0)
	q.done = q.count.packets.n
	q.rewindRing()
	if err := q.start(); err != nil {
		q.fail(fmt.Errorf("replace send queue %d: %w", q.index, err))
	}
}

// mark remembers what a completion of the WQE it belongs to frees. Only WQEs
// that ask for one have it; it stands at the slot of the WQE's first block.
type mark struct {
	start, end uint32 // the WQE's blocks, in counts of pc; equal: no mark
	stage      uint32 // staging.tail after it
	packets    uint64 // posted in the queue's life, this WQE included
}

// inFlightRing holds what the NIC reads from, in the order of the WQEs, until each is completed.
// It has a place for each that the send ring has room for, so it cannot overflow.
type inFlightRing[T any] struct {
	ring       []inFlight[T]
	head, tail uint32 // free-running
}

// inFlight holds one of them.
type inFlight[T any] struct {
	end  uint32 // of its WQE, in counts of pc
	what T
}

func (l *inFlightRing[T]) push(end uint32, what T) {
	l.ring[l.head&uint32(len(l.ring)-1)] = inFlight[T]{end, what}
	l.head++
}

func (l *inFlightRing[T]) isEmpty() bool { return l.tail == l.head }

// next takes out the next one whose WQE ends at or before block count cc; nil: there is none. It
// stays where it is until the next push.
func (l *inFlightRing[T]) next(cc uint32) *T {
	if l.tail == l.head {
		return nil
	}
	e := &l.ring[l.tail&uint32(len(l.ring)-1)]
	if int32(e.end-cc) > 0 {
		return nil
	}
	l.tail++
	return &e.what
}

// releaseHeld ends the references to packets whose WQE ends at or before block count cc.
func (q *TxQueue) releaseHeld(cc uint32) {
	for p := q.held.next(cc); p != nil; p = q.held.next(cc) {
		h := *p
		*p = nil
		h.DecRef()
		q.count.released.n++
	}
}

// giveStamps tells those whose WQE ends at or before block count cc that it was sent at ticks.
func (q *TxQueue) giveStamps(cc uint32, ticks uint64) {
	for p := q.stamped.next(cc); p != nil; p = q.stamped.next(cc) {
		s := *p
		*p = nil
		s.Stamp(ticks)
	}
}

// releaseFrames gives the frames back to the pool whose WQE ends at or before block count cc.
func (q *TxQueue) releaseFrames(cc uint32) {
	var some [64]Frame
	n := 0
	for f := q.inFlightFrames.next(cc); f != nil; f = q.inFlightFrames.next(cc) {
		if some[n] = *f; n == len(some)-1 {
			q.pool.returnHolds(some[:])
			n = -1
		}
		n++
	}
	if n > 0 {
		q.pool.returnHolds(some[:n])
	}
}
