package dv

import (
	"fmt"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
)

// single is a layout with a descriptor for each frame.
type single interface {
	// plain fills dst from the next ready completions, expand from the session.
	// They report false if the queue was reset.
	plain(dst []Packet, ready int) (int, bool)
	expand(dst []Packet) (int, bool)
	// drop consumes the descriptor at cc, in which there is no frame.
	drop()
}

// pollCompressed is poll for such a layout when the NIC may compress
// completions.
func (q *RxQueue) pollCompressed(l single, dst []Packet) int {
	n := 0
	for {
		if q.session.n > 0 {
			got, ok := l.expand(dst[n:])
			if n += got; !ok || q.session.n > 0 {
				return n
			}
		}
		plain, title := q.cq.plain(min(len(dst)-n, int(q.posted-q.cc)))
		got, ok := l.plain(dst[n:], plain)
		if n += got; !ok || !title {
			return n
		}
		if !q.beginSession(l) {
			return n
		}
	}
}

// beginSession takes the title at the consumer index.
func (q *RxQueue) beginSession(l single) bool {
	cqe := q.cq.next()
	tail := cqe.Tail()
	n := sessionLen(cqe, q.posted-q.cc)
	if n == 0 || tail&0xfc != titleReceive || uint16(tail>>16) != uint16(q.cc) {
		return q.odd(l, cqe)
	}
	q.session.begin(cqe, n, (q.flagsOf(cqe))&^q.omitted)
	return true
}

func (r whole) expand(dst []Packet) (int, bool) {
	q, s, size := r.RxQueue, &r.session, r.pool.size
	n, bytes := int(min(uint32(len(dst)), s.n-s.i)), uint64(0)
	sum := q.omitted&RxSum == 0
	array := q.cq.minis(s.i)
	for i := range dst[:n] {
		if s.i%mlx5.MinisPerCQE == 0 {
			array = q.cq.minis(s.i)
		}
		mini := array.Mini(s.i)
		length := mini.ByteCount()
		if length-ethHeader > uint32(size-ethHeader) {
			q.badSession()
			return i, false
		}
		f := q.slots[q.cc&q.mask]
		at, p := int(f)*size, &dst[i]
		p.Data = q.pool.buf[at : at+int(length) : at+size]
		p.Timestamp, p.VLAN, p.Flags, p.Frame, p.More = s.timestamp, s.vlan, s.flags, f, 0
		if sum {
			p.Hash, p.Sum = 0, mini.Checksum()
		} else {
			p.Hash, p.Sum = mini.Hash(), 0
		}
		bytes += uint64(length)
		q.cc++
		s.i++
	}
	q.count.bytes.n += bytes
	q.expanded(n)
	return n, true
}

// expanded counts n frames of the session, and ends it if they were the last.
func (q *RxQueue) expanded(n int) {
	q.count.compressed.n += uint64(n)
	if q.session.i == q.session.n {
		q.cq.endSession(q.session.n)
		q.session = session{}
	}
}

// badSession resets the queue over a session with a frame that cannot be.
func (q *RxQueue) badSession() {
	q.count.malformed.n++
	cqe := q.cq.next()
	q.failed(fmt.Sprintf("%s, of which compressed completion %d makes no sense", cqe.String(), q.session.i))
}
