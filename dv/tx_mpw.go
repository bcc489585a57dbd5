package dv

import "github.com/rdma-netstack/rdma-netstack/dv/mlx5"

// Multi-packet descriptors (enhanced MPW) hold a control and an Ethernet
// segment and then a record per frame: a pointer, or the frame itself. One is
// kept open while frames with the same flags come, and grows block by block;
// its blocks count as written (pc) from the moment they are taken. It is
// closed by Flush, by a descriptor of any other kind, by other flags, and when
// it is full. It never runs over the end of the ring: there it ends.

// mpw is the descriptor that is open, starting at block count TxQueue.last.
type mpw struct {
	ds    uint32 // its length so far in 16-byte units; 0: none is open
	limit uint32 // how long it can get: 0 if none is open
	flags TxFlags
	// before says how many packets had been posted when it was opened.
	before uint64
}

// mpwHead gives the length of what precedes the records.
const mpwHead = (mlx5.CtrlSegSize + mlx5.EthSegSize) / mlx5.DSSize

// dsPerBB says how many 16-byte units make a block.
const dsPerBB = mlx5.BB / mlx5.DSSize

// mpwRecord returns room for a record of ds units, for a frame with these flags, in a multi-packet
// descriptor. nil: the frame needs a descriptor of its own, because the queue has no such
// descriptors, the end of the ring is near, or there is no room.
func (q *TxQueue) mpwRecord(ds uint32, flags TxFlags) []byte {
	m := &q.mpw
	if (m.ds+ds > m.limit || m.flags != flags) && !q.openMPW(ds, flags) {
		return nil
	}
	at := (q.last&q.mask)*mlx5.BB + m.ds*mlx5.DSSize
	m.ds += ds
	q.pc = q.last + (m.ds+dsPerBB-1)/dsPerBB
	q.count.packets.n++
	return q.ring[at : at+ds*mlx5.DSSize]
}

// openMPW starts a descriptor that has room for a record of ds units.
func (q *TxQueue) openMPW(ds uint32, flags TxFlags) bool {
	q.closeMPW()
	slot := q.pc & q.mask
	limit := min(q.limits.mpw, (q.size-slot)*dsPerBB, q.room()*dsPerBB)
	if mpwHead+ds > limit {
		return false
	}
	mlx5.PutEth(q.ring[slot*mlx5.BB+mlx5.CtrlSegSize:], mlx5.Eth{CsumFlags: csumBits(flags)})
	q.last = q.pc
	q.mpw = mpw{ds: mpwHead, limit: limit, flags: flags, before: q.count.packets.n}
	return true
}

// closeMPW ends the open descriptor, if there is one.
func (q *TxQueue) closeMPW() {
	ds := q.mpw.ds
	if ds == 0 {
		return
	}
	q.mpw.ds, q.mpw.limit = 0, 0
	q.count.mpw.n += q.count.packets.n - q.mpw.before
	w := q.ring[(q.last&q.mask)*mlx5.BB:]
	mlx5.PutCtrl(w, mlx5.OpEnhancedMPW, 0, uint16(q.last), q.sqn, uint8(ds), mlx5.CEOnError)
	if q.pc-q.asked >= q.quarter {
		q.askForCompletion()
	}
}

// postSmall is Post for what there is most of: a frame of up to txLimits.small
// bytes in one piece, which needs nothing but to be copied into a shared
// descriptor. It reports false, and
// has done nothing, where there is more to it.
func (q *TxQueue) postSmall(b []byte, flags TxFlags) bool {
	if len(b) < ethMin || q.signals.isStopped() {
		return false
	}
	w := q.mpwRecord(uint32(mlx5.InlineDS(len(b))), flags)
	if w == nil {
		return false
	}
	*(*[mlx5.DSSize]byte)(w[len(w)-mlx5.DSSize:]) = [mlx5.DSSize]byte{}
	mlx5.PutInlineDataHeader(w, len(b))
	copy(w[mlx5.InlineHeaderSize:], b)
	q.count.inline.n++
	q.count.bytes.n += uint64(len(b))
	return true
}

// putMPWInline adds a frame, size bytes of which n are p's and its tag's.
func (q *TxQueue) putMPWInline(p *TxPacket, n, size int, flags TxFlags) bool {
	w := q.mpwRecord(uint32(mlx5.InlineDS(size)), flags)
	if w == nil {
		return false
	}
	if n == size {
		*(*[mlx5.DSSize]byte)(w[len(w)-mlx5.DSSize:]) = [mlx5.DSSize]byte{}
	} else {
		clear(w)
	}
	mlx5.PutInlineDataHeader(w, size)
	putFrame(w[mlx5.InlineHeaderSize:mlx5.InlineHeaderSize+n], p)
	q.count.inline.n++
	q.count.bytes.n += uint64(size)
	return true
}

// putMPWPointer adds a frame of n bytes that is in registered memory.
func (q *TxQueue) putMPWPointer(n int, flags TxFlags, lkey uint32, addr uint64) bool {
	w := q.mpwRecord(1, flags)
	if w == nil {
		return false
	}
	mlx5.PutData(w, uint32(n), lkey, addr)
	q.count.bytes.n += uint64(n)
	return true
}
