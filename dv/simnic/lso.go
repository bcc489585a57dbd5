package simnic

import (
	"encoding/binary"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
)

// lso sends the payload of the data segments behind copies of the inlined
// headers, cut into pieces of mss bytes: as one unsegmented frame per 64 KiB
// where that is where it goes, else packet by packet. Packets ahead of a payload
// byte that cannot be read are sent.
func (sq *SQ) lso(w *wqe, e *eth) fault {
	payload, f := w.measure(e.dataAt)
	if f.syndrome != 0 {
		return f
	}
	if e.insert != 0 || e.mss == 0 {
		return faultFormat
	}
	c, ok := newCutter(e.header, e.mss, payload)
	if !ok || c.p.l4At+c.p.l4Len > len(e.header) {
		return faultFormat
	}
	if payload+len(e.header) > sq.nic.caps.MaxLSO || len(e.header)+e.mss > maxSend {
		return faultLength
	}
	c.l3, c.l4 = e.csum&mlx5.CsumL3 != 0, e.csum&mlx5.CsumL4 != 0
	return sq.cut(w, e, &c, sq.piece(e, &c))
}

// piece is how many bytes of payload go into one frame: a packet's, or as many
// whole packets as an IP length can say.
func (sq *SQ) piece(e *eth, c *cutter) int {
	whole := (maxSend - len(e.header)) / c.mss * c.mss
	if e.csum&mlx5.CsumL4 == 0 || c.p.l3 == mlx5.L3IPv4 && e.csum&mlx5.CsumL3 == 0 || c.total <= c.mss {
		return c.mss
	}
	if sq.nic.offloadsTo(e.header)&c.offload() == 0 {
		return c.mss
	}
	return whole
}

// offload is what a wire must take to be given the unsegmented frame.
func (c *cutter) offload() Offload {
	switch {
	case c.p.proto == protoUDP:
		return OffloadUSO
	case c.p.l3 == mlx5.L3IPv6:
		return OffloadTSO6
	}
	return OffloadTSO4
}

// cut reads the payload in pieces of size bytes and emits a frame for each.
func (sq *SQ) cut(w *wqe, e *eth, c *cutter, size int) fault {
	src := source{sq: sq, w: w, at: e.dataAt}
	for at := 0; at == 0 || at < c.total; at += size {
		n := min(size, c.total-at)
		b := sq.room(len(e.header) + n)
		body := b[len(e.header) : len(e.header)+n]
		if f := src.read(body); f.syndrome != 0 {
			return f
		}
		fr := Frame{Data: b[:len(e.header)+n]}
		if n > c.mss {
			c.whole(&fr, at, n)
		} else {
			c.header(b, at/c.mss, at, n, sum16(body))
		}
		pad := max(len(fr.Data), minFrame)
		if sq.nic.caps.PadTX && len(fr.Data) < minFrame {
			clear(b[len(fr.Data):minFrame])
			fr.Data = b[:minFrame]
		}
		sq.burst.frames = append(sq.burst.frames, fr)
		sq.burst.used += pad
	}
	return fault{}
}

// whole makes f an unsegmented frame of the n bytes of payload at offset at.
func (c *cutter) whole(f *Frame, at, n int) {
	b := c.header(f.Data, at/c.mss, at, n, 0)
	binary.BigEndian.PutUint16(b[c.p.csumAt():], c.p.pseudo(b, len(b)-c.p.l4At+n))
	f.NeedsCsum, f.CsumStart, f.CsumOffset = true, uint16(c.p.l4At), uint16(c.p.csumAt()-c.p.l4At)
	f.HdrLen, f.MSS = uint16(len(b)), uint16(c.mss)
	switch c.offload() {
	case OffloadTSO4:
		f.GSO = GSOTCPv4
	case OffloadTSO6:
		f.GSO = GSOTCPv6
	default:
		f.GSO = GSOUDP
	}
}

// source reads the data segments of a WQE as one stream.
type source struct {
	sq  *SQ
	w   *wqe
	at  int     // next segment
	cur dataSeg // rest of the segment before it
}

// read fills dst.
func (s *source) read(dst []byte) fault {
	for len(dst) > 0 {
		if s.cur.n == 0 {
			var f fault
			if s.cur, s.at, f = s.w.segment(s.at); f.syndrome != 0 {
				return f
			}
			continue
		}
		n := min(s.cur.n, len(dst))
		if s.cur.inline != nil {
			copy(dst, s.cur.inline[:n])
			s.cur.inline = s.cur.inline[n:]
		} else if f := s.sq.burst.mem.read(s.sq, s.cur.lkey, s.cur.addr, dst[:n]); f.syndrome != 0 {
			return f
		}
		s.cur.addr += uint64(n)
		s.cur.n -= n
		dst = dst[n:]
	}
	return fault{}
}
