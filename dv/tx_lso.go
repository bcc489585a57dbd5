package dv

import (
	"fmt"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
)

// minLSOHeader is an Ethernet, an IPv4 and a TCP header, in bytes.
const minLSOHeader = 14 + 20 + 20

// postLSO posts a packet of n bytes (and a tag of tag bytes) for the NIC to
// segment: all headers go into the descriptor, the payload into staging memory.
func (q *TxQueue) postLSO(p *TxPacket, n, tag int) error {
	header, payload := p.HdrLen+tag, n-p.HdrLen
	if err := q.checkLSO(p, header, payload); err != nil {
		return q.countRefused(err)
	}
	ds := mlx5.CtrlSegSize/mlx5.DSSize + mlx5.EthDS(header) + 1
	blocks := uint32(mlx5.BBs(ds))
	if q.room() < blocks {
		return q.full()
	}
	at, ok := q.allocStage(uint32(payload))
	if !ok {
		return q.full()
	}
	gather(q.stage.buf[at:at+uint32(payload)], p.Bufs, p.HdrLen)
	w := q.descriptor(blocks)
	mlx5.PutCtrl(w, mlx5.OpLSO, 0, uint16(q.pc), q.sqn, uint8(ds), mlx5.CEOnError)
	mlx5.PutEth(w[mlx5.CtrlSegSize:], mlx5.Eth{
		CsumFlags: csum(TxL3Csum | TxL4Csum), MSS: uint16(p.MSS), InlineLen: uint16(header),
	})
	putFrame(w[inlineAt:inlineAt+header], p)
	clear(w[inlineAt+header : (ds-1)*mlx5.DSSize])
	mlx5.PutData(w[(ds-1)*mlx5.DSSize:], uint32(payload), q.stage.lkey, q.stage.addr+uint64(at))
	q.count.lso.n++
	q.count.bytes.n += uint64(header + payload)
	q.commit(blocks)
	return nil
}

// checkLSO refuses what would put the queue in error, or what the NIC would
// cut into frames that the port drops.
func (q *TxQueue) checkLSO(p *TxPacket, header, payload int) error {
	switch {
	case q.limits.tso == 0:
		return fmt.Errorf("segment %d bytes: %w", payload, ErrNotSupported)
	case p.HdrLen < minLSOHeader || header > q.limits.lsoHeader:
		return fmt.Errorf("segment behind %d header bytes, %d to %d will do: %w", header,
			minLSOHeader, q.limits.lsoHeader, ErrFrameSize)
	case payload > q.limits.tso:
		return fmt.Errorf("segment %d bytes, at most %d will do: %w", payload,
			q.limits.tso, ErrFrameSize)
	case header+p.MSS > q.limits.frame:
		return fmt.Errorf("segments of %d bytes, the port takes %d: %w", header+p.MSS,
			q.limits.frame, ErrFrameSize)
	}
	return nil
}
