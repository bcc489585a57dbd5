package simnic

// failWQE completes a WQE with an error, even if it requested no completion, and puts the queue in
// error: all later WQEs are flushed.
func (sq *SQ) failWQE(w *wqe, f fault) {
	sq.queueCompletion(completion{op: w.op, index: sq.hwCI, failed: f})
	sq.state, sq.failed = StateError, true
	sq.hwCI += w.blocks
}

// flushWQE completes a WQE unexecuted. A WQE that requests a completion only for the first error of
// the queue gets none after that error.
func (sq *SQ) flushWQE(w *wqe) {
	if !sq.failed || w.ce != 1 {
		sq.queueCompletion(completion{op: w.op, index: sq.hwCI, failed: faultFlush})
	}
	sq.failed = true
	sq.hwCI += w.blocks
}

// stopSilently puts the queue in error without a completion; only a reset ends that state. Raises
// the queue's fatal event.
func (sq *SQ) stopSilently() {
	sq.state, sq.stopped = StateError, true
	if sq.attr.Events != nil {
		sq.attr.Events(Event{Type: EventSQFatal, SQ: sq})
	}
}

// cqFailed stops the queue because its CQ failed.
func (sq *SQ) cqFailed() {
	sq.mu.Lock()
	defer sq.mu.Unlock()
	if sq.state != StateReset {
		sq.stopSilently()
	}
}
