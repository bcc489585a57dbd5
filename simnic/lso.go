package simnic

import (
	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

// sendLSO sends the payload of the data segments behind copies of the inlined
// headers, cut into pieces of mss bytes: as one unsegmented frame per 64 KiB if all destinations
// accept it, else packet by packet. Packets ahead of a payload byte that cannot be read are sent.
func (sq *SQ) sendLSO(w *wqe, e *eth) fault {
	payload, f := w.segmentBytes(e.dataAt)
	if f.syndrome != 0 {
		return f
	}
	if e.insert != 0 || e.mss == 0 {
		return faultFormat
	}
	s, ok := frame.NewSegmenter(e.header, e.mss, payload)
	if !ok || s.Headers.L4At+s.Headers.L4Len > len(e.header) {
		return faultFormat
	}
	if payload+len(e.header) > sq.nic.caps.MaxLSO || len(e.header)+e.mss > maxSend {
		return faultLength
	}
	s.IPChecksum, s.L4Checksum = e.csum&mlx5.CsumL3 != 0, e.csum&mlx5.CsumL4 != 0
	return sq.emitSegments(w, e, &s, sq.packetsPerFrame(e, &s, payload))
}

// packetsPerFrame returns how many packets of payload go into one frame: one, or as many as the
// IP length field can express.
func (sq *SQ) packetsPerFrame(e *eth, s *frame.Segmenter, payload int) int {
	ipv4 := s.Headers.L3 == mlx5.L3IPv4
	if e.csum&mlx5.CsumL4 == 0 || ipv4 && e.csum&mlx5.CsumL3 == 0 || payload <= e.mss {
		return 1
	}
	if sq.nic.offloadsTo(e.header)&s.Offload() == 0 {
		return 1
	}
	return (maxSend - len(e.header)) / e.mss
}

// emitSegments reads the payload in pieces of n packets and emits a frame for each.
func (sq *SQ) emitSegments(w *wqe, e *eth, s *frame.Segmenter, n int) fault {
	src := source{sq: sq, w: w, at: e.dataAt}
	for g := s.Pieces(n); g.Next(); {
		b := sq.arenaRoom(len(e.header) + g.Len)
		body := b[len(e.header) : len(e.header)+g.Len]
		if f := src.readPayload(body); f.syndrome != 0 {
			return f
		}
		fr := frame.Frame{Data: b[:len(e.header)+g.Len]}
		if g.Len > e.mss {
			g.Unsegmented(&fr)
		} else {
			g.Header(b, frame.Sum(body))
		}
		pad := max(len(fr.Data), frame.MinFrame)
		if sq.nic.caps.PadTX && len(fr.Data) < frame.MinFrame {
			clear(b[len(fr.Data):frame.MinFrame])
			fr.Data = b[:frame.MinFrame]
		}
		sq.burst.frames = append(sq.burst.frames, fr)
		sq.burst.used += pad
	}
	return fault{}
}

// source reads the data segments of a WQE as one byte stream.
type source struct {
	sq  *SQ
	w   *wqe
	at  int     // next segment
	cur dataSeg // rest of the segment before it
}

// readPayload fills dst.
func (s *source) readPayload(dst []byte) fault {
	for len(dst) > 0 {
		if s.cur.n == 0 {
			var f fault
			if s.cur, s.at, f = s.w.dataSegmentAt(s.at); f.syndrome != 0 {
				return f
			}
			continue
		}
		n := min(s.cur.n, len(dst))
		if s.cur.inline != nil {
			copy(dst, s.cur.inline[:n])
			s.cur.inline = s.cur.inline[n:]
		} else if f := s.sq.burst.mem.readMemory(s.sq, s.cur.lkey, s.cur.addr,
			dst[:n]); f.syndrome != 0 {
			return f
		}
		s.cur.addr += uint64(n)
		s.cur.n -= n
		dst = dst[n:]
	}
	return fault{}
}
