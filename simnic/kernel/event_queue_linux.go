package kernel

import (
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
)

// eventQueue is an event descriptor without a file (uverbs.EventQueue). The kernel posts and ends,
// the client reads and closes.
type eventQueue struct {
	ready chan struct{} // holds one token

	mu      sync.Mutex // covers what follows
	records [][]byte
	ended   bool // by the kernel
	closed  bool // by the client
}

var _ uverbs.EventQueue = (*eventQueue)(nil)

// firstQueue gives the number of the first event queue of a node: no descriptor is that large
// (nr_open of linux is 2^20).
const firstQueue = 1 << 30

// newEventFile returns an event descriptor for the client, of the kind that the configuration says.
func (n *node) newEventFile(name string) (*eventFile, unix.Errno) {
	if !n.linux.cfg.EventQueues {
		return newEventFile(name)
	}
	q := &eventQueue{ready: make(chan struct{}, 1)}
	n.queues.mu.Lock()
	defer n.queues.mu.Unlock()
	n.queues.all = append(n.queues.all, q)
	return &eventFile{queue: q, fd: firstQueue + len(n.queues.all) - 1}, 0
}

// eventQueues are the event queues of a node, by number.
type eventQueues struct {
	mu  sync.Mutex
	all []*eventQueue // guarded by mu
}

// EventQueue implements uverbs.EventQueues.
func (n *node) EventQueue(fd int) uverbs.EventQueue {
	n.queues.mu.Lock()
	defer n.queues.mu.Unlock()
	if i := fd - firstQueue; i >= 0 && i < len(n.queues.all) {
		return n.queues.all[i]
	}
	return nil
}

// appendRecord appends a copy of a record.
func (q *eventQueue) appendRecord(record []byte) {
	q.mu.Lock()
	if !q.ended && !q.closed && len(q.records) < maxBacklog {
		q.records = append(q.records, slices.Clone(record))
	}
	q.mu.Unlock()
	q.Wake()
}

// endRecords makes the client read the end behind the records.
func (q *eventQueue) endRecords() {
	q.mu.Lock()
	q.ended = true
	q.mu.Unlock()
	q.Wake()
}

// Read implements uverbs.EventQueue.
func (q *eventQueue) Read(b []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case len(q.records) > 0:
		n := copy(b, q.records[0])
		q.records = q.records[1:]
		return n, nil
	case q.ended:
		return 0, nil
	}
	return 0, unix.EAGAIN
}

// Ready implements uverbs.EventQueue.
func (q *eventQueue) Ready() <-chan struct{} { return q.ready }

// Wake implements uverbs.EventQueue.
func (q *eventQueue) Wake() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// Close implements uverbs.EventQueue.
func (q *eventQueue) Close() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed, q.records = true, nil
	return nil
}

// abandoned reports whether the client closed the queue.
func (q *eventQueue) abandoned() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.closed
}
