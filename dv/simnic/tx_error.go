package simnic

// fail answers a WQE with an error completion, whatever it asked for, and puts
// the queue in error: all that follows is flushed.
func (sq *SQ) fail(w *wqe, f fault) {
	sq.complete(completion{op: w.op, index: sq.hwCI, failed: f})
	sq.state, sq.failed = StateError, true
	sq.hwCI += w.blocks
}

// flush completes a WQE unexecuted. One that wants a completion only for the
// first error of the queue stays silent once there was one.
func (sq *SQ) flush(w *wqe) {
	if !sq.failed || w.ce != 1 {
		sq.complete(completion{op: w.op, index: sq.hwCI, failed: faultFlush})
	}
	sq.failed = true
	sq.hwCI += w.blocks
}

// stop puts the queue in error without a completion to tell: only a reset gets
// it out. Raises the queue's fatal event.
func (sq *SQ) stop() {
	sq.state, sq.stopped = StateError, true
	if sq.attr.Events != nil {
		sq.attr.Events(Event{Type: EventSQFatal, SQ: sq})
	}
}

// cqFailed stops the queue because it has nowhere to complete into.
func (sq *SQ) cqFailed() {
	sq.mu.Lock()
	defer sq.mu.Unlock()
	if sq.state != StateReset {
		sq.stop()
	}
}
