package dv

import (
	"encoding/binary"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
)

// A descriptor with several buffers takes a frame longer than one of them: the NIC fills the first,
// then the second, and so on. Those that a frame does not reach stay in the descriptor, for the
// next round of the ring: a small frame on a port with a large MTU takes one small buffer with it.

// multiSGE holds the format of such a ring. slots has segs entries for each
// descriptor. The buffers that a descriptor lacks are always its first ones.
type multiSGE struct {
	*RxQueue
	segs    uint32  // buffers of a descriptor, a power of two
	holes   []uint8 // by descriptor: how many it lacks
	missing uint32  // how many all lack
}

// newMultiSGERxQueue makes a queue of this format over memory that the NIC does not know yet:
// entries (a power of two) of segs data segments in ring, as many completions in cq.
func newMultiSGERxQueue(index, entries, segs int, ring, rec *mmio.Region,
	cq compRing, pool *Pool) *RxQueue {
	q := newRing(index, entries, segs*mlx5.DataSegSize, ring, rec, cq, pool)
	r := &multiSGE{RxQueue: q, segs: uint32(segs), holes: make([]uint8, entries),
		missing: uint32(entries * segs)}
	q.slots, q.format, q.longest = make([]Frame, entries*segs), r, uint32(segs*pool.size)
	for i := range r.holes {
		r.holes[i] = uint8(segs)
	}
	for at := 0; at < len(q.ring); at += mlx5.DataSegSize {
		mlx5.PutData(q.ring[at:], uint32(pool.size), pool.lkey, 0)
	}
	q.rewindRing()
	return q
}

func (r *multiSGE) poll(dst []Packet) int {
	if r.cq.compressed {
		return r.pollCompressed(r, dst)
	}
	n, _ := r.fillPlain(dst, r.cq.countReady(min(len(dst), int(r.posted-r.cc))))
	return n
}

func (r *multiSGE) fillPlain(dst []Packet, ready int) (int, bool) {
	q, n := r.RxQueue, 0
	for range ready {
		cqe := q.cq.entryAtCI()
		length := cqe.ByteCount()
		if !q.isFrame(cqe.Tail(), length) {
			if !q.handleErrorCQE(r, cqe) {
				return n, false
			}
			continue
		}
		p := &dst[n]
		r.consumeWQE(p, length)
		describePacket(p, cqe)
		p.Flags = q.flagsOf(cqe)
		q.cq.ci++
		n++
	}
	return n, true
}

func (r *multiSGE) expandBlock(dst []Packet) (int, bool) {
	s := &r.block
	n := int(min(uint32(len(dst)), s.n-s.i))
	for i := range dst[:n] {
		array := r.cq.miniArray(s.i)
		mini := array.Mini(s.i)
		if mini.ByteCount()-ethHeader > r.longest-ethHeader {
			r.badBlock()
			return i, false
		}
		p := &dst[i]
		r.consumeWQE(p, mini.ByteCount())
		p.Timestamp, p.VLAN, p.Flags, p.Hash = s.timestamp, s.vlan, s.flags, mini.Hash()
		s.i++
	}
	r.countExpanded(n)
	return n, true
}

// consumeWQE makes p of the frame of length bytes in the descriptor at cc, and
// consumes that: it lacks the buffers then that the frame reached.
func (r *multiSGE) consumeWQE(p *Packet, length uint32) {
	slot, size := r.cc&r.mask, uint32(r.pool.size)
	list := r.slots[slot*r.segs : (slot+1)*r.segs]
	first, used := min(length, size), uint32(1)
	at := int(list[0]) * r.pool.size
	p.Data = r.pool.buf[at : at+int(first) : at+r.pool.size]
	p.Frame, p.More = list[0], uint16(length-first)
	for rest := length - first; rest > 0; rest -= min(rest, size) {
		r.pool.next[list[used-1]] = list[used]
		used++
	}
	if used > 1 {
		r.count.segmented.n++
	}
	r.holes[slot] = uint8(used)
	r.missing += used
	r.count.bytes.n += uint64(length)
	r.cc++
}

// release takes the buffers of each frame back.
func (r *multiSGE) release(pkts []Packet) {
	for i := range pkts {
		f := pkts[i].Frame
		for pkts[i].Frame = NoFrame; f != NoFrame; {
			next := r.pool.unchainFirst(f)
			if !r.placeBuffer(f) {
				r.pool.returnFrames([]Frame{f})
			}
			f = next
		}
	}
}

// placeBuffer puts f where a buffer is missing in the descriptor at pc, which is
// complete when that was the last.
func (r *multiSGE) placeBuffer(f Frame) bool {
	if r.missing == 0 {
		return false
	}
	slot := r.pc & r.mask
	hole := r.holes[slot] - 1
	r.holes[slot] = hole
	r.missing--
	at := slot*r.segs + uint32(hole)
	r.slots[at] = f
	address := r.ring[int(at)*mlx5.DataSegSize+8:]
	binary.BigEndian.PutUint64(address[:8], r.pool.frameAddr(f))
	if hole == 0 {
		r.skipComplete()
	}
	return true
}

// skipComplete moves pc over descriptors that lack nothing.
func (r *multiSGE) skipComplete() {
	for r.pc-r.cc <= r.mask && r.holes[r.pc&r.mask] == 0 {
		r.pc++
	}
}

func (r *multiSGE) room() uint32 { return r.missing }

func (r *multiSGE) mostBuffers() uint32 { return r.cc - r.block.i + r.mask + 1 }

func (r *multiSGE) drop() {
	r.cc++
	r.skipComplete()
}

// restart leaves all buffers in the descriptors they are in.
func (r *multiSGE) restart() {
	r.rewindRing()
	r.skipComplete()
}

// Segments appends the pieces of p's frame to dst, in order: Data, and what
// lies in further buffers. They are the holder's of p, as Data is.
func (q *RxQueue) Segments(dst [][]byte, p *Packet) [][]byte {
	dst = append(dst, p.Data)
	f, pool := p.Frame, q.pool
	for rest := int(p.More); rest > 0; {
		f = pool.next[f]
		n := min(rest, pool.size)
		dst = append(dst, pool.Bytes(f)[:n:n])
		rest -= n
	}
	return dst
}
