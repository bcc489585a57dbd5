package filter

import "encoding/binary"

// Packet holds what rules look at in an IP packet.
type Packet struct {
	family       uint8 // 4 or 6
	group        kind
	proto        uint8 // of what is behind the IP headers
	known        bool  // proto is: not of later fragments that begin with an extension header
	ports, typed bool  // the ports, or the type of ICMP, are there
	fragment     bool  // the packet is one piece of several
	later        bool  // and not the first
	flags        uint8 // of TCP, if hasFlags
	hasFlags     bool
	kind         uint8 // of ICMP
	sport, dport uint16
	ident        uint16 // of an echo request or reply
	id           uint32 // of a fragment's datagram
	src, dst     address
	payload      int // where what is behind the IP headers begins
}

const (
	ipv4Len    = 20
	ipv6Len    = 40
	offsetBits = 0x1fff // of the fragment word of IPv4
	moreBit    = 0x2000

	extHopByHop    = 0
	extRouting     = 43
	extFragment    = 44
	extAuth        = 51
	extNone        = 59
	extDestination = 60

	flagFIN = 1
	flagSYN = 2
	flagRST = 4
	flagACK = 16
)

func bigEndian64(b []byte) uint64 { return binary.BigEndian.Uint64(b) }

// Read reads a packet that begins with its IP header; of what follows the headers nothing need be
// there. False: it is none.
func (p *Packet) Read(ip []byte) bool {
	if len(ip) < ipv4Len {
		return false
	}
	switch ip[0] >> 4 {
	case 4:
		return p.readIPv4(ip)
	case 6:
		return len(ip) >= ipv6Len && p.readIPv6(ip)
	}
	return false
}

func (p *Packet) readIPv4(ip []byte) bool {
	header := int(ip[0]&15) * 4
	if header < ipv4Len || header > len(ip) {
		return false
	}
	addresses := binary.BigEndian.Uint64(ip[12:])
	p.family, p.group, p.proto, p.known = 4, kindOther, ip[9], true
	p.ports, p.typed, p.fragment, p.later, p.hasFlags = false, false, false, false, false
	p.flags, p.kind, p.sport, p.dport, p.ident, p.id = 0, 0, 0, 0, 0, 0
	p.payload = header
	p.src.hi, p.src.lo, p.dst.hi, p.dst.lo = addresses>>32, 0, addresses&0xffffffff, 0
	if word := binary.BigEndian.Uint16(ip[6:]); word&(offsetBits|moreBit) != 0 {
		p.fragment, p.later = true, word&offsetBits != 0
		p.id = uint32(binary.BigEndian.Uint16(ip[4:]))
	}
	p.readTransport(ip[header:])
	return true
}

func (p *Packet) readIPv6(ip []byte) bool {
	*p = Packet{family: 6, proto: ip[6], known: true, payload: ipv6Len,
		src: address{bigEndian64(ip[8:]), bigEndian64(ip[16:])},
		dst: address{bigEndian64(ip[24:]), bigEndian64(ip[32:])}}
	for isExtension(p.proto) {
		h := ip[min(p.payload, len(ip)):]
		if len(h) < 8 {
			p.known, p.group = false, kindOther
			return true
		}
		size := 8 + 8*int(h[1])
		switch p.proto {
		case extAuth: // RFC 4302 counts words of 4 bytes
			size = 8 + 4*int(h[1])
		case extFragment:
			size, p.fragment = 8, true
			p.later = binary.BigEndian.Uint16(h[2:])>>3 != 0
			p.id = binary.BigEndian.Uint32(h[4:])
		}
		p.proto, p.payload = h[0], p.payload+size
		if p.later {
			p.known = !isExtension(p.proto)
			p.group = p.groupOf()
			return true
		}
	}
	p.readTransport(ip[min(p.payload, len(ip)):])
	return true
}

func isExtension(proto uint8) bool {
	switch proto {
	case extHopByHop, extRouting, extFragment, extAuth, extDestination:
		return true
	}
	return false
}

// readTransport reads what is behind the IP headers.
func (p *Packet) readTransport(b []byte) {
	p.group = p.groupOf()
	if p.later || len(b) == 0 {
		return
	}
	switch p.proto {
	case protoTCP:
		if len(b) >= 14 {
			p.hasFlags, p.flags = true, b[13]
		}
		fallthrough
	case protoUDP:
		if len(b) >= 4 {
			word := binary.BigEndian.Uint32(b)
			p.ports, p.sport, p.dport = true, uint16(word>>16), uint16(word)
		}
	case protoICMP, protoICMPv6:
		p.typed, p.kind = true, b[0]
		if len(b) >= 6 {
			p.ident = binary.BigEndian.Uint16(b[4:])
		}
	}
}

// groupOf returns the kind of a packet.
func (p *Packet) groupOf() kind {
	switch {
	case !p.known:
	case p.proto == protoTCP:
		return kindTCP
	case p.proto == protoUDP:
		return kindUDP
	case p.proto == protoICMP && p.family == 4, p.proto == protoICMPv6 && p.family == 6:
		return kindICMP
	}
	return kindOther
}

// reversed returns an answer to p.
func (p *Packet) reversed() Packet {
	r := *p
	r.src, r.dst, r.sport, r.dport = p.dst, p.src, p.dport, p.sport
	switch {
	case p.proto == protoICMP && p.kind == echoRequest4:
		r.kind = echoReply4
	case p.proto == protoICMPv6 && p.kind == echoRequest6:
		r.kind = echoReply6
	}
	return r
}

// Types of ICMP.
const (
	echoReply4, echoRequest4 = 0, 8
	echoReply6, echoRequest6 = 129, 128
)

// isError reports messages about a packet that was sent.
func (p *Packet) isError() bool {
	switch {
	case !p.typed:
		return false
	case p.proto == protoICMP && p.family == 4:
		return p.kind == 3 || p.kind == 11 || p.kind == 12
	}
	return p.proto == protoICMPv6 && p.family == 6 && p.kind >= 1 && p.kind <= 4
}

// isAnswer reports what may answer something that this host has begun.
func (p *Packet) isAnswer() bool {
	switch p.proto {
	case protoTCP:
		return p.hasFlags && p.flags&(flagSYN|flagACK) != flagSYN
	case protoUDP:
		return p.ports
	case protoICMP:
		return p.typed && p.kind == echoReply4
	case protoICMPv6:
		return p.typed && p.kind == echoReply6
	}
	return false
}

// isHousekeeping reports what a host's link and addresses live on, which no policy drops (a
// rule may): neighbour and router discovery, membership of groups, and what DHCP's clients and
// servers say to each other.
func (p *Packet) isHousekeeping() bool {
	switch p.proto {
	case protoIGMP:
		return p.family == 4
	case protoICMPv6:
		return p.typed && p.family == 6 && (p.kind >= 130 && p.kind <= 136 || p.kind == 143)
	case protoUDP:
		return p.ports && isHousekeepingPort(p.sport, p.dport)
	}
	return false
}

// Ports of DHCP's servers and clients: two of IPv4 in a row, and two of IPv6.
const (
	dhcpServer4 = 67
	dhcpClient4 = 68
	dhcpClient6 = 546
	dhcpServer6 = 547
)

// isHousekeepingPort reports the ports of DHCP's clients and servers.
func isHousekeepingPort(from, to uint16) bool {
	switch uint32(from) + uint32(to) {
	case dhcpServer4 + dhcpClient4:
		return min(from, to) == dhcpServer4
	case dhcpClient6 + dhcpServer6:
		return min(from, to) == dhcpClient6
	}
	return false
}
