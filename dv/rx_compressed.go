package dv

import (
	"fmt"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
)

// perFrameFormat is a format with a descriptor for each frame.
type perFrameFormat interface {
	// plain fills dst from the next ready completions, expand from the CQE block.
	// They report false if the queue was reset.
	plain(dst []Packet, ready int) (int, bool)
	expand(dst []Packet) (int, bool)
	// drop consumes the descriptor at cc, in which there is no frame.
	drop()
}

// pollCompressed is poll for such a format when the NIC may compress
// completions.
func (q *RxQueue) pollCompressed(l perFrameFormat, dst []Packet) int {
	n := 0
	for {
		if q.block.n > 0 {
			got, ok := l.expand(dst[n:])
			if n += got; !ok || q.block.n > 0 {
				return n
			}
		}
		plain, title := q.cq.plain(min(len(dst)-n, int(q.posted-q.cc)))
		got, ok := l.plain(dst[n:], plain)
		if n += got; !ok || !title {
			return n
		}
		if !q.beginBlock(l) {
			return n
		}
	}
}

// beginBlock takes the title at the consumer index.
func (q *RxQueue) beginBlock(l perFrameFormat) bool {
	cqe := q.cq.next()
	tail := cqe.Tail()
	n := blockLen(cqe, q.posted-q.cc)
	if n == 0 || tail&0xfc != titleReceive || !q.isNext(tail>>16) {
		return q.handleErrorCQE(l, cqe)
	}
	q.block.begin(cqe, n, q.flagsOf(cqe))
	return true
}

func (r singleSGE) expand(dst []Packet) (int, bool) {
	q, s, size := r.RxQueue, &r.block, r.pool.size
	n, bytes := int(min(uint32(len(dst)), s.n-s.i)), uint64(0)
	array := q.cq.minis(s.i)
	for i := range dst[:n] {
		if s.i%mlx5.MinisPerCQE == 0 {
			array = q.cq.minis(s.i)
		}
		mini := array.Mini(s.i)
		length := mini.ByteCount()
		if length-ethHeader > uint32(size-ethHeader) {
			q.badBlock()
			return i, false
		}
		f := q.slots[q.cc&q.mask]
		at, p := int(f)*size, &dst[i]
		p.Data = q.pool.buf[at : at+int(length) : at+size]
		p.Timestamp, p.VLAN, p.Flags, p.Frame, p.More = s.timestamp, s.vlan, s.flags, f, 0
		p.Hash = mini.Hash()
		bytes += uint64(length)
		q.cc++
		s.i++
	}
	q.count.bytes.n += bytes
	q.expanded(n)
	return n, true
}

// expanded counts n frames of the CQE block, and ends it if they were the last.
func (q *RxQueue) expanded(n int) {
	q.count.compressed.n += uint64(n)
	if q.block.i == q.block.n {
		q.cq.endBlock(q.block.n)
		q.block = cqeBlock{}
	}
}

// badBlock resets the queue over a CQE block with a frame that cannot be.
func (q *RxQueue) badBlock() {
	q.count.malformed.n++
	cqe := q.cq.next()
	q.failed(fmt.Sprintf("%s, of which compressed completion %d makes no sense", cqe.String(),
		q.block.i))
}

// compression is the format to ask for, 0 for none: the one that tells each frame's hash or, of a
// striding ring, its first stride, if the device has it.
func (d *Device) compression() uint8 {
	if d.config.NoCompression {
		return 0
	}
	format := uint8(uverbs.Mlx5CQEFormatHash)
	if d.plan.striding {
		format = uverbs.Mlx5CQEFormatCsumStrIdx
	}
	caps := d.context.Caps()
	return format & uint8(caps.CQECompression)
}
