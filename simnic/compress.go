package simnic

import (
	"bytes"
	"encoding/binary"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
)

// cqeBlock holds completions of one receive queue, to be written as a title and mini CQEs. It is
// flushed at the end of a batch of frames, so that the same frames always compress the same way.
// Guarded by the queue's lock.
type cqeBlock struct {
	entries [][mlx5.CQESize]byte
	next    uint16 // counter that the next entry must have
}

// holdCompletion adds a completion to the block; if it does not fit, hold flushes the block and
// starts another. It reports false when the completion queue failed.
func (rq *RQ) holdCompletion(b *rxBurst, c *mlx5.RxCQE) bool {
	s, cq := &rq.block, rq.attr.CQ
	n := len(s.entries)
	s.entries = append(s.entries, [mlx5.CQESize]byte{})
	e := &s.entries[n]
	c.Put(e[:])
	if n > 0 && (!s.fitsBlock(c, e, cq) || n == rq.nic.caps.MaxCompressed) {
		s.entries = s.entries[:n]
		if !rq.flushBlock() {
			return false
		}
		s.entries, n = append(s.entries, *e), 0
	}
	if n == 0 {
		b.keepOpen(rq)
	}
	s.next = c.Counter + rq.counterStep(c)
	return true
}

// counterStep returns the distance from the counter of a completion to that of the next:
// strides, or one WQE.
func (rq *RQ) counterStep(c *mlx5.RxCQE) uint16 {
	if rq.attr.Striding != nil {
		return uint16(c.ByteCount >> 16 & 0x7fff)
	}
	return 1
}

// fitsBlock reports whether c, in bytes e, equals the block's title, except in the fields that mini
// CQEs have. It reads e in words of the size in which it was written: otherwise the processor would
// wait until its stores are done, including those of the packet.
func (s *cqeBlock) fitsBlock(c *mlx5.RxCQE, e *[mlx5.CQESize]byte, cq *CQ) bool {
	title := &s.entries[0]
	if cq.attr.MiniFormat.hasStride() {
		if be16(title[2:]) != c.WQEID { // another WQE
			return false
		}
	} else if c.Counter != s.next {
		return false
	}
	var differ uint64
	for i, mask := range cq.common {
		differ |= (binary.NativeEndian.Uint64(title[8*i:]) ^ binary.NativeEndian.Uint64(
			e[8*i:])) & mask
	}
	return differ == 0
}

func (f MiniFormat) hasStride() bool { return f >= MiniFlowTagStride }

// commonMask masks a completion, without the fields that differ inside a block: those of a mini
// CQE, and those that the format omits.
func (f MiniFormat) commonMask() (words [mlx5.CQESize / 8]uint64) {
	c := bytes.Repeat([]byte{0xff}, mlx5.CQESize)
	clear(c[0x0c:0x10]) // hash
	clear(c[0x14:0x16]) // checksum
	clear(c[0x2c:0x30]) // length
	clear(c[0x3c:0x3e]) // counter
	switch f {
	case MiniFlowTagStride:
		clear(c[0x39:0x3c])
	case MiniL34Stride:
		c[0x1d] = 0
	}
	for i := range words {
		words[i] = binary.NativeEndian.Uint64(c[8*i:])
	}
	return words
}

// putMini writes the mini CQE of e in the block's format. The flow tag and header type are where
// DPDK drivers/common/mlx5/mlx5_prm.h and its receive paths look for them.
func (f MiniFormat) putMini(dst []byte, e *[mlx5.CQESize]byte) {
	copy(dst[4:8], e[0x2c:0x30])
	switch f {
	case MiniHash:
		copy(dst[:4], e[0x0c:0x10])
		return
	case MiniChecksum:
		copy(dst[:2], e[0x14:0x16])
		return
	case MiniChecksumStride:
		copy(dst[:2], e[0x14:0x16])
	case MiniFlowTagStride:
		copy(dst[:2], e[0x3a:0x3c])
		dst[4] = e[0x39]
	case MiniL34Stride:
		dst[1] = e[0x1d]
	}
	copy(dst[2:4], e[0x3c:0x3e])
}

// flushBlock writes the completions of the block, compressed as far as putCompressed takes them. It
// reports whether the queue took all.
func (rq *RQ) flushBlock() bool {
	s := &rq.block
	ok := true
	for rest := s.entries; ok && len(rest) > 0; {
		n := rq.attr.CQ.putCompressed(rest)
		if n == 0 {
			n, ok = 1, rq.attr.CQ.putCompletion(&rest[0])
		}
		rest = rest[n:]
	}
	s.entries = s.entries[:0]
	return ok
}

// putCompressed writes completions as one compressed block, up to the end of the ring, and returns
// how many: the minis first, 8 to an entry, in entries 1, 8, 16 ... behind the title, the title's
// last word at the end. The other entries of the block keep what they held. It has written nothing
// if it returns 0: less than two are left, they do not fit, or a fault needs them one by one.
//
// No block goes on at the start of the ring: DPDK's vectorized receive reads a block, invalidates
// its entries and fills as many buffers without a look at where the ring ends (drivers/net/mlx5
// mlx5_rxtx_vec_sse.h, rxq_cq_decompress_v).
func (cq *CQ) putCompressed(entries [][mlx5.CQESize]byte) int {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	size := uint32(1) << cq.attr.LogSize
	n := min(uint32(len(entries)), size-cq.pi&(size-1))
	if h := cq.nic.hooks.Load(); n < 2 || h != nil && (h.Complete != nil || h.Counter != nil) ||
		cq.attr.Collapsed || cq.Status() != CQOK || !cq.hasRoom(uint32(len(entries))) {
		return 0
	}
	entries = entries[:n]
	f := cq.attr.MiniFormat
	var array [mlx5.CQESize]byte
	for i := range entries {
		f.putMini(array[i%mlx5.MinisPerCQE*mlx5.MiniCQESize:], &entries[i])
		if i%mlx5.MinisPerCQE == mlx5.MinisPerCQE-1 || i == len(entries)-1 {
			at := cq.pi + max(1, uint32(i/mlx5.MinisPerCQE*mlx5.MinisPerCQE))
			cq.attr.Ring.Scatter(cq.entryOffset(at), array[:])
			clear(array[:])
		}
	}
	title := f.makeTitle(&entries[0], n)
	cq.storeEntry(cq.pi, &title, cq.ownerBit(cq.pi))
	cq.pi += n
	cq.nic.counters.addTo(ctrCQEs, len(entries))
	cq.nic.counters.addTo(ctrCompressedCQEs, len(entries))
	cq.raiseIfDue()
	return int(n)
}

// makeTitle makes the first completion the title of a block of n.
func (f MiniFormat) makeTitle(first *[mlx5.CQESize]byte, n uint32) [mlx5.CQESize]byte {
	t := *first
	switch f {
	case MiniHash:
		clear(t[0x0c:0x10])
		clear(t[0x14:0x16])
	case MiniChecksum, MiniChecksumStride:
		clear(t[0x14:0x16])
	}
	binary.BigEndian.PutUint32(t[0x2c:], n)
	t[0x3f] |= mlx5.FormatCompressed << 2
	return t
}
