package hdr

import (
	"encoding/binary"

	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/internal/random"
)

// Segment describes one packet that is sent, or one TCP segment that was received, with what its
// readers need of its headers. The goroutine that sends or receives it owns it.
type Segment struct {
	Packet
	// Frame begins with the Ethernet header. Of a received frame it ends with the IP packet; of a
	// packet sent it is the buffer with all headers.
	Frame []byte
	// Payload is the bytes behind the headers.
	Payload int

	key      random.HashKey
	hash     uint64
	tuple    Tuple
	received bool
	keyed    bool // tuple and hash are valid
	read     bool // options is valid
	options  optionOffsets
}

// ParseSent finds the headers of a packet that netstack has made. All callers that pass the result
// on to each other use the same key.
func ParseSent(pkt *gstack.PacketBuffer, key random.HashKey) (s Segment) {
	s.Frame, s.Payload, s.key = SentHeaders(pkt), pkt.Data().Size(), key
	s.parseSent(s.Frame)
	return s
}

// ParseSent is Parse for the headers of a frame that netstack has made and that need not have its
// payload behind them: the lengths in the headers are not looked at, and End is the end of frame.
// EtherType is 0 if the frame is shorter than any IP packet's.
func (p *Packet) ParseSent(frame []byte) {
	*p = Packet{}
	p.parseSent(frame)
}

func (p *Packet) parseSent(frame []byte) {
	if len(frame) < EthLen+IPv4Len {
		return
	}
	p.L3, p.End = EthLen, len(frame)
	switch p.EtherType = binary.BigEndian.Uint16(frame[12:]); p.EtherType {
	case TypeIPv4:
		p.Proto = frame[EthLen+9]
		if p.Fragment = binary.BigEndian.Uint16(frame[EthLen+6:])&fragmentBits != 0; p.Fragment {
			return
		}
		p.L4 = EthLen + int(frame[EthLen]&15)*4
	case TypeIPv6:
		p.Proto = frame[EthLen+6]
		p.L4 = EthLen + IPv6Len
	}
}

// Received returns a TCP segment that was received: p has been parsed from frame, and IsTCP.
func Received(frame []byte, p *Packet, key random.HashKey) Segment {
	s := Segment{Packet: *p, Frame: frame[:p.End], key: key, received: true}
	s.Payload = p.End - p.L4 - int(frame[p.L4+12]>>4)*4
	return s
}

// IsTCP reports whether the packet is TCP, no fragment, with a header of at least 20 bytes.
func (p *Packet) IsTCP() bool { return p.Proto == ProtoTCP && p.L4 > 0 && p.End-p.L4 >= TCPLen }

// TCP returns the TCP header and what follows it in Frame.
func (s *Segment) TCP() []byte { return s.Frame[s.L4:] }

// Flags returns the TCP flags.
func (s *Segment) Flags() byte { return s.Frame[s.L4+13] }

// Window returns the window field, not scaled.
func (s *Segment) Window() uint16 { return binary.BigEndian.Uint16(s.Frame[s.L4+14:]) }

// Flow returns the tuple of the flow in the direction that we send, and its hash by the key. Both
// are computed once.
func (s *Segment) Flow() (*Tuple, uint64) {
	if !s.keyed {
		s.keyed = true
		if s.received {
			s.tuple = s.Packet.reversedTuple(s.Frame)
		} else {
			s.tuple = s.Packet.tuple(s.Frame)
		}
		s.hash = s.key.Bytes(s.tuple[:])
	}
	return &s.tuple, s.hash
}

// ReceivedFlow returns the hash of [Segment.Flow] of a received TCP segment, for those who need no
// more of it. p has been parsed from frame.
func (p *Packet) ReceivedFlow(frame []byte, key random.HashKey) uint64 {
	t := p.reversedTuple(frame)
	return key.Bytes(t[:])
}

// Options are read once. The slices refer to Frame.
func (s *Segment) Options() (o Options) {
	s.readOptions()
	return s.options.in(s.TCP())
}

// MayHaveSACK reports whether there is a SACK option, or options that make no sense.
func (s *Segment) MayHaveSACK() bool {
	if tcp := s.TCP(); tcp[12]>>4 == TCPLen/4 || StampOnly(tcp) {
		return false
	}
	s.readOptions()
	return s.options.sack != 0 || s.options.malformed
}

func (s *Segment) readOptions() {
	if !s.read {
		s.options, s.read = offsetsOf(s.TCP()), true
	}
}

// SentHeaders returns the first bytes of an outgoing packet, its Ethernet header first. netstack
// pushes all headers into one view.
func SentHeaders(pkt *gstack.PacketBuffer) []byte {
	views, offset := pkt.AsViewList()
	for v := views.Front(); v != nil; v = v.Next() {
		if b := v.AsSlice(); offset < len(b) {
			return b[offset:]
		}
		offset -= v.Size()
	}
	return nil
}
