package pcie

import (
	"encoding/binary"
	"sync"

	"golang.org/x/sys/unix"
)

// numVectors is the number of MSI-X vectors of the function.
const numVectors = 32

// irqs are the eventfds of the MSI-X vectors; -1 where the client has none. The client takes all
// away for a moment whenever the guest enables another vector: an interrupt of that time is
// pending, as in the pending bit array of MSI-X (PCI Express Base Specification 7.7.2), until the
// vector has an eventfd again.
type irqs struct {
	mu      sync.Mutex
	fd      [numVectors]int  // guarded by mu
	pending [numVectors]bool // guarded by mu
	fired   uint64           // guarded by mu
}

func newIRQs() *irqs {
	q := &irqs{}
	for i := range q.fd {
		q.fd[i] = -1
	}
	return q
}

// set makes fd the eventfd of a vector and takes ownership of it; -1 removes the eventfd. The
// client sends the same vector again, with another descriptor, when the guest masks and unmasks it.
func (q *irqs) set(vector, fd int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if old := q.fd[vector]; old >= 0 {
		unix.Close(old)
	}
	q.fd[vector] = fd
	if q.pending[vector] {
		q.raise(vector)
	}
}

// clear removes the eventfds of all vectors.
func (q *irqs) clear() {
	for v := range numVectors {
		q.set(v, -1)
	}
}

// reset removes the eventfds, and what is pending.
func (q *irqs) reset() {
	q.clear()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pending = [numVectors]bool{}
}

// fire raises a vector.
func (q *irqs) fire(vector int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if vector >= 0 && vector < numVectors {
		q.raise(vector)
	}
}

// raise raises a vector, or leaves it pending. Called with the lock held.
func (q *irqs) raise(vector int) {
	if q.pending[vector] = q.fd[vector] < 0; q.pending[vector] {
		return
	}
	q.fired++
	// eventfd(2): a counter in host order
	unix.Write(q.fd[vector], binary.NativeEndian.AppendUint64(nil, 1))
}
