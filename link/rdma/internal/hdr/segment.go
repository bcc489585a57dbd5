package hdr

import (
	"encoding/binary"

	"gvisor.dev/gvisor/pkg/tcpip/header"
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

// Received returns a TCP segment that was received: p has been parsed from frame, and IsTCP.
func Received(frame []byte, p *Packet, key random.HashKey) Segment {
	s := Segment{Packet: *p, Frame: frame[:p.End], key: key, received: true}
	s.Payload = p.End - p.L4 - int(frame[p.L4+12]>>4)*4
	return s
}

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

// TCP flags, RFC 9293 section 3.1.
const (
	FlagFIN = 0x01
	FlagSYN = 0x02
	FlagRST = 0x04
	FlagPSH = 0x08
	FlagACK = 0x10
	FlagURG = 0x20
	FlagCWR = 0x80

	// FlagsLast end a run of segments that may be merged.
	FlagsLast = FlagPSH | FlagFIN
	// FlagsSpecial holds those of segments that are never merged.
	FlagsSpecial = FlagSYN | FlagRST | FlagURG | FlagCWR
)

// TCP option kinds.
const (
	OptEnd       = 0
	OptNop       = 1
	OptSACK      = 5 // RFC 2018
	OptTimestamp = 8 // RFC 7323
)

// TimestampLen gives the length of a timestamp option, in bytes: kind, length, value at offset 2,
// echo at 6.
const TimestampLen = 10

// Options holds the options of a TCP segment that the link looks at. Both slices begin with the
// kind and refer to the frame; nil: the segment has no such option, or one of a wrong length.
type Options struct {
	Timestamp []byte // TimestampLen bytes
	SACK      []byte // of any length from 2
	// Malformed: the options end in one whose length makes no sense.
	Malformed bool
}

// optionOffsets holds Options as offsets from the TCP header, so that a Segment is small; 0: none.
type optionOffsets struct {
	stamp, sack, sackLen uint8
	malformed            bool
}

func (f optionOffsets) in(tcp []byte) (o Options) {
	if f.stamp != 0 {
		o.Timestamp = tcp[f.stamp:][:TimestampLen:TimestampLen]
	}
	if f.sack != 0 {
		o.SACK = tcp[f.sack:][:f.sackLen:f.sackLen]
	}
	o.Malformed = f.malformed
	return o
}

// OptionsOf reads the first timestamp and the first SACK option of a TCP segment. It stops at the
// first option that makes no sense. There are none if the header length makes no sense.
func OptionsOf(tcp []byte) Options { return offsetsOf(tcp).in(tcp) }

// StampOnly reports whether the options of a TCP segment are two NOPs and a timestamp, as most
// senders lay it out (RFC 7323 appendix A), and nothing else.
func StampOnly(tcp []byte) bool {
	const layout = OptNop<<24 | OptNop<<16 | OptTimestamp<<8 | TimestampLen
	return tcp[12]>>4 == (TCPLen+2+TimestampLen)/4 && len(tcp) >= TCPLen+2+TimestampLen &&
		binary.BigEndian.Uint32(tcp[TCPLen:]) == layout
}

func offsetsOf(tcp []byte) (f optionOffsets) {
	if StampOnly(tcp) {
		return optionOffsets{stamp: TCPLen + 2}
	}
	return offsetsOfAny(tcp)
}

// offsetsOfAny does what offsetsOf does for any layout.
func offsetsOfAny(tcp []byte) (f optionOffsets) {
	end := int(tcp[12]>>4) * 4
	if end > len(tcp) {
		return f
	}
	stamped := false
	for at := TCPLen; at < end; {
		switch tcp[at] {
		case OptEnd:
			return f
		case OptNop:
			at++
			continue
		}
		if at+1 == end || tcp[at+1] < 2 || int(tcp[at+1]) > end-at {
			f.malformed = true
			return f
		}
		n := tcp[at+1]
		switch {
		case tcp[at] == OptSACK && f.sack == 0:
			f.sack, f.sackLen = uint8(at), n
		case tcp[at] == OptTimestamp && !stamped:
			if stamped = true; n == TimestampLen {
				f.stamp = uint8(at)
			}
		}
		at += int(n)
	}
	return f
}

// SYNOptions returns the maximum segment size, the scale of windows and whether SACK is permitted
// in the options of a SYN, as netstack reads them.
func SYNOptions(tcp []byte) (mss uint16, scale uint8, sack bool) {
	end := max(TCPLen, min(int(tcp[12]>>4)*4, len(tcp)))
	o := header.ParseSynOptions(tcp[TCPLen:end], true)
	return o.MSS, uint8(max(o.WS, 0)), o.SACKPermitted // -1: there is none
}

// Before reports whether sequence number a comes before b, RFC 9293 section 3.4.
func Before(a, b uint32) bool { return int32(a-b) < 0 }

// Numbers returns the sequence and the ACK number of a TCP segment.
func Numbers(tcp []byte) (seq, ack uint32) {
	return binary.BigEndian.Uint32(tcp[4:]), binary.BigEndian.Uint32(tcp[8:])
}

// Tuple holds the addresses and ports of a flow: source and destination address, 16 bytes each, an
// IPv4 address in the first four, then source and destination port.
type Tuple [36]byte

// Source returns the source address with zeros behind an IPv4 address; of a flow in the direction
// that we send ours.
func (t *Tuple) Source() []byte { return t[:16] }

// Ports returns the source and the destination port.
func (t *Tuple) Ports() (from, to uint16) {
	return binary.BigEndian.Uint16(t[32:]), binary.BigEndian.Uint16(t[34:])
}

// Destination returns the destination address with zeros behind an IPv4 address; of a flow in the
// direction that we send the peer's.
func (t *Tuple) Destination() []byte { return t[16:32] }

// tuple reads the tuple of a frame's TCP segment.
func (p *Packet) tuple(frame []byte) (t Tuple) {
	if h := frame[p.L3:]; p.EtherType == TypeIPv6 {
		copy(t[:32], h[8:IPv6Len])
	} else {
		copy(t[:4], h[12:16])
		copy(t[16:20], h[16:20])
	}
	copy(t[32:], frame[p.L4:p.L4+4])
	return t
}

// reversedTuple reads the tuple of a received frame's TCP segment in the direction that we send.
func (p *Packet) reversedTuple(frame []byte) (t Tuple) {
	if h := frame[p.L3:]; p.EtherType == TypeIPv6 {
		copy(t[:16], h[24:IPv6Len])
		copy(t[16:32], h[8:24])
	} else {
		copy(t[:4], h[16:20])
		copy(t[16:20], h[12:16])
	}
	copy(t[32:34], frame[p.L4+2:p.L4+4])
	copy(t[34:], frame[p.L4:p.L4+2])
	return t
}

// Quoted returns the TCP segment of ours that a message of ICMP reports an error about, as far as
// it is there: addresses, ports and sequence number are (RFC 792). ok is false if the message
// reports no error, or one about something else.
func Quoted(frame []byte, p *Packet, key random.HashKey) (s Segment, ok bool) {
	const (
		messageLen = 8
		leastTCP   = 8
		offsetBits = 0x1fff
	)
	at := p.L4 + messageLen
	if p.L4 == 0 || p.End < at {
		return s, false
	}
	s = Segment{Packet: Packet{L3: at, End: p.End, EtherType: p.EtherType, Proto: ProtoTCP},
		Frame: frame[:p.End], key: key}
	h, kind := frame[at:p.End], frame[p.L4]
	switch {
	case p.Proto == ProtoICMP && len(h) >= IPv4Len && (kind == 3 || kind == 11 || kind == 12):
		s.L4 = at + int(h[0]&15)*4
		ok = h[0]>>4 == 4 && h[9] == ProtoTCP && binary.BigEndian.Uint16(h[6:])&offsetBits == 0
	case p.Proto == ProtoICMPv6 && len(h) >= IPv6Len && kind < 128:
		s.L4 = at + IPv6Len
		ok = h[0]>>4 == 6 && h[6] == ProtoTCP
	}
	return s, ok && s.L4 >= at+IPv4Len && s.L4+leastTCP <= p.End
}
