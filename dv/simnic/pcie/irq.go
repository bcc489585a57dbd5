package pcie

import (
	"encoding/binary"
	"sync"

	"golang.org/x/sys/unix"
)

// numVectors is the number of MSI-X vectors of the function.
const numVectors = 32

// irqs are the eventfds of the MSI-X vectors; -1 where the client has none.
type irqs struct {
	mu    sync.Mutex
	fd    [numVectors]int // guarded by mu
	fired uint64          // guarded by mu
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
}

// clear removes the eventfds of all vectors.
func (q *irqs) clear() {
	for v := range numVectors {
		q.set(v, -1)
	}
}

// fire raises a vector. If the vector has no eventfd, the interrupt is lost.
func (q *irqs) fire(vector int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if vector < 0 || vector >= numVectors || q.fd[vector] < 0 {
		return
	}
	q.fired++
	// eventfd(2): a counter in host order
	unix.Write(q.fd[vector], binary.NativeEndian.AppendUint64(nil, 1))
}
