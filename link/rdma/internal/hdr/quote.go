package hdr

import (
	"encoding/binary"

	"github.com/rdma-netstack/rdma-netstack/internal/random"
)

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
