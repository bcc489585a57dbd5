package simnic

import (
	"encoding/binary"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

// maxSend gives the longest packet of a SEND; limit of the model.
const maxSend = 65535

// shortest gives the longest frame that cards have been seen to fail on, unless
// Config.Lenient: DPDK refuses to send up to this many bytes.
const shortest = 18

// executeWQE executes a WQE.
func (sq *SQ) executeWQE(w *wqe) fault {
	switch w.op {
	case mlx5.OpNOP:
		return fault{}
	case mlx5.OpUMR:
		return sq.executeUMR(w)
	}
	e, ok := w.ethSegment()
	if !ok {
		return faultInline
	}
	if e.insert != 0 && !sq.nic.caps.VLANInsert {
		return faultFormat
	}
	sq.countOffloads(w, &e)
	switch {
	case w.legacyMPW():
		return sq.legacyMPW(w, &e)
	case w.op == mlx5.OpLSO:
		return sq.sendLSO(w, &e)
	case w.op == mlx5.OpEnhancedMPW:
		return sq.sendMultiPacket(w, &e)
	}
	if w.immediate() != 0 && sq.nic.cfg.RefuseImmediate {
		sq.violation("SEND %#x with immediate %#x", w.index, w.immediate())
		return faultKey
	}
	return sq.sendPacket(w, &e)
}

// countOffloads counts the offloads of a WQE.
func (sq *SQ) countOffloads(w *wqe, e *eth) {
	if w.op == mlx5.OpLSO && !w.legacyMPW() {
		sq.burst.lso++
	}
	if e.csum&mlx5.CsumL4 != 0 {
		sq.burst.checksums++
	}
}

// sendPacket assembles one packet from the inline header and all data segments.
func (sq *SQ) sendPacket(w *wqe, e *eth) fault {
	body, f := w.segmentBytes(e.dataAt)
	if f.syndrome != 0 {
		return f
	}
	n := len(e.header) + body
	if f := sq.checkLength(w, n); f.syndrome != 0 {
		return f
	}
	b := sq.arenaRoom(n + frame.VLANTag)
	copy(b[frame.VLANTag:], e.header)
	if f := sq.gatherSegments(w, e.dataAt,
		b[frame.VLANTag+len(e.header):frame.VLANTag+n]); f.syndrome != 0 {
		return f
	}
	ok, f := sq.checkInline(w, len(e.header), b[frame.VLANTag:frame.VLANTag+n])
	if ok {
		sq.emitPacket(b, n, e)
	}
	return f
}

// checkLength refuses packets too short or too long for one SEND.
func (sq *SQ) checkLength(w *wqe, n int) fault {
	if n <= shortest && n >= frame.EtherHeader {
		sq.violation("packet of %d bytes in WQE %#x", n, w.index)
		if sq.nic.cfg.Lenient {
			return fault{}
		}
	}
	if n <= shortest || n > maxSend {
		return faultLength
	}
	return fault{}
}

// checkInline reports whether enough of the packet was inlined. In lenient mode a packet with less
// is dropped without an error, as cards do according to DPDK.
func (sq *SQ) checkInline(w *wqe, inlined int, b []byte) (ok bool, f fault) {
	if inlined >= sq.nic.caps.minInline(b) {
		return true, f
	}
	sq.violation("WQE %#x inlines %d bytes of a packet of %d", w.index, inlined, len(b))
	if !sq.nic.cfg.Lenient {
		return false, faultFormat
	}
	sq.nic.counters.addTo(ctrTxInlineDropped, 1)
	return false, f
}

// minInline returns how many bytes of this packet must be inlined.
func (c *Caps) minInline(b []byte) int {
	if c.MinInline == InlineNone || len(b) < frame.EtherHeader {
		return 0
	}
	n, p := frame.EtherHeader+frame.VLANTag, frame.Parse(b)
	if c.MinInline >= InlineIP && p.L4At != 0 {
		n = max(n, p.L4At)
	}
	if c.MinInline >= InlineL4 && p.L4At != 0 {
		n = max(n, p.L4At+p.L4Len)
	}
	return min(n, len(b))
}

// arenaRoom returns space for n bytes and padding in the arena. If needed it hands on the collected
// frames to make room.
func (sq *SQ) arenaRoom(n int) []byte {
	b := sq.burst
	n = max(n, frame.MinFrame+frame.VLANTag)
	if len(b.frames) == maxBurst || b.used+n > len(b.arena) {
		sq.handOn()
	}
	return b.arena[b.used : b.used+n]
}

// gatherSegments copies the data segments from at on, in order, into dst.
func (sq *SQ) gatherSegments(w *wqe, at int, dst []byte) fault {
	for at < len(w.raw) {
		s, next, f := w.dataSegmentAt(at)
		if f.syndrome != 0 {
			return f
		}
		if s.inline != nil {
			copy(dst, s.inline)
		} else if f := sq.burst.mem.readMemory(sq, s.lkey, s.addr, dst[:s.n]); f.syndrome != 0 {
			return f
		}
		dst, at = dst[s.n:], next
	}
	return fault{}
}

// emitPacket adds the packet of n bytes that starts vlanTag bytes into b, the arena's
// next room, to the burst, with the offloads that the Ethernet segment requests.
func (sq *SQ) emitPacket(b []byte, n int, e *eth) {
	fr := b[frame.VLANTag : frame.VLANTag+n]
	if e.insert != 0 {
		fr = insertTag(b[:n+frame.VLANTag], e.insert, e.tci)
	}
	f := frame.Frame{Data: fr}
	checksumFlags(&f, e.csum)
	if sq.nic.caps.PadTX && len(f.Data) < frame.MinFrame {
		clear(b[frame.VLANTag+n : max(frame.VLANTag+n, frame.MinFrame+frame.VLANTag)])
		f.Data = f.Data[:frame.MinFrame]
	}
	sq.rate.Sent(len(f.Data))
	sq.burst.frames = append(sq.burst.frames, f)
	sq.burst.used += max(n+frame.VLANTag, frame.MinFrame+frame.VLANTag)
}

// insertTag moves the MAC addresses of the frame at b[4:] to b[0:] and writes the tag after them.
func insertTag(b []byte, insert, tci uint16) []byte {
	copy(b, b[frame.VLANTag:frame.VLANTag+12])
	tpid := uint16(frame.EtherVLAN)
	if insert == mlx5.InsertSTag {
		tpid = frame.EtherQinQ
	}
	binary.BigEndian.PutUint16(b[12:], tpid)
	binary.BigEndian.PutUint16(b[14:], tci)
	return b
}

// checksumFlags computes, or leaves to the wire, the checksums that flags request. It ignores the
// checksum fields of the frame; a frame they do not apply to is unchanged. The flags for inner
// headers do nothing: this parser knows no tunnel.
func checksumFlags(f *frame.Frame, flags uint8) {
	if flags&(mlx5.CsumL3|mlx5.CsumL4) == 0 {
		return
	}
	p := frame.Parse(f.Data)
	if flags&mlx5.CsumL3 != 0 {
		p.SetIPv4Checksum(f.Data)
	}
	if flags&mlx5.CsumL4 == 0 || !p.SeedChecksum(f.Data) {
		return
	}
	f.NeedsCsum, f.CsumStart, f.CsumOffset = true, uint16(p.L4At), uint16(p.ChecksumAt()-p.L4At)
	if p.End != len(f.Data) { // the sum must not include bytes after the datagram
		datagram := *f
		datagram.Data = f.Data[:p.End]
		datagram.CompleteChecksum()
		f.NeedsCsum = false
	}
}

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
	s.CopyLength = true
	return sq.emitSegments(w, e, &s, sq.packetsPerFrame(e, &s, payload))
}

// packetsPerFrame returns how many packets of payload go into one frame: one, or as many as the
// IP length field can express. Who cuts the frame later writes the UDP length of each packet, so
// that those with a wrong one go one by one.
func (sq *SQ) packetsPerFrame(e *eth, s *frame.Segmenter, payload int) int {
	ipv4 := s.Headers.L3 == mlx5.L3IPv4
	if e.csum&mlx5.CsumL4 == 0 || ipv4 && e.csum&mlx5.CsumL3 == 0 || payload <= e.mss ||
		!s.LengthFits() {
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
		sq.rate.Sent(g.Len + max(1, (g.Len+e.mss-1)/e.mss)*len(e.header))
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
