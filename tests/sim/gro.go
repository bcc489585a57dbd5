package sim

import (
	"bytes"
	"encoding/binary"
	"slices"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// heldFrame is a frame as an interface gives it to packet sockets.
type heldFrame struct {
	data []byte
	// gso is the payload of each segment but the last of a merged frame, 0: it is as it came
	gso uint16
}

// segment is where the headers of a TCP segment are in a frame.
type segment struct {
	frame []byte
	v6    bool
	key   flowKey
}

const (
	tcpAt4 = header.EthernetMinimumSize + header.IPv4MinimumSize
	tcpAt6 = header.EthernetMinimumSize + header.IPv6MinimumSize
	// maxMerged is the most bytes of a merged frame.
	maxMerged = header.EthernetMinimumSize + 0xffff
)

// segmentOf finds the headers of a TCP segment that is whole, without IP options and with right
// checksums: GRO merges no others.
func segmentOf(f []byte) (s segment, ok bool) {
	s.frame = f
	ip := f[header.EthernetMinimumSize:]
	switch header.Ethernet(f).Type() {
	case header.IPv4ProtocolNumber:
		h := header.IPv4(ip)
		if len(f) < tcpAt4 || !h.IsValid(len(ip)) || !h.IsChecksumValid() || h.More() ||
			h.FragmentOffset() > 0 || h.HeaderLength() != header.IPv4MinimumSize ||
			h.Protocol() != uint8(header.TCPProtocolNumber) || int(h.TotalLength()) != len(ip) {
			return s, false
		}
		s.key.from, s.key.to = h.SourceAddress(), h.DestinationAddress()
	case header.IPv6ProtocolNumber:
		h := header.IPv6(ip)
		if len(f) < tcpAt6 || !h.IsValid(len(ip)) ||
			h.NextHeader() != uint8(header.TCPProtocolNumber) ||
			int(h.PayloadLength())+header.IPv6MinimumSize != len(ip) {
			return s, false
		}
		s.v6, s.key.from, s.key.to = true, h.SourceAddress(), h.DestinationAddress()
	default:
		return s, false
	}
	t := s.tcp()
	if len(t) < header.TCPMinimumSize || int(t.DataOffset()) > len(t) {
		return s, false
	}
	s.key.ports = [4]byte(t[:4])
	return s, t.IsChecksumValid(s.key.from, s.key.to, checksum.Checksum(t.Payload(), 0),
		uint16(len(t.Payload())))
}

func (s *segment) tcpAt() int {
	if s.v6 {
		return tcpAt6
	}
	return tcpAt4
}

func (s *segment) tcp() header.TCP { return header.TCP(s.frame[s.tcpAt():]) }

// grouper merges TCP segments of one batch as GRO does (linux net/ipv4/tcp_offload.c
// tcp_gro_receive), up to a number of each.
type grouper struct {
	most int
	out  []heldFrame
	open map[flowKey]*merged
}

// merged is a frame that the next segment of its flow may be merged with.
type merged struct {
	segment
	at, count int // in out; segments
	mss       int
}

// merge returns the frames with segments merged.
func (g *grouper) merge(frames [][]byte) []heldFrame {
	g.open = map[flowKey]*merged{}
	for _, f := range frames {
		s, ok := segmentOf(f)
		if ok && g.add(s) {
			continue
		}
		g.out = append(g.out, heldFrame{data: f})
		if !ok {
			continue
		}
		delete(g.open, s.key)
		if t := s.tcp(); len(t.Payload()) > 0 && !last(t.Flags()) {
			g.open[s.key] = &merged{s, len(g.out) - 1, 1, len(t.Payload())}
		}
	}
	for i := range g.out {
		if g.out[i].gso > 0 {
			finish(g.out[i].data)
		}
	}
	return g.out
}

// last reports whether nothing follows a segment in its frame.
func last(flags header.TCPFlags) bool {
	return flags&^(header.TCPFlagAck|header.TCPFlagCwr) != 0
}

// add merges a segment with the frame before.
func (g *grouper) add(s segment) bool {
	o := g.open[s.key]
	if o == nil {
		return false
	}
	a, b := o.tcp(), s.tcp()
	n := len(b.Payload())
	differ := (a.Flags()^b.Flags())&^(header.TCPFlagFin|header.TCPFlagPsh) != 0
	if differ || n == 0 || n > o.mss || o.count == g.most || len(o.frame)+n > maxMerged ||
		a.AckNumber() != b.AckNumber() || !bytes.Equal(a.Options(), b.Options()) ||
		a.SequenceNumber()+uint32(len(a.Payload())) != b.SequenceNumber() ||
		!bytes.Equal(o.network(), s.network()) {
		return false
	}
	o.frame = append(slices.Clip(o.frame), b.Payload()...)
	t := o.tcp()
	t.SetFlags(uint8(a.Flags() | b.Flags()))
	o.count++
	g.out[o.at] = heldFrame{o.frame, uint16(o.mss)}
	if n < o.mss || last(b.Flags()) {
		delete(g.open, s.key)
	}
	return true
}

// network is what must be alike in Ethernet and IP headers: all but length, identification and
// checksum.
func (s *segment) network() []byte {
	h := slices.Clone(s.frame[:s.tcpAt()])
	ip := h[header.EthernetMinimumSize:]
	if s.v6 {
		clear(ip[4:6])
		return h
	}
	clear(ip[2:6])
	clear(ip[10:12])
	return h
}

// finish writes the lengths and checksums of a merged frame: TCP's has the sum of the pseudo-header
// only.
func finish(f []byte) {
	ip := f[header.EthernetMinimumSize:]
	var from, to tcpip.Address
	at := tcpAt4
	if header.Ethernet(f).Type() == header.IPv6ProtocolNumber {
		h := header.IPv6(ip)
		h.SetPayloadLength(uint16(len(ip) - header.IPv6MinimumSize))
		from, to, at = h.SourceAddress(), h.DestinationAddress(), tcpAt6
	} else {
		h := header.IPv4(ip)
		h.SetTotalLength(uint16(len(ip)))
		h.SetChecksum(0)
		h.SetChecksum(^h.CalculateChecksum())
		from, to = h.SourceAddress(), h.DestinationAddress()
	}
	binary.BigEndian.PutUint16(f[at+header.TCPChecksumOffset:], header.PseudoHeaderChecksum(
		header.TCPProtocolNumber, from, to, uint16(len(f)-at)))
}
