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
	if w.immediate() != 0 && !sq.nic.cfg.Lenient {
		sq.violation("SEND %#x with immediate %#x", w.index, w.immediate())
		return faultFormat
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
