package rdma

import "sync/atomic"

// rendezvous is something that each worker reaches once.
type rendezvous struct {
	left atomic.Int32 // workers that have not reached it
	done chan struct{}
}

// meet makes a rendezvous of the workers that there are.
func (e *Endpoint) meet(at *atomic.Pointer[rendezvous]) <-chan struct{} {
	r := &rendezvous{done: make(chan struct{})}
	e.mu.Lock()
	g := e.workers
	e.mu.Unlock()
	if g == nil {
		close(r.done)
		return r.done
	}
	r.left.Store(int32(g.queues.NumRx()))
	at.Store(r)
	g.wake()
	return r.done
}

// reach notes that one worker is there. seen is that worker's last rendezvous.
func (r *rendezvous) reach(seen **rendezvous) {
	*seen = r
	if r.left.Add(-1) == 0 {
		close(r.done)
	}
}

// Settled returns a channel that is closed once every worker has found its queue empty after this
// call: what the queues held before has been delivered. It stays open if the backend changes
// meanwhile, or a queue is never empty. A later call ends the former one.
func (e *Endpoint) Settled() <-chan struct{} { return e.meet(&e.settling) }

// Between returns a channel that is closed once no worker has a batch at hand any more that it had
// at the time of this call. It stays open if the backend changes meanwhile. A later call ends the
// former one.
func (e *Endpoint) Between() <-chan struct{} { return e.meet(&e.passing) }

// take takes a batch from the queue.
func (w *worker) take() int {
	if r := w.e.passing.Load(); r != nil && r != w.passed {
		r.reach(&w.passed)
	}
	r := w.e.settling.Load()
	n := w.q.Poll(w.frames[:])
	if n > 0 || r == nil || r == w.settled {
		return n
	}
	// a packet socket may leave out one look
	if n = w.q.Poll(w.frames[:]); n == 0 {
		r.reach(&w.settled)
	}
	return n
}
