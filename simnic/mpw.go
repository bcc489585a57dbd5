package simnic

import (
	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

// sendMultiPacket sends one packet per data segment of an enhanced multi-packet WQE.
// The Ethernet segment applies to all of them.
func (sq *SQ) sendMultiPacket(w *wqe, e *eth) fault {
	if !sq.nic.caps.EnhancedMPW || !sq.attr.MPW || len(e.header) != 0 || e.insert != 0 ||
		e.mss != 0 || sq.nic.caps.MinInline != InlineNone {
		return faultFormat
	}
	return sq.sendRecords(w, e)
}

// maxLegacyMPW gives the most frames of a multi-packet WQE of the older kind (DPDK
// drivers/common/mlx5/mlx5_prm.h, MLX5_MPW_MAX_PACKETS).
const maxLegacyMPW = 6

// legacyMPW sends one packet per data segment of a multi-packet WQE of the older kind, all
// of the length that mss has. It takes pointers only, and no inline bytes, even if other WQEs need
// some (DPDK drivers/net/mlx5/mlx5_tx_mpw.c).
func (sq *SQ) legacyMPW(w *wqe, e *eth) fault {
	if len(e.header) != 0 || e.insert != 0 || e.mss == 0 ||
		(len(w.raw)-e.dataAt)/mlx5.DataSegSize > maxLegacyMPW {
		return faultFormat
	}
	for at := e.dataAt; at < len(w.raw); at += mlx5.DataSegSize {
		if s, _, f := w.dataSegmentAt(at); f.syndrome != 0 || s.inline != nil || s.n != e.mss {
			return faultFormat
		}
	}
	return sq.sendRecords(w, e)
}

// legacyMPW reports whether the WQE is a multi-packet one of the older kind.
func (w *wqe) legacyMPW() bool { return w.op == mlx5.OpLSO && w.opmod == mlx5.OpModLegacyMPW }

// sendRecords sends one packet per data segment.
func (sq *SQ) sendRecords(w *wqe, e *eth) fault {
	if _, f := w.segmentBytes(e.dataAt); f.syndrome != 0 {
		return f
	}
	for at := e.dataAt; at < len(w.raw); {
		s, next, f := w.dataSegmentAt(at)
		if f.syndrome == 0 {
			f = sq.sendRecord(w, s, e)
		}
		if f.syndrome != 0 {
			return f
		}
		at = next
	}
	return fault{}
}

// sendRecord sends one record.
func (sq *SQ) sendRecord(w *wqe, s dataSeg, e *eth) fault {
	if f := sq.checkLength(w, s.n); f.syndrome != 0 {
		return f
	}
	b := sq.arenaRoom(s.n + frame.VLANTag)
	if s.inline != nil {
		copy(b[frame.VLANTag:], s.inline)
	} else if f := sq.burst.mem.readMemory(sq, s.lkey, s.addr,
		b[frame.VLANTag:frame.VLANTag+s.n]); f.syndrome != 0 {
		return f
	}
	sq.emitPacket(b, s.n, e)
	return fault{}
}
