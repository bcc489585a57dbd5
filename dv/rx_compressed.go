package dv

import (
	"encoding/binary"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
)

// pollCompressed is Poll for a ring of one frame per buffer whose completions
// the NIC may compress.
func (q *RxQueue) pollCompressed(dst []Packet) int {
	n := 0
	for {
		if q.session.n > 0 {
			got, ok := q.expand(dst[n:])
			if n += got; !ok || q.session.n > 0 {
				return n
			}
		}
		plain, title := q.cq.plain(min(len(dst)-n, int(q.posted-q.cc)))
		got, ok := q.pollPlain(dst[n:], plain)
		if n += got; !ok || !title {
			return n
		}
		if !q.beginSession() {
			return n
		}
	}
}

// beginSession takes the title at the consumer index.
func (q *RxQueue) beginSession() bool {
	cqe := q.cq.next()
	tail := binary.BigEndian.Uint32(cqe[mlx5.CQEOwnWord:])
	n := sessionLen(cqe, q.posted-q.cc)
	if n == 0 || tail&0xfc != titleReceive || uint16(tail>>16) != uint16(q.cc) {
		return q.odd(cqe[:])
	}
	q.session.begin(cqe, n, (q.flagsOf(cqe))&^q.omitted)
	return true
}

// expand fills dst from the session. It reports false if the session made no
// sense and the queue was reset.
func (q *RxQueue) expand(dst []Packet) (int, bool) {
	s, size := &q.session, q.pool.size
	n, bytes := int(min(uint32(len(dst)), s.n-s.i)), uint64(0)
	sum := q.omitted&RxSum == 0
	array := q.cq.minis(s.i)
	for i := range dst[:n] {
		if s.i%mlx5.MinisPerCQE == 0 {
			array = q.cq.minis(s.i)
		}
		mini := binary.BigEndian.Uint64(array[s.i%mlx5.MinisPerCQE*mlx5.MiniCQESize:])
		length := uint32(mini)
		if length-ethHeader > uint32(size-ethHeader) {
			q.badSession()
			return i, false
		}
		f := q.slots[q.cc&q.mask]
		at, p := int(f)*size, &dst[i]
		p.Data = q.pool.buf[at : at+int(length) : at+size]
		p.Timestamp, p.VLAN, p.Flags, p.Frame = s.timestamp, s.vlan, s.flags, f
		if sum {
			p.Hash, p.Sum = 0, uint16(mini>>48)
		} else {
			p.Hash, p.Sum = uint32(mini>>32), 0
		}
		bytes += uint64(length)
		q.cc++
		s.i++
	}
	q.count.bytes.n += bytes
	q.count.compressed.n += uint64(n)
	if s.i == s.n {
		q.cq.endSession(s.n)
		*s = session{}
	}
	return n, true
}

// badSession resets the queue over a session with a frame that cannot be.
func (q *RxQueue) badSession() {
	q.count.malformed.n++
	cqe := mlx5.CQE(q.cq.next()[:])
	q.log.Warn("compressed completions make no sense, resetting the queue", "queue", q.index, "title", cqe.String(), "mini", q.session.i)
	q.reset(cqe.String())
}
