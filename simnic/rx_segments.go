package simnic

import (
	"encoding/binary"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

// deliverSegments delivers the packets that an unsegmented frame stands for. It reports
// false when the frame cannot be segmented.
func (n *NIC) deliverSegments(b *rxBurst, rq *RQ, f *frame.Frame) bool {
	payload := f.Data[f.HdrLen:]
	if int(f.HdrLen) > len(b.template) {
		return false
	}
	s, ok := frame.NewSegmenter(b.template[:copy(b.template[:], f.Data[:f.HdrLen])], int(f.MSS),
		len(payload))
	if !ok {
		return false
	}
	end := b.p.End
	b.p.End = 0 // no packet has a status yet
	b.lockQueue(rq)
	for g := s.Packets(); g.Next(); {
		piece := payload[g.At : g.At+g.Len]
		sum := frame.Sum(piece)
		if rq.deliverSegment(b, &g, int(f.HdrLen), piece, sum) {
			continue
		}
		h := g.Header(b.header[:], sum)
		b.p.End = len(h) + len(piece)
		b.setSegment(h, piece)
		rq.deliverPacket(b)
		b.p.End = 0
	}
	b.p.End = end
	return true
}

// deliverSegment writes the packet of segment g, with a header of hdr bytes, where
// the queue's next WQE points, without assembling it elsewhere first. It reports false, and has
// done nothing, if that needs more than copying: deliver handles every case. The checksum status of
// the packet before holds for one of the same length, as b.p.end says.
func (rq *RQ) deliverSegment(b *rxBurst, g *frame.Segment, hdr int, piece []byte, sum uint16) bool {
	n := hdr + len(piece)
	if posted := int(rq.postedWQEs()); posted == 0 || posted > 1<<rq.attr.LogSize ||
		b.packet.padded &&
			n < frame.MinFrame || !rq.copiesUnchanged(b) {
		return false
	}
	w := rq.loadWQE()
	dst := rq.firstBuffer(b, rq.scatterList(w), n)
	if dst == nil {
		return false
	}
	h := g.Header(dst, sum)
	copy(dst[len(h):], piece)
	if b.p.End != n {
		b.p.End = n
		b.setVerified(h)
	}
	var e mlx5.RxCQE
	rq.describePacket(&e, b, false)
	e.ByteCount, e.Counter = uint32(n), rq.completionIndex()
	rq.consumeWQE(w)
	rq.countEnd(b, rq.writeCompletion(b, &e), n)
	return true
}

// copiesUnchanged reports whether a packet is copied into the queue unchanged, with its own
// completion.
func (rq *RQ) copiesUnchanged(b *rxBurst) bool {
	a, h := &rq.attr, rq.nic.hooks.Load()
	return rq.state == StateReady && a.Striding == nil &&
		b.packet.lro == nil && rq.merge.segments == 0 &&
		!a.ScatterFCS && !a.EndPad && !(a.VLANStrip && b.p.Tags > 0) &&
		a.CQ.Status() == CQOK && !rq.nic.fatal.Load() && (h == nil || h.Deliver == nil)
}

// firstBuffer returns the n bytes that the first entry of a scatter list points to, nil if they are
// not adjacent memory of the key or need an error.
func (rq *RQ) firstBuffer(b *rxBurst, list []byte, n int) []byte {
	room := int(binary.BigEndian.Uint32(list) &^ startPadding)
	if room < n {
		return nil
	}
	k := b.mem.findKey(rq.nic, binary.BigEndian.Uint32(list[4:]))
	if k == nil {
		return nil
	}
	off, ok, _ := k.keySpan(rq.attr.PD, binary.BigEndian.Uint64(list[8:]), room)
	if !ok || !k.attr.LocalWrite {
		return nil
	}
	if dst := k.attr.Mem.Slice(off, n); len(dst) == n {
		return dst
	}
	return nil
}
