package hdr

import "encoding/binary"

// Sizes and offsets of headers, in bytes.
const (
	EthLen  = 14
	IPv4Len = 20
	IPv6Len = 40
	TCPLen  = 20
	UDPLen  = 8
	// MaxLen gives the length of the headers of a frame that can be merged, at most.
	MaxLen = EthLen + IPv6Len + 60
)

// EtherTypes and protocol numbers.
const (
	TypeIPv4 = 0x0800
	TypeIPv6 = 0x86dd

	ProtoICMP   = 1
	ProtoIGMP   = 2
	ProtoTCP    = 6
	ProtoUDP    = 17
	ProtoICMPv6 = 58

	ExtHopByHop    = 0
	ExtRouting     = 43
	ExtFragment    = 44
	ExtDestOptions = 60
)

// fragmentBits of the IPv4 flags and offset: more fragments, or an offset (RFC 791 section 3.1).
const fragmentBits = 0x3fff

// Packet says where the headers of one frame are. Offsets count from the frame's first byte.
type Packet struct {
	L3        int // the IP header
	L4        int // the transport header; 0: none, or a fragment
	End       int // the end of the IP packet; Ethernet padding may follow
	EtherType uint16
	Proto     uint8
	Fragment  bool
	Plain     bool // received, with an IP header without options or extensions
}

// Parse finds the headers of a received IP frame, whose EtherType and L3 are set. L4 of a frame
// whose lengths make no sense is 0; the stack drops and counts it.
func (p *Packet) Parse(frame []byte) {
	switch p.EtherType {
	case TypeIPv4:
		p.parseIPv4(frame)
	case TypeIPv6:
		p.parseIPv6(frame)
	}
}

// ParseDatagram makes p that of a received frame, of any length, and reports true if it has no VLAN
// tag and has a UDP datagram behind an IP header without options or extensions, whole, with lengths
// that agree, and over IPv6 with a checksum. Else it reports false and leaves p alone. It verifies
// no checksum.
func (p *Packet) ParseDatagram(frame []byte) bool {
	const l4, l6 = EthLen + IPv4Len, EthLen + IPv6Len
	if len(frame) < l4+UDPLen {
		return false
	}
	h := (*[l4 + UDPLen]byte)(frame)
	switch kind := binary.BigEndian.Uint32(h[12:]); {
	case kind>>8 == TypeIPv4<<8|0x45:
		n := int(binary.BigEndian.Uint16(h[l4+4:]))
		if h[EthLen+9] != ProtoUDP || binary.BigEndian.Uint16(h[EthLen+6:])&fragmentBits != 0 ||
			n < UDPLen || int(binary.BigEndian.Uint16(h[EthLen+2:])) != IPv4Len+n ||
			l4+n > len(frame) {
			return false
		}
		*p = Packet{L3: EthLen, L4: l4, End: l4 + n, EtherType: TypeIPv4, Proto: ProtoUDP,
			Plain: true}
		return true
	case kind>>12 == TypeIPv6<<4|6 && len(frame) >= l6+UDPLen:
		h := (*[l6 + UDPLen]byte)(frame)
		n := int(binary.BigEndian.Uint16(h[EthLen+4:]))
		if h[EthLen+6] != ProtoUDP || n < UDPLen || int(binary.BigEndian.Uint16(h[l6+4:])) != n ||
			binary.BigEndian.Uint16(h[l6+6:]) == 0 || l6+n > len(frame) {
			return false
		}
		*p = Packet{L3: EthLen, L4: l6, End: l6 + n, EtherType: TypeIPv6, Proto: ProtoUDP,
			Plain: true}
		return true
	}
	return false
}

func (p *Packet) parseIPv4(frame []byte) {
	h := frame[p.L3:]
	if len(h) < IPv4Len || h[0]>>4 != 4 {
		return
	}
	header, total := int(h[0]&15)*4, int(binary.BigEndian.Uint16(h[2:]))
	if header < IPv4Len || total < header || total > len(h) {
		return
	}
	p.Proto = h[9]
	p.End = p.L3 + total
	p.Plain = header == IPv4Len
	if binary.BigEndian.Uint16(h[6:])&fragmentBits != 0 {
		p.Fragment = true
		return
	}
	p.L4 = p.L3 + header
}

func (p *Packet) parseIPv6(frame []byte) {
	h := frame[p.L3:]
	if len(h) < IPv6Len || h[0]>>4 != 6 {
		return
	}
	total := IPv6Len + int(binary.BigEndian.Uint16(h[4:]))
	if total > len(h) {
		return
	}
	p.Proto = h[6]
	p.End = p.L3 + total
	p.Plain = true
	at := IPv6Len
	for {
		switch p.Proto {
		case ExtHopByHop, ExtRouting, ExtDestOptions:
			if at+8 > total {
				return
			}
			p.Plain = false
			p.Proto, at = h[at], at+8+8*int(h[at+1])
			continue
		case ExtFragment:
			p.Fragment = true
			return
		}
		if at <= total {
			p.L4 = p.L3 + at
		}
		return
	}
}
