package dv

import (
	"fmt"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
)

// PostFrame sends n bytes at offset off of frame f without copying. On success
// the frame is the queue's, and goes back to the pool when sent; on failure it
// stays the caller's. Received frames of the device may be sent on this way:
// set the Packet's Frame to NoFrame then. n may be Packet.Size of a frame in
// several buffers. Tagging is not to be had.
func (q *TxQueue) PostFrame(f Frame, off, n int, flags TxFlags) error {
	if q.signals.stopped() {
		return q.ended()
	}
	if err := q.checkFrame(f, off, n, flags); err != nil {
		return q.countRefused(err)
	}
	if n > q.pool.size-off {
		return q.postChain(f, off, n, flags)
	}
	bytes := q.pool.Bytes(f)
	if n < ethMin {
		clear(bytes[off+n : off+ethMin])
		n = ethMin
	}
	inline := q.limits.minInline
	if n <= inline {
		return q.postShortFrame(f, bytes[off:off+n], flags)
	}
	addr := q.pool.addr(f) + uint64(off)
	if q.putMPWPointer(n, flags, q.pool.lkey, addr) {
		q.trackInFlight(f)
		return nil
	}
	ds := mlx5.CtrlSegSize/mlx5.DSSize + mlx5.EthDS(inline) + 1
	blocks := uint32(mlx5.BBs(ds))
	if q.room() < blocks {
		return q.full()
	}
	q.putSend(bytes[off:off+n], ds, blocks, flags, q.pool.lkey, addr)
	q.trackInFlight(f)
	return nil
}

// trackInFlight leaves frame f with the NIC until the descriptor that ends at pc, or
// grows on from there, is completed.
func (q *TxQueue) trackInFlight(f Frame) {
	q.inFlightFrames.push(q.pc, f)
	q.count.zeroCopy.n++
}

// postShortFrame sends a frame that the device wants inlined as a whole.
func (q *TxQueue) postShortFrame(f Frame, frame []byte, flags TxFlags) error {
	one := [1][]byte{frame}
	err := q.postInline(&TxPacket{Bufs: one[:]}, len(frame), len(frame), flags)
	if err == nil {
		q.pool.Put(f)
	}
	return err
}

func (q *TxQueue) checkFrame(f Frame, off, n int, flags TxFlags) error {
	switch {
	case !q.pool.valid(f):
		return fmt.Errorf("send frame %d, the pool has %d: %w", f, q.pool.count, ErrFrameSize)
	case n < ethHeader || n > q.limits.frame || off < 0 || off > q.pool.size-ethMin ||
		!q.pool.reaches(f, off, n):
		return fmt.Errorf(
			"send %d bytes at offset %d of a frame of %d, the port takes %d to %d: %w",
			n, off, q.pool.size, ethHeader, q.limits.frame, ErrFrameSize)
	case flags&TxVLAN != 0:
		return fmt.Errorf("insert a VLAN tag without copying: %w", ErrNotSupported)
	}
	return nil
}

// postChain is PostFrame for a frame that lies in several buffers: a descriptor
// of its own, with a pointer to each piece.
func (q *TxQueue) postChain(f Frame, off, n int, flags TxFlags) error {
	inline, first := q.limits.minInline, q.pool.size-off
	if first <= inline {
		return q.countRefused(
			fmt.Errorf("send a frame with %d bytes in its first buffer, the device wants %d in "+
				"the descriptor: %w",
				first, inline, ErrFrameSize))
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
	q.trackInFlight(f)
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
