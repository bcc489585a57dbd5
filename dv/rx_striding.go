package dv

import (
	"fmt"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
)

// A striding ring has one large buffer, a slab, per entry. The NIC fills it from its start with one
// frame after the other, each in whole strides; when the next does not fit it says so with a
// completion without a frame and goes on to the next slab. A slab is a Frame of the pool with
// several holders: the ring, and the holder of each Packet in it. It is used again after the last
// has released it.

// Geometry of every striding ring: the fewest strides per slab that all devices
// take. Larger frames than a slab there are not.
const (
	logStride  = 8
	logStrides = 9
	strideSize = 1 << logStride
	strides    = 1 << logStrides
	slabSize   = strideSize * strides
)

// stridingWQE gives the size of a receive descriptor in bytes: a head that rings
// have no use for, and a pointer.
const stridingWQE = 2 * mlx5.DataSegSize

// striding holds the format of a striding ring. at and out say how far the slab at cc is filled.
type striding struct {
	*RxQueue
	at  uint32 // first free stride
	out int32  // frames handed out and not yet entered as holders
}

// newStridingRxQueue makes a queue of this format over memory that the NIC does
// not know yet: entries (a power of two) of stridingWQE bytes in ring, as many
// completions in cq as they have strides.
func newStridingRxQueue(index, entries int, ring, rec *mmio.Region,
	cq compRing, pool *Pool) *RxQueue {
	q := newRing(index, entries, stridingWQE, ring, rec, cq, pool)
	q.slots, q.format, q.batch = make([]Frame, entries), &striding{RxQueue: q}, 1
	q.head = stridingWQE - mlx5.DataSegSize
	for at := 0; at < len(q.ring); at += stridingWQE {
		mlx5.PutNext(q.ring[at:], 0)
		mlx5.PutData(q.ring[at+mlx5.DataSegSize:], uint32(pool.size), pool.lkey, 0)
	}
	q.rewindRing()
	return q
}

// poll takes completions with and without compression.
func (q *striding) poll(dst []Packet) int {
	n := 0
	for n < len(dst) && q.cc != q.posted {
		if q.block.n > 0 {
			got, ok := q.expandStriding(dst[n:])
			if n += got; !ok {
				break
			}
			continue
		}
		if q.cq.countReady(1) == 0 {
			break
		}
		cqe := q.cq.entryAtCI()
		tail, word := cqe.Tail(), cqe.ByteCount()
		switch inSlab := q.isNext(uint32(cqe.WQEID())); {
		case tail&0xfc == plainReceive && inSlab && q.strideOK(uint16(tail>>16), word):
			q.cq.ci++
			if p := &dst[n]; q.consumeStrides(p, word) {
				describePacket(p, cqe)
				p.Flags = q.flagsOf(cqe)
				n++
			}
		case q.cq.compressed && tail&0xfc == titleReceive && inSlab &&
			blockLen(cqe, strides-q.at) > 0:
			q.block.beginBlock(cqe, blockLen(cqe, strides), q.flagsOf(cqe)&^RxHash)
		default:
			q.handleErrorCQE(cqe)
			return n
		}
	}
	q.enterHolders()
	return n
}

// strideOK reports whether a completion can be the next one of this slab: word
// has the filler bit, the number of strides, and the length in bytes.
func (q *striding) strideOK(index uint16, word uint32) bool {
	n, length := word>>16&0x7fff, word&0xffff
	if uint32(index) != q.at || n == 0 || n > strides-q.at {
		return false
	}
	return word>>31 != 0 || length >= ethHeader && length <= n*strideSize
}

// consumeStrides consumes the strides of a completion, and reports whether there
// is a frame in them, which p gets.
func (q *striding) consumeStrides(p *Packet, word uint32) (frame bool) {
	f := q.slots[q.cc&q.mask]
	if frame = word>>31 == 0; frame {
		at, length := int(f)*q.pool.size, int(word&0xffff)
		start := at + int(q.at)*strideSize
		p.Data = q.pool.buf[start : start+length : at+q.pool.size]
		p.Frame, p.More = f, 0
		q.count.bytes.n += uint64(length)
		q.out++
	}
	if q.at += word >> 16 & 0x7fff; q.at == strides {
		q.leaveSlab(f)
	}
	return frame
}

// leaveSlab ends the ring's hold on slab f, which is full.
func (q *striding) leaveSlab(f Frame) {
	q.enterHolders()
	q.at = 0
	q.cc++
	if q.pool.dropHolds(f, 1) {
		q.giveBuffer(f)
	}
}

// enterHolders makes the frames handed out holders of the slab at cc.
func (q *striding) enterHolders() {
	if q.out > 0 {
		q.pool.shares[q.slots[q.cc&q.mask]].Add(q.out)
		q.out = 0
	}
}

// expandStriding fills dst from the CQE block, whose minis say where in the slab
// each frame starts, and not its hash. It reports false if the queue was reset.
func (q *striding) expandStriding(dst []Packet) (n int, ok bool) {
	s := &q.block
	for n < len(dst) && s.i < s.n {
		array := q.cq.miniArray(s.i)
		mini := array.Mini(s.i)
		if q.at == 0 && s.i > 0 || !q.strideOK(mini.StrideIndex(), mini.ByteCount()) {
			q.count.malformed.n++
			q.resetStriding(q.cq.entryAtCI().String())
			return n, false
		}
		s.i++
		if p := &dst[n]; q.consumeStrides(p, mini.ByteCount()) {
			p.Timestamp, p.VLAN, p.Flags, p.Hash = s.timestamp, s.vlan, s.flags, 0
			q.count.compressed.n++
			n++
		}
	}
	if s.i == s.n {
		q.cq.endBlock(s.n)
		*s = cqeBlock{}
	}
	return n, true
}

// handleErrorCQE resets the queue: in a striding ring no error concerns just one frame.
func (q *striding) handleErrorCQE(cqe *mlx5.CQE) {
	if cqe.Opcode() == mlx5.CQERecvErr {
		q.countError(cqe.Syndrome())
	} else {
		q.count.malformed.n++
	}
	q.resetStriding(cqe.String())
}

func (q *striding) resetStriding(cause string) {
	q.enterHolders()
	q.resetOrDefer(fmt.Sprintf("%s where stride %d of descriptor %d was expected",
		cause, q.at, uint16(q.cc)))
}

// release gives back runs of frames of one slab at once.
func (q *striding) release(pkts []Packet) {
	for i := 0; i < len(pkts); {
		f, n := pkts[i].Frame, int32(0)
		for ; i < len(pkts) && pkts[i].Frame == f; i++ {
			pkts[i].Frame = NoFrame
			n++
		}
		if f != NoFrame && q.pool.dropHolds(f, n) {
			q.giveBuffer(f)
		}
	}
}

func (q *striding) placeBuffer(f Frame) bool {
	if q.room() == 0 {
		return false
	}
	q.pool.holdFrames(f)
	q.writeBuffer(q.pc, f)
	q.pc++
	return true
}

func (q *striding) room() uint32 { return q.mask + 1 - (q.pc - q.cc) }

func (q *striding) mostBuffers() uint32 { return q.pc }

func (q *striding) restart() {
	q.at, q.out = 0, 0
	q.reloadBuffers()
}
