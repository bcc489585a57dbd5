package dv

// A receive ring without descriptors says nothing: the NIC drops what comes for it, and counts that
// for the port, not for the ring (Device.OutOfBuffer). That it was empty shows only in that the
// completion of the last descriptor published is there when the next is published.

// maxStallSteps is how many CQE blocks one publication looks at to find that out, at most. No
// block is looked at twice.
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
// which are known to be written. Where there are many CQE blocks before it that no call has looked
// at yet, it may say no although it has.
//
// An entry inside a CQE block is marked as not written, unless it is one of those with minis, whose
// last byte may be anything. So one that looks as if it were ours has been written in this pass.
func (c *compRing) written(first, n uint32) bool {
	if _, ours := c.owned(c.ci + n - 1); ours || !c.compressed {
		return ours
	}
	if int32(c.seen-c.ci-first) < 0 {
		c.seen = c.ci + first
	}
	for range maxStallSteps {
		if int32(c.seen-c.ci-n) >= 0 {
			return true
		}
		own, ours := c.owned(c.seen)
		if !ours {
			return false
		}
		step := uint32(1)
		if own&0xfc == titleReceive {
			c.acquire(1)
			step = max(1, blockLen(c.at(c.seen), c.mask+1))
		}
		c.seen += step
	}
	return false
}
