package dv

import (
	"encoding/binary"
	"fmt"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
)

// singleSGE holds the format of a ring that has one buffer for each frame: a
// descriptor is one data segment.
type singleSGE struct{ *RxQueue }

// newRxQueue makes a queue of this format over memory that the NIC does not know yet: entries (a
// power of two) of 16 bytes in ring, as many completions in cq.
func newRxQueue(index, entries int, ring, rec *mmio.Region, cq compRing, pool *Pool) *RxQueue {
	q := newRing(index, entries, mlx5.DataSegSize, ring, rec, cq, pool)
	q.slots, q.format = make([]Frame, entries), singleSGE{q}
	for at := 0; at < len(q.ring); at += mlx5.DataSegSize {
		mlx5.PutData(q.ring[at:], uint32(pool.size), pool.lkey, 0)
	}
	q.rewindRing()
	return q
}

func (r singleSGE) poll(dst []Packet) int {
	if r.cq.compressed {
		return r.pollCompressed(r, dst)
	}
	n, _ := r.fillPlain(dst, r.cq.countReady(min(len(dst), int(r.posted-r.cc))))
	return n
}

// fillPlain fills dst from the next ready completions. It reports false if the queue was reset.
func (r singleSGE) fillPlain(dst []Packet, ready int) (int, bool) {
	q, n := r.RxQueue, 0
	for range ready {
		cqe := q.cq.entryAtCI()
		length := cqe.ByteCount()
		tail := cqe.Tail()
		if !q.isFrame(tail, length) {
			if !q.handleErrorCQE(r, cqe) {
				return n, false
			}
			continue
		}
		p := &dst[n]
		f := q.slots[q.cc&q.mask]
		at := int(f) * q.pool.size
		p.Data = q.pool.buf[at : at+int(length) : at+q.pool.size]
		p.Frame, p.More = f, 0
		describePacket(p, cqe)
		p.Flags = q.flagsOf(cqe)
		q.count.bytes.n += uint64(length)
		q.cq.ci++
		q.cc++
		n++
	}
	return n, true
}

// isFrame reports whether a completion, of which these are the last word and
// the length, is that of a frame in the descriptor at cc.
func (q *RxQueue) isFrame(tail, length uint32) bool {
	return tail&0xfc == plainReceive && q.isNext(tail>>16) &&
		length-ethHeader <= q.longest-ethHeader
}

// isNext reports whether a completion that names its descriptor by index is of the one at
// cc. Index is a counter of 16 bits, or already the place in the ring: libmlx5 and DPDK do
// not look at it, and no document tells.
func (q *RxQueue) isNext(index uint32) bool { return (index^q.cc)&q.mask == 0 }

func (r singleSGE) release(pkts []Packet) {
	q := r.RxQueue
	pc, full := q.pc, q.cc+q.mask+1
	for i := range pkts {
		f := pkts[i].Frame
		if f == NoFrame {
			continue
		}
		pkts[i].Frame = NoFrame
		if pc == full || !q.pool.ownsFrame(f) { // the pool gets it, or its owner a panic
			q.pc = pc
			q.giveBuffer(f)
			continue
		}
		q.writeBuffer(pc, f)
		pc++
	}
	q.pc = pc
}

func (r singleSGE) placeBuffer(f Frame) bool {
	if r.room() == 0 {
		return false
	}
	r.writeBuffer(r.pc, f)
	r.pc++
	return true
}

// writeBuffer writes buffer f into the descriptor at count pc.
func (q *RxQueue) writeBuffer(pc uint32, f Frame) {
	slot := pc & q.mask
	q.slots[slot] = f
	at := (int(slot)+1)*q.wqe - 8 // the address is what a descriptor ends with
	binary.BigEndian.PutUint64(q.ring[at:at+8], q.pool.frameAddr(f))
}

func (r singleSGE) room() uint32 { return r.mask + 1 - (r.pc - r.cc) }

// mostBuffers keeps back what would need a completion that the CQE block at the
// consumer index still occupies: it is delivered as a whole.
func (r singleSGE) mostBuffers() uint32 { return r.cc - r.block.i + r.mask + 1 }

func (r singleSGE) drop() {
	f := r.slots[r.cc&r.mask]
	r.cc++
	r.giveBuffer(f)
}

func (r singleSGE) restart() { r.reloadBuffers() }

// A CQE block is n completions in n entries of the completion ring, of which the NIC writes only
// some: the title, which says what all have in common, and arrays of eight minis of 8 bytes each,
// in entries 1, 8, 16, 24 and so on behind it. What the other entries hold is of an earlier pass,
// and where an array has a mini's last byte is where the owner bit would be: so none of them may be
// looked at as a completion, now or in the next pass.

// cqeBlock is the CQE block at the consumer index that is being expanded. It may
// take several polls; until it is done the ring keeps it.
type cqeBlock struct {
	n, i uint32 // minis, and those delivered; n 0: no CQE block

	// What is common to all frames.
	timestamp uint64
	vlan      uint16
	flags     RxFlags
}

// maxCQEBlock is more than any device compresses into one CQE block.
const maxCQEBlock = 256

