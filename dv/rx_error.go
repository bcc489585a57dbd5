package dv

import (
	"fmt"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
)

// A completion other than "frame received" ends in one of two ways: the frame is dropped and the
// queue goes on (a frame too long for its buffer), or the queue is in error and is reset: stopped,
// emptied of stale completions, refilled from entry 0 and started. Both are counted.

// handleErrorCQE handles the completion at the consumer index, and reports whether the
// queue goes on behind it; if not it was reset, or has failed.
func (q *RxQueue) handleErrorCQE(l perFrameFormat, cqe *mlx5.CQE) bool {
	inOrder := q.isNext(uint32(cqe.WQECounter()))
	switch op := cqe.Opcode(); {
	case op == mlx5.CQERecvErr && inOrder && cqe.Syndrome() == mlx5.SynLocalLength:
		q.count.tooLong.n++
		q.dropOne(l)
		return true
	case op == mlx5.CQERecvErr:
		q.countError(cqe.Syndrome())
	case op == mlx5.CQERecv && inOrder && cqe.Format() == mlx5.FormatPlain &&
		cqe.ByteCount() < ethHeader:
		q.count.malformed.n++
		q.dropOne(l)
		return true
	default:
		q.count.malformed.n++
	}
	q.resetOrDefer(fmt.Sprintf("%s where descriptor %d was expected", cqe.String(), uint16(q.cc)))
	return false
}

// countError counts an error completion. All but a frame that is too long put the ring into its
// error state.
func (q *RxQueue) countError(s mlx5.Syndrome) {
	q.inError = q.inError || s != mlx5.SynLocalLength
	if s == mlx5.SynFlushed {
		q.count.flushed.n++
	} else {
		q.count.errors.n++
	}
}

// dropOne consumes the completion and the descriptor it is of, whose buffers go back into the ring.
func (q *RxQueue) dropOne(l perFrameFormat) {
	q.cq.ci++
	l.drop()
	q.count.showFaults()
}

// resetOrDefer resets the queue, or has handleSignals do so if there were many resets in a row.
// Nothing of what is in the completion ring is looked at any more.
func (q *RxQueue) resetOrDefer(cause string) {
	q.recovery.tellDump(cause, q.dumped, q.takeDump)
	if q.recovery.pauseBeforeReset() == 0 {
		q.resetRing(cause)
		return
	}
	q.recovery.pending = cause
	q.cq.skipAll()
	q.signals.raiseBits(signalReset)
}

// handleSignals acts on what other goroutines said and on a reset that was put off, and reports
// whether the queue may be used.
func (q *RxQueue) handleSignals() bool {
	if q.signals.isStopped() {
		return false
	}
	if q.signals.clearDump() {
		q.answerDump()
	}
	if !q.signals.wantsReset() {
		return true
	}
	if q.putOff() {
		return false
	}
	if q.signals.clearReset() {
		if q.recovery.pending == "" && q.inNoError() {
			return true
		}
		q.inError = true
	}
	q.resetRing(q.recovery.takePending())
	return !q.signals.isStopped()
}

// putOff reports whether a reset is due and put off, and sets a timer for it.
func (q *RxQueue) putOff() bool {
	if !q.signals.wantsReset() || q.recovery.pauseBeforeReset() == 0 {
		return false
	}
	if pause := q.recovery.timerForReset(); pause > 0 {
		q.wakeAfter(wakeToReset, pause)
	}
	return true
}

// inNoError reports whether a ring that only an event says is in its error state is in none. Such
// an event is about an earlier life of the ring. A send queue is made anew by a reset, and the
// handle in its events names the life. A receive queue stays the same kernel object, as the
// indirection table names it, and its handle cannot. If the ring is in error it is halted.
func (q *RxQueue) inNoError() bool {
	failed, err := q.haltFailed()
	return err == nil && !failed
}

// resetRing brings the queue from any state back to work; frames in the ring stay
// in it, frames with the caller stay there. If it cannot, the device fails.
func (q *RxQueue) resetRing(cause string) {
	q.count.resets.n++
	defer q.count.showFaults()
	hope := q.recovery.countReset(cause)
	q.recovery.tellDump(cause, q.dumped, q.takeDump)
	q.logResets()
	if q.recovery.owesLogLine() {
		q.wakeAfter(wakeToReport, resetLogPause)
	}
	if !hope {
		q.fail(fmt.Errorf("receive queue %d: %d resets in a row did not help, last error: %s",
			q.index, q.recovery.consecutiveResets-1, cause))
		return
	}
	if err := q.halt(); err != nil {
		q.fail(fmt.Errorf("reset receive queue %d: %w", q.index, err))
		return
	}
	q.inError = false
	q.cq.skipAll()
	q.format.restart()
	if err := q.start(); err != nil {
		q.fail(fmt.Errorf("restart receive queue %d: %w", q.index, err))
		return
	}
	q.publishBuffers()
}

// logResets logs the resets there were since the last line, once per second at most.
func (q *RxQueue) logResets() {
	if n := q.recovery.resetsToLog(); n > 0 {
		q.log.Warn("receive queue was in error and is reset", "queue", q.index, "resets", n,
			"cause", q.recovery.cause)
	}
}

// reloadBuffers empties a ring of one buffer per descriptor and gives it its buffers
// anew, those apart in which callers still have frames.
func (q *RxQueue) reloadBuffers() {
	inRing := make([]Frame, 0, q.pc-q.cc)
	for ; q.cc != q.pc; q.cc++ {
		if f := q.slots[q.cc&q.mask]; q.pool.dropHolds(f, 1) {
			inRing = append(inRing, f)
		}
	}
	q.rewindRing()
	for _, f := range inRing {
		q.giveBuffer(f)
	}
}
