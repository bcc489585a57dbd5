package tcpfix

import (
	"sync"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// synSlots is for how many connections there is room, a power of two.
const synSlots = 1024

// synTable keeps a T for each of some connections, by the hash of their flow: of two in one slot
// the later stays. mu guards it.
type synTable[T any] struct {
	mu    sync.Mutex
	slots []synSlot[T]
}

// synSlot is what is kept of one connection.
type synSlot[T any] struct {
	key uint64 // see slot; 0: free
	of  T
}

func newSYNTable[T any]() synTable[T] { return synTable[T]{slots: make([]synSlot[T], synSlots)} }

// slot finds the slot of a segment's flow, and the key it has if it is that flow's. mu is held.
func (x *synTable[T]) slot(s *hdr.Segment) (*synSlot[T], uint64) {
	_, hash := s.Flow()
	key := hash | 1
	return &x.slots[key>>32&(synSlots-1)], key
}
