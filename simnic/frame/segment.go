package frame

import (
	"encoding/binary"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
)

// MaxHeader gives the longest L2 to L4 header, in bytes, that Cut segments behind.
const MaxHeader = 1024

// Segmenter computes the headers of the packets that an unsegmented frame stands for: TCP
// segmentation by the rules of linux Documentation/networking/ segmentation-offloads.rst, UDP
// likewise without sequence numbers. The caller puts header and payload together, so that each byte
// is copied once. It allocates nothing. One goroutine uses it.
type Segmenter struct {
	Headers    Headers // of the template
	IPChecksum bool    // Header writes the IPv4 header checksum; initially true
	L4Checksum bool    // Header writes the TCP or UDP checksum; initially true
	// CopyLength makes Header leave the UDP length as it was in the template, in every packet, as
	// cards do: linux drivers/net/ethernet/mellanox/mlx5/core/en_accel/en_accel.h,
	// mlx5e_udp_gso_handle_tx_skb, wrote there what one packet has. Initially false.
	CopyLength bool

	template []byte // L2 to L4 headers; the caller's memory
	mss      int    // bytes of payload per packet
	total    int    // bytes of payload in all packets

	// Fields of the template that count from packet to packet, and the sums of all other fields.
	id           uint16
	seq          uint32
	flags        byte
	udpLength    uint16 // of the template, as it was
	ipSum, l4Sum uint16
}

// NewSegmenter returns a Segmenter for total bytes of payload behind the headers in template, cut
// into pieces of mss bytes. It corrects the IP length in template, and reads it until the last
// segment. ok is false when template has no whole TCP or UDP header or mss is not positive.
func NewSegmenter(template []byte, mss, total int) (s Segmenter, ok bool) {
	s = Segmenter{template: template, mss: mss, total: total, IPChecksum: true, L4Checksum: true}
	if len(template) < EtherHeader || mss <= 0 {
		return s, false
	}
	s.Headers = Parse(template)
	s.setIPLength(template, 0)
	s.Headers = Parse(template)
	if s.Headers.L4At == 0 {
		return s, false
	}
	s.addUp()
	return s, true
}

// addUp sums up the template once, so that each header costs a few additions.
func (s *Segmenter) addUp() {
	h := &s.Headers
	if h.L3 == mlx5.L3IPv4 {
		ip := s.template[h.L3At:]
		s.id = binary.BigEndian.Uint16(ip[4:])
		s.ipSum = AddSums(binary.BigEndian.Uint16(ip), Sum(ip[6:10]), Sum(ip[12:int(ip[0]&15)*4]))
	}
	l4, pseudo := s.template[h.L4At:], h.PseudoSum(s.template, 0)
	if h.Proto == ProtoUDP {
		s.udpLength = binary.BigEndian.Uint16(l4[4:])
		s.l4Sum = AddSums(pseudo, Sum(l4[:4]), Sum(l4[8:]))
		return
	}
	s.seq, s.flags = binary.BigEndian.Uint32(l4[4:]), l4[13]
	s.l4Sum = AddSums(pseudo, Sum(l4[:4]), Sum(l4[8:12]), uint16(l4[12])<<8,
		binary.BigEndian.Uint16(l4[14:]), Sum(l4[18:]))
}

// setIPLength writes the IP length for n bytes of payload.
func (s *Segmenter) setIPLength(b []byte, n int) {
	h := &s.Headers
	size := len(s.template) - h.L3At + n
	switch {
	case h.EtherType == EtherIPv4 && len(b) >= h.L3At+20:
		binary.BigEndian.PutUint16(b[h.L3At+2:], uint16(size))
	case h.EtherType == EtherIPv6 && len(b) >= h.L3At+IPv6Header:
		binary.BigEndian.PutUint16(b[h.L3At+4:], uint16(size-IPv6Header))
	}
}

// LengthFits reports whether the UDP length of the template is that of every packet, so that it
// does not matter whether it is copied. It is true for TCP.
func (s *Segmenter) LengthFits() bool {
	h := &s.Headers
	return h.Proto != ProtoUDP || s.total > 0 && s.total%s.mss == 0 &&
		int(s.udpLength) == len(s.template)-h.L4At+s.mss
}

// Offload returns the offload that carries the frame unsegmented.
func (s *Segmenter) Offload() Offload {
	switch {
	case s.Headers.Proto == ProtoUDP:
		return OffloadUSO
	case s.Headers.L3 == mlx5.L3IPv6:
		return OffloadTSO6
	}
	return OffloadTSO4
}

// Segment iterates over the segments of a Segmenter. It is before the
// first segment until Next is called. A segment is one packet, or with Pieces
// several, that Unsegmented then describes as one frame.
//
//	for g := s.Packets(); g.Next(); {
//		copy(packet[len(headers):], payload[g.At:g.At+g.Len])
//		g.Header(packet, Sum(payload[g.At:g.At+g.Len]))
//	}
type Segment struct {
	At  int // offset of the segment's payload
	Len int // bytes of the segment's payload

	s      *Segmenter
	first  int // index of the segment's first packet
	stride int // packets per segment
	next   int // offset of the next segment's payload
}

// Packets iterates packet by packet. There is always at least one.
func (s *Segmenter) Packets() Segment { return Segment{s: s, first: -1, stride: 1} }

// Pieces iterates over pieces of n packets each; the last may have fewer.
func (s *Segmenter) Pieces(n int) Segment { return Segment{s: s, first: -n, stride: n} }