// titleReceive is the last byte of the title of a CQE block of received frames,
// leaving out the solicited and the owner bit.
const titleReceive = plainReceive | mlx5.FormatCompressed<<2

// beginBlock starts the CQE block of n frames whose title is cqe.
func (s *cqeBlock) beginBlock(cqe *mlx5.CQE, n uint32, flags RxFlags) {
	*s = cqeBlock{
		n:         n,
		timestamp: cqe.Timestamp(),
		vlan:      cqe.VLAN(),
		flags:     flags,
	}
}

// miniArray returns the array that mini i of the CQE block at ci is in.
func (c *compRing) miniArray(i uint32) *mlx5.CQE {
	at := int((c.ci+max(1, i&^(mlx5.MinisPerCQE-1)))&c.mask) * mlx5.CQESize
	return (*mlx5.CQE)(c.buf[at : at+mlx5.CQESize])
}

// endBlock consumes the CQE block of n entries at ci and marks all of them as
// not written, but for the title, which has the owner bit of this pass.
func (c *compRing) endBlock(n uint32) {
	const invalid = uint8(mlx5.CQEInvalid) << 4
	for i := c.ci + 1; i != c.ci+n; i++ {
		c.buf[int(i&c.mask)*mlx5.CQESize+mlx5.CQESize-1] = invalid
	}
	c.ci += n
}

// fillPlain returns how many of the next limit entries are ours and no titles; title reports that
// behind them is one. It looks at one word of each; their other bytes may be read when it returns.
func (c *compRing) fillPlain(limit int) (n int, title bool) {
	own, ours := uint32(0), false
	for ci := c.ci; n < limit; n++ {
		own, ours = c.ownedEntry(ci)
		if !ours || own&0xc == mlx5.FormatCompressed<<2 {
			break
		}
		ci++
	}
	if n == limit || !ours {
		c.acquireEntries(n)
		return n, false
	}
	c.acquireEntries(n + 1)
	return n, true
}

// blockLen returns the number of entries of the CQE block whose title is cqe, 0 if
// it cannot be one: it is no more than limit.
func blockLen(cqe *mlx5.CQE, limit uint32) uint32 {
	n := cqe.ByteCount()
	if n < 2 || n > min(limit, maxCQEBlock) {
		return 0
	}
	return n
}

// perFrameFormat is a format with a descriptor for each frame.
type perFrameFormat interface {
	// fillPlain fills dst from the next ready completions, expandBlock from the CQE block.
	// They report false if the queue was reset.
	fillPlain(dst []Packet, ready int) (int, bool)
	expandBlock(dst []Packet) (int, bool)
	// drop consumes the descriptor at cc, in which there is no frame.
	drop()
}

// pollCompressed polls for such a format where the NIC may compress completions.
func (q *RxQueue) pollCompressed(l perFrameFormat, dst []Packet) int {
	n := 0
	for {
		if q.block.n > 0 {
			got, ok := l.expandBlock(dst[n:])
			if n += got; !ok || q.block.n > 0 {
				return n
			}
		}
		plain, title := q.cq.fillPlain(min(len(dst)-n, int(q.posted-q.cc)))
		got, ok := l.fillPlain(dst[n:], plain)
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
	cqe := q.cq.entryAtCI()
	tail := cqe.Tail()
	n := blockLen(cqe, q.posted-q.cc)
	if n == 0 || tail&0xfc != titleReceive || !q.isNext(tail>>16) {
		return q.handleErrorCQE(l, cqe)
	}
	q.block.beginBlock(cqe, n, q.flagsOf(cqe))
	return true
}

func (r singleSGE) expandBlock(dst []Packet) (int, bool) {
	q, s, size := r.RxQueue, &r.block, r.pool.size
	n, bytes := int(min(uint32(len(dst)), s.n-s.i)), uint64(0)
	array := q.cq.miniArray(s.i)
	for i := range dst[:n] {
		if s.i%mlx5.MinisPerCQE == 0 {
			array = q.cq.miniArray(s.i)
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
	q.countExpanded(n)
	return n, true
}

// countExpanded counts n frames of the CQE block, and ends it if they were the last.
func (q *RxQueue) countExpanded(n int) {
	q.count.compressed.n += uint64(n)
	if q.block.i == q.block.n {
		q.cq.endBlock(q.block.n)
		q.block = cqeBlock{}
	}
}

// badBlock resets the queue over a CQE block with a frame that cannot be.
func (q *RxQueue) badBlock() {
	q.count.malformed.n++
	cqe := q.cq.entryAtCI()
	q.resetOrDefer(fmt.Sprintf("%s, of which compressed completion %d makes no sense", cqe.String(),
		q.block.i))
}

// compression returns the format to ask for, 0 for none: the one that tells each frame's hash or,
// of a striding ring, its first stride, if the device has it.
func (d *Device) compression() uint8 {
	if d.config.Tuning.NoCompression {
		return 0
	}
	format := uint8(uverbs.Mlx5CQEFormatHash)
	if d.plan.striding {
		format = uverbs.Mlx5CQEFormatCsumStrIdx
	}
	caps := d.context.Caps()
	return format & uint8(caps.CQECompression)
}
