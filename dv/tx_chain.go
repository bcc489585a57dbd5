package dv

import (
	"fmt"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
)

// postChain is PostFrame for a frame that lies in several buffers: a descriptor
// of its own, with a pointer to each piece.
func (q *TxQueue) postChain(f Frame, off, n int, flags TxFlags) error {
	inline, first := q.limits.minInline, q.pool.size-off
	if first <= inline {
		return q.refuse(fmt.Errorf("send a frame with %d bytes in its first buffer, the device wants %d in the descriptor: %w", first, inline, ErrFrameSize))
	}
	head := mlx5.CtrlSegSize/mlx5.DSSize + mlx5.EthDS(inline)
	ds := head + 1 + (n-first+q.pool.size-1)/q.pool.size
	blocks := uint32(mlx5.BBs(ds))
	if q.room() < blocks {
		return q.full()
	}
	w := q.descriptor(blocks)
	mlx5.PutCtrl(w, mlx5.OpSend, 0, uint16(q.pc), q.sqn, uint8(ds), mlx5.CEOnError)
	mlx5.PutEth(w[mlx5.CtrlSegSize:], mlx5.Eth{CsumFlags: csum(flags), InlineLen: uint16(inline)})
	if inline > 0 {
		mlx5.PutInlineHeader(w[mlx5.CtrlSegSize:], q.pool.Bytes(f)[off:off+inline])
	}
	q.putPieces(w[head*mlx5.DSSize:ds*mlx5.DSSize], f, off+inline, n-inline)
	q.count.bytes.n += uint64(n)
	q.commit(blocks)
	q.lend(f)
	return nil
}

// putPieces fills w with pointers to n bytes that begin off bytes into f.
func (q *TxQueue) putPieces(w []byte, f Frame, off, n int) {
	for at := 0; at < len(w); at += mlx5.DataSegSize {
		size := min(n, q.pool.size-off)
		mlx5.PutData(w[at:], uint32(size), q.pool.lkey, q.pool.addr(f)+uint64(off))
		f, n, off = q.pool.next[f], n-size, 0
	}
}
