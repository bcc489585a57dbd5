package hdr

import (
	"encoding/binary"

	"gvisor.dev/gvisor/pkg/tcpip/checksum"
)

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

// ParseSent does what Parse does for the headers of a frame that netstack has made and that need
// not have its payload behind them: the lengths in the headers are not looked at, and End is the
// end of frame. EtherType stays 0 if the frame is shorter than any IP packet's.
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

// IsTCP reports whether the packet is TCP, no fragment, with a header of at least 20 bytes.
func (p *Packet) IsTCP() bool { return p.Proto == ProtoTCP && p.L4 > 0 && p.End-p.L4 >= TCPLen }

// validSum gives the folded sum of data that includes its own checksum.
const validSum = 0xffff

// HeaderOK verifies the IPv4 header's checksum; other frames have none.
func (p *Packet) HeaderOK(frame []byte) bool {
	if p.EtherType != TypeIPv4 || p.End == 0 {
		return true
	}
	return checksum.Checksum(frame[p.L3:p.L3+int(frame[p.L3]&15)*4], 0) == validSum
}

// TransportOK verifies the checksum of a TCP segment or UDP datagram. True of anything else, and of
// lengths that the stack refuses.
func (p *Packet) TransportOK(frame []byte) bool {
	if p.L4 == 0 {
		return true
	}
	data := frame[p.L4:p.End]
	switch p.Proto {
	case ProtoTCP:
		if len(data) < TCPLen {
			return true
		}
	case ProtoUDP:
		if len(data) < UDPLen {
			return true
		}
		n := int(binary.BigEndian.Uint16(data[4:]))
		if n < UDPLen || n > len(data) {
			return true
		}
		data = data[:n]
		if data[6]|data[7] == 0 {
			return p.EtherType == TypeIPv4 // RFC 768; RFC 8200 section 8.1
		}
	default:
		return true
	}
	return checksum.Checksum(data, p.pseudoSum(frame, len(data))) == validSum
}

// LacksChecksum reports whether a UDP datagram over IPv6 has a checksum of 0, which means none: RFC
// 8200 section 8.1 has it discarded, and so does Linux for sockets that have not asked for such
// ones (net/ipv6/udp.c __udp6_lib_rcv; RFC 6935 allows them for tunnels).
func (p *Packet) LacksChecksum(frame []byte) bool {
	return p.Proto == ProtoUDP && p.EtherType == TypeIPv6 && p.L4 != 0 && p.End-p.L4 >= UDPLen &&
		frame[p.L4+6]|frame[p.L4+7] == 0
}

// pseudoSum returns the sum of the pseudo header of n bytes of transport.
func (p *Packet) pseudoSum(frame []byte, n int) uint16 {
	addresses := frame[p.L3+12 : p.L3+20]
	if p.EtherType == TypeIPv6 {
		addresses = frame[p.L3+8 : p.L3+40]
	}
	rest := [6]byte{1: p.Proto, 2: byte(n >> 24), 3: byte(n >> 16), 4: byte(n >> 8), 5: byte(n)}
	return checksum.Checksum(rest[:], checksum.Checksum(addresses, 0))
}

// Seal writes the lengths and checksums of a frame that ends with its TCP segment.
func (p *Packet) Seal(frame []byte) {
	ip, tcp := frame[p.L3:], frame[p.L4:]
	if p.EtherType == TypeIPv6 {
		binary.BigEndian.PutUint16(ip[4:], uint16(len(ip)-IPv6Len))
	} else {
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
		ip[10], ip[11] = 0, 0
		binary.BigEndian.PutUint16(ip[10:], ^checksum.Checksum(ip[:p.L4-p.L3], 0))
	}
	tcp[16], tcp[17] = 0, 0
	binary.BigEndian.PutUint16(tcp[16:], ^checksum.Checksum(tcp, p.pseudoSum(frame, len(tcp))))
}

// SetDatagramLength makes the lengths in headers, which are Ethernet, IP without options or
// extensions, and UDP, those of a datagram with n bytes of payload.
func SetDatagramLength(headers []byte, n int) {
	ip, udp := headers[EthLen:], headers[len(headers)-UDPLen:]
	if ip[0]>>4 == 4 {
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+n))
	} else {
		binary.BigEndian.PutUint16(ip[4:], uint16(len(ip)-IPv6Len+n))
	}
	binary.BigEndian.PutUint16(udp[4:], uint16(UDPLen+n))
}

// FlowHash spreads TCP flows. The frame is IP without options or extensions, with ports at L4.
func (p *Packet) FlowHash(frame []byte) uint32 {
	ports := binary.BigEndian.Uint32(frame[p.L4:])
	return mix(p.addressBits(frame), ports)
}

// QueueHash keeps the packets sent between one pair of addresses on one queue; of UDP that is no
// fragment, those between one pair of addresses and ports. p is from ParseSent. 0: it is no IP.
func (p *Packet) QueueHash(frame []byte) uint32 {
	switch p.EtherType {
	case TypeIPv4:
	case TypeIPv6:
		if len(frame) < EthLen+IPv6Len {
			return 0
		}
	default:
		return 0
	}
	ports := uint32(0)
	if p.Proto == ProtoUDP && p.L4 > 0 && len(frame) >= p.L4+4 {
		ports = binary.BigEndian.Uint32(frame[p.L4:])
	}
	return mix(p.addressBits(frame), ports)
}

// addressBits folds both IP addresses into 64 bits.
func (p *Packet) addressBits(frame []byte) (bits uint64) {
	h := frame[p.L3:]
	if p.EtherType != TypeIPv6 {
		return binary.BigEndian.Uint64(h[12:])
	}
	for at := 8; at < IPv6Len; at += 8 {
		bits = bits*31 + binary.BigEndian.Uint64(h[at:])
	}
	return bits
}

func mix(addresses uint64, ports uint32) uint32 {
	return uint32((addresses ^ uint64(ports)<<16) * 0x9e3779b97f4a7c15 >> 40)
}

// ClassSelector returns the upper three bits of a packet's DSCP (RFC 2474 section 4.2.2); 0 of
// what is not IP.
func ClassSelector(frame []byte) uint8 {
	if len(frame) < EthLen+2 {
		return 0
	}
	switch ip := frame[EthLen:]; binary.BigEndian.Uint16(frame[12:]) {
	case TypeIPv4:
		return ip[1] >> 5
	case TypeIPv6:
		return ip[0] & 15 >> 1
	}
	return 0
}
