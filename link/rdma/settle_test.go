package rdma

import (
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv"
)

// looks is a receive queue that finds as many frames in each look as it is told, then none.
type looks struct {
	noRxQueue
	found []int
}

func (q *looks) Poll([]dv.Packet) (n int) {
	if len(q.found) > 0 {
		n, q.found = q.found[0], q.found[1:]
	}
	return n
}

// looking is a backend with such queues.
type looking struct {
	noQueues
	queues []*looks
}

func (b *looking) NumRx() int            { return len(b.queues) }
func (b *looking) rxQueue(i int) rxQueue { return b.queues[i] }

// lookers is an endpoint whose workers the test has look.
func lookers(found ...[]int) (e *Endpoint, workers []*worker) {
	e = testWorker().e
	b := new(looking)
	for _, f := range found {
		q := &looks{found: f}
		b.queues = append(b.queues, q)
		workers = append(workers, &worker{e: e, q: q})
	}
	e.workers = &workerGroup{queues: b}
	return e, workers
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// TestSettled has queues found empty: the first look that finds nothing may not have been one, as
// that of a packet socket after the last frames, so it takes two in a row, of every worker.
func TestSettled(t *testing.T) {
	e, w := lookers([]int{3, 0, 2}, nil)
	w[1].take() // before the call
	settled := e.Settled()
	w[1].take()
	for i, want := range []int{3, 2} { // a look left out, and frames behind it
		if got := w[0].take(); got != want || isClosed(settled) {
			t.Fatalf("look %d: %d frames, want %d; settled: %v", i, got, want, isClosed(settled))
		}
	}
	w[1].take() // counts once
	if isClosed(settled) {
		t.Fatal("settled before the first queue was empty")
	}
	if w[0].take(); !isClosed(settled) {
		t.Error("not settled with both queues empty")
	}
	again := e.Settled()
	w[0].take()
	if w[1].take(); isClosed(again) == false {
		t.Error("not settled a second time")
	}
}

// TestBetween has workers take their next batch: none has one at hand from before.
func TestBetween(t *testing.T) {
	e, w := lookers([]int{3, 3}, []int{3, 3})
	w[0].take()
	w[1].take()
	between := e.Between()
	w[0].take()
	if isClosed(between) {
		t.Fatal("one worker still has its batch")
	}
	if w[1].take(); !isClosed(between) {
		t.Error("both workers have taken another batch")
	}
	if e.workers = nil; !isClosed(e.Between()) || !isClosed(e.Settled()) {
		t.Error("without workers there is nothing to wait for")
	}
}
