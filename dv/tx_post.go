package dv

import (
	"encoding/binary"
	"fmt"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
)

// Post copies p into the ring or its staging memory; the NIC sees it at Flush.
// Frames below 60 bytes are padded with zeros. ErrRingFull: no room now;
// ErrFrameSize, ErrNotSupported: this packet will never do. A packet whose
// payload fits one segment is sent plainly, with both checksums computed.
func (q *TxQueue) Post(p *TxPacket) error {
	if len(p.Bufs) == 1 && len(p.Bufs[0]) <= q.limits.small && p.MSS|int(p.Flags&TxVLAN) == 0 &&
		q.postSmall(p.Bufs[0], p.Flags) {
		return nil
	}
	n := 0
	for _, b := range p.Bufs {
		n += len(b)
	}
	if q.signals.stopped() {
		return q.ended()
	}
	flags, tag := p.Flags, 0
	if flags&TxVLAN != 0 {
		tag = vlanTag
	}
	if p.MSS > 0 {
		if n-p.HdrLen > p.MSS {
			return q.postLSO(p, n, tag)
		}
		flags |= TxL3Csum | TxL4Csum
	}
	if n < ethHeader || n+tag > q.limits.frame {
		return q.countRefused(
			fmt.Errorf("send frame of %d bytes, the port takes %d to %d: %w", n+tag,
				ethHeader, q.limits.frame, ErrFrameSize))
	}
	if size := max(n+tag, ethMin); size <= q.limits.inline {
		if q.putMPWInline(p, n+tag, size, flags) {
			return nil
		}
		return q.postInline(p, n+tag, size, flags)
	}
	return q.postStaged(p, n+tag, flags)
}

// postInline writes the frame, size bytes of which n are p's and its tag's,
// into the descriptor.
func (q *TxQueue) postInline(p *TxPacket, n, size int, flags TxFlags) error {
	ds := mlx5.CtrlSegSize/mlx5.DSSize + mlx5.EthDS(size)
	blocks := uint32(mlx5.BBs(ds))
	if q.room() < blocks {
		return q.full()
	}
	w := q.descriptor(blocks)
	mlx5.PutCtrl(w, mlx5.OpSend, 0, uint16(q.pc), q.sqn, uint8(ds), mlx5.CEOnError)
	mlx5.PutEth(w[mlx5.CtrlSegSize:], mlx5.Eth{CsumFlags: csum(flags), InlineLen: uint16(size)})
	putFrame(w[inlineAt:inlineAt+n], p)
	clear(w[inlineAt+n : ds*mlx5.DSSize])
	q.count.inline.n++
	q.count.bytes.n += uint64(size)
	q.commit(blocks)
	return nil
}

// postStaged copies the frame of n bytes, tag included, to staging memory.
func (q *TxQueue) postStaged(p *TxPacket, n int, flags TxFlags) error {
	inline := q.limits.minInline
	ds := mlx5.CtrlSegSize/mlx5.DSSize + mlx5.EthDS(inline) + 1
	blocks := uint32(mlx5.BBs(ds))
	if q.room() < blocks {
		return q.full()
	}
	at, ok := q.allocStage(uint32(n))
	if !ok {
		return q.full()
	}
	frame := q.stage.buf[at : at+uint32(n)]
	putFrame(frame, p)
	if q.putMPWPointer(n, flags, q.stage.lkey, q.stage.addr+uint64(at)) {
		return nil
	}
	q.putSend(frame, ds, blocks, flags, q.stage.lkey, q.stage.addr+uint64(at))
	return nil
}

// putSend writes the descriptor of a frame that is in registered memory, at
// addr for the NIC, and longer than what must be inlined.
func (q *TxQueue) putSend(frame []byte, ds int, blocks uint32, flags TxFlags,
	lkey uint32, addr uint64) {
	inline := q.limits.minInline
	w := q.descriptor(blocks)
	mlx5.PutCtrl(w, mlx5.OpSend, 0, uint16(q.pc), q.sqn, uint8(ds), mlx5.CEOnError)
	mlx5.PutEth(w[mlx5.CtrlSegSize:], mlx5.Eth{CsumFlags: csum(flags), InlineLen: uint16(inline)})
	if inline > 0 {
		mlx5.PutInlineHeader(w[mlx5.CtrlSegSize:], frame[:inline])
	}
	mlx5.PutData(w[(ds-1)*mlx5.DSSize:], uint32(len(frame)-inline), lkey, addr+uint64(inline))
	q.count.bytes.n += uint64(len(frame))
	q.commit(blocks)
}

// inlineAt is where inlined bytes start in a descriptor.
const inlineAt = mlx5.CtrlSegSize + mlx5.InlineOffset

// csum is the checksum bits of an Ethernet segment for f.
func csum(f TxFlags) uint8 { return uint8(f&(TxL3Csum|TxL4Csum)) * mlx5.CsumL3 }

// vlanTag is the size of an 802.1Q tag, which stands behind the two MAC
// addresses.
const (
	vlanTag   = 4
	vlanAt    = 12
	vlanEther = 0x8100
	vlanID    = 0x0fff // of the tag control information
	maxVLAN   = vlanID - 1
)

// putFrame gathers p's bytes into dst, which has just the room for them and
// for the tag, if one is asked for.
func putFrame(dst []byte, p *TxPacket) {
	if len(p.Bufs) == 1 && p.Flags&TxVLAN == 0 {
		copy(dst, p.Bufs[0])
		return
	}
	gatherFrame(dst, p)
}

// gatherFrame is putFrame for a frame in pieces or with a tag.
func gatherFrame(dst []byte, p *TxPacket) {
	if p.Flags&TxVLAN == 0 {
		gather(dst, p.Bufs, 0)
		return
	}
	gather(dst[:vlanAt], p.Bufs, 0)
	binary.BigEndian.PutUint16(dst[vlanAt:], vlanEther)
	binary.BigEndian.PutUint16(dst[vlanAt+2:], p.VLAN)
	gather(dst[vlanAt+vlanTag:], p.Bufs, vlanAt)
}

// gather fills dst with the bytes of bufs, from the skip'th on.
func gather(dst []byte, bufs [][]byte, skip int) {
	for _, b := range bufs {
		if skip >= len(b) {
			skip -= len(b)
			continue
		}
		n := copy(dst, b[skip:])
		if dst, skip = dst[n:], 0; len(dst) == 0 {
			return
		}
	}
}

// countRefused counts a packet that cannot be sent.
func (q *TxQueue) countRefused(err error) error {
	q.count.refused.n++
	q.count.showFaults()
	return err
}