// Next moves to the next segment and reports whether there is one.
func (g *Segment) Next() bool {
	if g.next > 0 && g.next >= g.s.total {
		return false
	}
	g.At = g.next
	g.next += g.stride * g.s.mss
	g.Len = min(g.next, g.s.total) - g.At
	g.first += g.stride
	return true
}

// Header writes the headers of the segment to the start of dst, which has room
// for the template, and returns them. payloadSum is Sum of the segment's payload.
func (g *Segment) Header(dst []byte, payloadSum uint16) []byte {
	if s := g.s; s.CopyLength {
		return g.headerOfLength(dst, payloadSum, s.udpLength)
	}
	return g.headerOfLength(dst, payloadSum, uint16(len(g.s.template)-g.s.Headers.L4At+g.Len))
}

// headerOfLength does what Header does, with this UDP length.
func (g *Segment) headerOfLength(dst []byte, payloadSum, udpLength uint16) []byte {
	s := g.s
	b := dst[:copy(dst, s.template)]
	s.setIPLength(b, g.Len)
	h := &s.Headers
	if h.L3 == mlx5.L3IPv4 {
		g.setIPv4ID(b[h.L3At:])
	}
	size := uint32(len(b) - h.L4At + g.Len)
	sum := uint32(s.l4Sum) + uint32(payloadSum) + size>>16 + size&0xffff
	if h.Proto == ProtoTCP {
		sum += g.setSequence(b[h.L4At:])
	} else {
		binary.BigEndian.PutUint16(b[h.L4At+4:], udpLength)
		sum += uint32(udpLength)
	}
	if s.L4Checksum {
		binary.BigEndian.PutUint16(b[h.ChecksumAt():],
			checksumOf(foldSum(sum), h.Proto == ProtoUDP))
	}
	return b
}

// setIPv4ID writes the identification and the checksum of the IPv4 header.
func (g *Segment) setIPv4ID(ip []byte) {
	s := g.s
	id := s.id + uint16(g.first)
	binary.BigEndian.PutUint16(ip[4:], id)
	if s.IPChecksum {
		length := uint16(len(s.template) - s.Headers.L3At + g.Len)
		binary.BigEndian.PutUint16(ip[10:], ^foldSum(uint32(s.ipSum)+uint32(length)+uint32(id)))
	}
}

// setSequence writes sequence number and flags and returns their sum: FIN and PSH belong to the
// last packet, CWR to the first (model's choice; drivers do not segment packets with CWR).
func (g *Segment) setSequence(tcp []byte) (sum uint32) {
	seq, flags := g.s.seq+uint32(g.At), g.s.flags
	if g.At+g.Len < g.s.total {
		flags &^= TCPFIN | TCPPSH
	}
	if g.At > 0 {
		flags &^= TCPCWR
	}
	binary.BigEndian.PutUint32(tcp[4:], seq)
	tcp[13] = flags
	return seq>>16 + seq&0xffff + uint32(flags)
}

// Unsegmented makes f, whose Data has room for header and payload of the
// segment, the unsegmented frame of the segment's packets: it writes the headers
// and sets the fields. The payload is the caller's to write.
func (g *Segment) Unsegmented(f *Frame) {
	h := &g.s.Headers
	b := g.headerOfLength(f.Data, 0, uint16(len(g.s.template)-h.L4At+g.Len))
	binary.BigEndian.PutUint16(b[h.ChecksumAt():], h.PseudoSum(b, len(b)-h.L4At+g.Len))
	f.NeedsCsum, f.CsumStart, f.CsumOffset = true, uint16(h.L4At), uint16(h.ChecksumAt()-h.L4At)
	f.HdrLen, f.MSS = uint16(len(b)), uint16(g.s.mss)
	switch g.s.Offload() {
	case OffloadTSO4:
		f.GSO = GSOTCPv4
	case OffloadTSO6:
		f.GSO = GSOTCPv6
	default:
		f.GSO = GSOUDP
	}
}

// Cut turns f into the frames that a cable carries: an unsegmented frame into its segments, with
// all checksums complete. emit is called in order; its frame is valid until it returns. buf is
// scratch memory of the caller that grows as needed. An ordinary frame with complete checksums is
// passed on without a copy; one whose headers cannot be parsed is passed on unsegmented.
func Cut(f Frame, buf *[]byte, emit func(Frame)) {
	f.MeasureHeader()
	switch {
	case f.GSO != GSONone && int(f.HdrLen) <= min(len(f.Data), MaxHeader):
		f.emitSegments(buf, emit)
	case f.NeedsCsum:
		*buf = append((*buf)[:0], f.Data...)
		f.Data, f.GSO = *buf, GSONone
		f.CompleteChecksum()
		emit(Frame{Data: f.Data})
	default:
		emit(Frame{Data: f.Data})
	}
}

// emitSegments emits the segments of an unsegmented frame.
func (f *Frame) emitSegments(buf *[]byte, emit func(Frame)) {
	var headers [MaxHeader]byte
	template := headers[:copy(headers[:], f.Data[:f.HdrLen])]
	payload := f.Data[f.HdrLen:]
	s, ok := NewSegmenter(template, int(f.MSS), len(payload))
	if !ok {
		emit(Frame{Data: f.Data})
		return
	}
	size := len(template) + int(f.MSS)
	if cap(*buf) < size {
		*buf = make([]byte, size)
	}
	for g := s.Packets(); g.Next(); {
		part := payload[g.At : g.At+g.Len]
		b := g.Header((*buf)[:size], Sum(part))
		emit(Frame{Data: append(b, part...)})
	}
}
