package dv

// mark remembers what a completion of the WQE it belongs to frees. Only WQEs
// that ask for one have it; it stands at the slot of the WQE's first block.
type mark struct {
	start, end uint32 // the WQE's blocks, in counts of pc; equal: no mark
	stage      uint32 // staging.tail after it
	packets    uint64 // posted in the queue's life, this WQE included
}

// lent is a frame the NIC reads from, until the WQE that ends at block count
// end is completed.
type lent struct {
	end   uint32
	frame Frame
}

// lentRing holds the frames lent to the NIC in the order of their WQEs. It has
// as many entries as the send ring has 16-byte units, so it cannot overflow.
type lentRing struct {
	ring       []lent
	head, tail uint32 // free-running
}

func (l *lentRing) push(end uint32, f Frame) {
	l.ring[l.head&uint32(len(l.ring)-1)] = lent{end, f}
	l.head++
}

// release gives the frames of all WQEs that end at or before block count cc
// back to pool.
func (l *lentRing) release(cc uint32, pool *Pool) {
	var some [64]Frame
	n := 0
	for l.tail != l.head {
		e := l.ring[l.tail&uint32(len(l.ring)-1)]
		if int32(e.end-cc) > 0 {
			break
		}
		l.tail++
		if some[n] = e.frame; n == len(some)-1 {
			pool.back(some[:])
			n = -1
		}
		n++
	}
	if n > 0 {
		pool.back(some[:n])
	}
}
