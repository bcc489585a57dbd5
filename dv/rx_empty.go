package dv

// A receive ring without descriptors says nothing: the NIC drops what comes for it, and counts that
// for the port, not for the ring (Device.OutOfBuffer). That it was empty shows only in that the
// completion of the last descriptor published is there when the next is published.

// maxStallSteps is how many entries are looked at to find that out, where CQE blocks have to be
// walked.
const maxStallSteps = 64

// noteStall counts the ring's being empty, once until the next publication.
func (q *RxQueue) noteStall() {
	if q.stalled || !q.filled || !q.format.drained() {
		return
	}
	q.stalled = true
	q.count.stalls.n++
	q.count.stalls.show()
}

// drained reports whether every descriptor published is completed. Completions and descriptors
// correspond one to one, from the CQE block on that is being expanded.
func (q *RxQueue) drained() bool {
	left := q.posted - q.cc
	return left <= q.block.n-q.block.i || q.cq.written(q.block.n, q.block.i+left)
}

// drained of a striding ring is false while the last slab has room, or a completion waits.
func (q *striding) drained() bool { return q.posted == q.cc }

// written reports whether the NIC has written entry n > 0 from ci on, counted from 1, the first of
// which are known to be written. Where there are many CQE blocks before it, or many entries, it may
// say no although it has.
//
// An entry inside a CQE block is marked as not written, unless it is one of those with minis, whose
// last byte may be anything. So one that looks as if it were ours has been written in this pass.
func (c *compRing) written(first, n uint32) bool {
	if _, ours := c.owned(c.ci + n - 1); ours || !c.compressed {
		return ours
	}
	for range maxStallSteps {
		own, ours := c.owned(c.ci + first)
		if !ours {
			return false
		}
		step := uint32(1)
		if own&0xfc == titleReceive {
			c.acquire(1)
			step = max(1, blockLen(c.at(c.ci+first), c.mask+1))
		}
		if first += step; first >= n {
			return true
		}
	}
	return false
}
