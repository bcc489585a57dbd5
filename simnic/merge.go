package simnic

import (
	"encoding/binary"
	"math/bits"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

// merge holds TCP segments of one flow that arrive in order in one batch and share
// a WQE and a completion. The first one's headers stay in place. Guarded by the
// queue's lock; while it is open, RQ.wqe holds its WQE.
type merge struct {
	segments int      // 0: none open
	flow     MatchKey // without TCP flags
	cqe      mlx5.RxCQE
	header   int    // bytes of headers in memory
	bytes    int    // headers and payload so far
	limit    int    // most of the same
	skip     int    // offset in the scatter list
	next     uint32 // sequence number that continues it
	ack      uint32
	window   uint16
	ttl      uint8
	push     bool
	sum      uint16 // of the payload
}

// maxSegments gives the maximum that the completion can report.
const maxSegments = 255

// segment is a TCP segment that may be merged.
type segment struct {
	flow    MatchKey
	header  []byte // all headers, as received
	tcp     []byte
	payload int
}

// deliverMerging delivers a packet of a TIR with LRO.
func (rq *RQ) deliverMerging(b *rxBurst) counter {
	s, ok := rq.mergeable(b)
	stripped := rq.applyPacketOps(b)
	if !ok {
		rq.closeMerge()
		return rq.deliverAlone(b, stripped)
	}
	if ended, done := rq.tryMerge(b, &s, stripped); done {
		return ended
	}
	return rq.deliverAlone(b, stripped)
}

// mergeable reports whether the burst's packet may take part in LRO at all:
// data, checksums right, nothing but ACK and PSH, no options but a time stamp.
func (rq *RQ) mergeable(b *rxBurst) (s segment, ok bool) {
	pk, p := &b.packet, &b.p
	const good = mlx5.HdrL3OK | mlx5.HdrL4OK
	if p.Proto != frame.ProtoTCP || p.L4At == 0 || p.Extensions ||
		pk.status&good != good || rq.attr.ScatterFCS {
		return s, false
	}
	if p.L3 == mlx5.L3IPv4 && !pk.lro.IPv4 || p.L3 == mlx5.L3IPv6 && !pk.lro.IPv6 ||
		len(pk.parts[0]) < p.L4At+p.L4Len {
		return s, false
	}
	s.header = pk.parts[0][:p.L4At+p.L4Len]
	s.tcp = s.header[p.L4At:]
	s.payload = p.End - len(s.header)
	stamped := p.L4Len == frame.TCPHeader+12 && binary.BigEndian.Uint32(s.tcp[20:]) == 0x0101080a
	if s.payload == 0 || s.tcp[13]&^frame.TCPPSH != frame.TCPACK ||
		p.L4Len != frame.TCPHeader && !stamped {
		return s, false
	}
	s.flow = b.key
	fieldTCPFlags.putField(&s.flow, 0)
	return s, true
}

// continues reports whether the segment is the next of the open merge and fits.
func (m *merge) continues(s *segment, headerBytes int) bool {
	return m.segments > 0 && m.segments < maxSegments && !m.push && m.flow == s.flow &&
		m.header == headerBytes &&
		m.next == binary.BigEndian.Uint32(s.tcp[4:]) && m.bytes+s.payload <= m.limit
}

// tryMerge adds the burst's packet, arranged and stripped or not, to a merge, or opens one with it.
// It reports false if the packet cannot be merged; then no merge is open.
func (rq *RQ) tryMerge(b *rxBurst, s *segment, stripped bool) (ended counter, done bool) {
	header := len(s.header)
	if stripped {
		header -= frame.VLANTag
	}
	m := &rq.merge
	if !m.continues(s, header) {
		rq.closeMerge()
		if s.payload < rq.nic.caps.LROMinMSS || !rq.openMerge(b, s, header, stripped) {
			return 0, false
		}
		b.keepOpen(rq)
	} else {
		b.packet.dropFront(header)
		rq.nic.counters.addTo(ctrLROPackets, 1)
	}
	b.packet.truncateTo(s.payload + header*boolToInt(m.segments == 0))
	if f := rq.scatterPacket(b, rq.scatterList(rq.wqe[:1<<rq.attr.LogStride]),
		m.skip+m.bytes); f.syndrome != 0 {
		m.segments = 0
		rq.failWQE(f, 0)
		return ctrProtection, true
	}
	m.noteSegment(s, sumParts(b.packet.parts[:b.packet.n], s.payload))
	return delivered, true
}

func boolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// openMerge prepares a WQE for a merge that starts with the burst's packet.
func (rq *RQ) openMerge(b *rxBurst, s *segment, header int, stripped bool) bool {
	if !rq.available(b) || !rq.makeRoom(b, header+s.payload) || !rq.available(b) {
		return false
	}
	w := rq.loadWQE()
	limit := b.p.L3At + b.packet.lro.MaxPayload - boolToInt(stripped)*frame.VLANTag
	skip := 0
	if st := rq.attr.Striding; st != nil {
		skip = rq.strideAt()
		limit = min(limit, 1<<(st.LogStrides+st.LogStrideBytes)-skip)
	}
	limit = min(limit, listCapacity(rq.scatterList(w), skip+limit)-skip, 65535)
	if header+s.payload > limit {
		return false
	}
	rq.merge = merge{flow: s.flow, header: header, limit: limit, skip: skip, ttl: 255}
	rq.describePacket(&rq.merge.cqe, b, stripped)
	return true
}

// noteSegment records the fields of the segments that the completion reports.
func (m *merge) noteSegment(s *segment, sum uint16) {
	if m.segments == 0 {
		m.bytes = m.header
	}
	if (m.bytes-m.header)%2 != 0 {
		sum = bits.ReverseBytes16(sum)
	}
	m.sum = frame.AddSums(m.sum, sum)
	m.segments++
	m.bytes += s.payload
	m.next = binary.BigEndian.Uint32(s.tcp[4:]) + uint32(s.payload)
	m.ack, m.window = binary.BigEndian.Uint32(s.tcp[8:]), be16(s.tcp[14:])
	m.push = m.push || s.tcp[13]&frame.TCPPSH != 0
	m.ttl = min(m.ttl, s.hopLimit())
}

// hopLimit returns the hop limit of the segment's IP header.
func (s *segment) hopLimit() uint8 {
	if fieldIPVersion.getField(&s.flow) == 4 {
		return s.header[len(s.header)-len(s.tcp)-12]
	}
	return s.header[len(s.header)-len(s.tcp)-33]
}

// sumParts returns the sum of the last n bytes of the parts.
func sumParts(parts [][]byte, n int) (sum uint16) {
	for i := len(parts) - 1; n > 0; i-- {
		p := parts[i]
		p = p[len(p)-min(n, len(p)):]
		n -= len(p)
		s := frame.Sum(p)
		if n%2 != 0 {
			s = bits.ReverseBytes16(s)
		}
		sum = frame.AddSums(sum, s)
	}
	return sum
}

// closeMerge completes the open merge. Called with the lock held.
func (rq *RQ) closeMerge() bool {
	m := &rq.merge
	if m.segments == 0 {
		return true
	}
	c := &m.cqe
	if m.segments > 1 {
		c.Checksum = m.sum
	}
	if rq.attr.Striding != nil {
		rq.takeStrides(c, m.bytes)
	} else {
		c.Counter, c.ByteCount = rq.completionIndex(), uint32(m.bytes)
		rq.consumeWQE(rq.wqe[:])
	}
	var e [mlx5.CQESize]byte
	c.Put(e[:])
	if m.segments > 1 {
		m.markCompletion(e[:])
	}
	m.segments = 0
	return rq.flushBlock() && rq.attr.CQ.putCompletion(&e)
}

// markCompletion writes the fields that make a completion one of a merge.
func (m *merge) markCompletion(e []byte) {
	mlx5.CQELROSegments.Put(e, uint64(m.segments))
	mlx5.CQELROPush.Put(e, uint64(boolToInt(m.push)))
	mlx5.CQELROMinTTL.Put(e, uint64(m.ttl))
	mlx5.CQELROWindow.Put(e, uint64(m.window))
	mlx5.CQELROAck.Put(e, uint64(m.ack))
}

// dropFront takes n bytes off the front of the packet.
func (pk *rxPacket) dropFront(n int) {
	pk.length -= n
	for i := 0; n > 0; i++ {
		k := min(n, len(pk.parts[i]))
		pk.parts[i] = pk.parts[i][k:]
		n -= k
	}
}

// truncateTo cuts the packet to n bytes, without padding.
func (pk *rxPacket) truncateTo(n int) {
	pk.length = min(pk.length, n)
	for i := range pk.parts[:pk.n] {
		k := min(n, len(pk.parts[i]))
		pk.parts[i] = pk.parts[i][:k]
		n -= k
	}
}
