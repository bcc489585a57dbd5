package simnic

import (
	"encoding/binary"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
)

// Numbers of protocols, from IANA.
const (
	etherVLAN  = 0x8100 // C-tag
	etherQinQ  = 0x88a8 // S-tag
	etherIPv4  = 0x0800
	etherIPv6  = 0x86dd
	protoHop   = 0
	protoTCP   = 6
	protoUDP   = 17
	protoRoute = 43
	protoFrag  = 44
	protoAH    = 51
	protoOpts  = 60
)

// Sizes of headers in bytes.
const (
	etherHeader = 14
	vlanTag     = 4
	ipv6Header  = 40
	tcpHeader   = 20
	udpHeader   = 8
	minFrame    = 60 // of a wire, without FCS
)

// parsed is what the device makes of a frame's headers. Offsets are bytes from
// the start of the frame.
type parsed struct {
	tags      uint8  // VLAN tags, at most 2 looked at
	l3        uint8  // mlx5.L3IPv4, L3IPv6 or L3Other
	proto     uint8  // IP protocol behind extension headers
	frag      bool   // IP fragment, the first one included
	ext       bool   // IPv4 options or IPv6 extension headers
	short     bool   // the datagram is longer than the frame
	tpid      uint16 // type of the first tag
	tci       uint16 // the first tag
	etherType uint16 // behind the tags
	l3At      int    // L3 header
	l4At      int    // L4 header, 0 without one that is whole
	l4Len     int    // bytes of the L4 header
	end       int    // end of the datagram, at most the frame's
}

// parse reads the headers of a frame of at least 14 bytes.
func parse(b []byte) (p parsed) {
	p.l3At = etherHeader
	p.etherType = binary.BigEndian.Uint16(b[12:])
	for p.tags < 2 && (p.etherType == etherVLAN || p.etherType == etherQinQ) && len(b) >= p.l3At+vlanTag {
		if p.tags == 0 {
			p.tpid, p.tci = p.etherType, binary.BigEndian.Uint16(b[p.l3At:])
		}
		p.etherType = binary.BigEndian.Uint16(b[p.l3At+2:])
		p.tags++
		p.l3At += vlanTag
	}
	p.end = len(b)
	switch p.etherType {
	case etherIPv4:
		p.parseIPv4(b)
	case etherIPv6:
		p.parseIPv6(b)
	}
	return p
}

func (p *parsed) parseIPv4(b []byte) {
	h := b[p.l3At:]
	if len(h) < 20 || h[0]>>4 != 4 {
		return
	}
	size, total := int(h[0]&15)*4, int(binary.BigEndian.Uint16(h[2:]))
	if size < 20 || size > len(h) || total < size {
		return
	}
	p.l3 = mlx5.L3IPv4
	p.proto = h[9]
	p.ext = size > 20
	p.frag = binary.BigEndian.Uint16(h[6:])&0x3fff != 0
	p.setEnd(b, total)
	p.parseL4(b, p.l3At+size)
}

func (p *parsed) parseIPv6(b []byte) {
	h := b[p.l3At:]
	if len(h) < ipv6Header || h[0]>>4 != 6 {
		return
	}
	p.l3 = mlx5.L3IPv6
	p.setEnd(b, ipv6Header+int(binary.BigEndian.Uint16(h[4:])))
	p.proto = h[6]
	at := p.l3At + ipv6Header
	for at+8 <= p.end {
		size := 8 + 8*int(b[at+1])
		switch p.proto {
		case protoHop, protoRoute, protoOpts:
		case protoFrag:
			size, p.frag = 8, true
		case protoAH:
			size = 8 + 4*int(b[at+1])
		default:
			p.parseL4(b, at)
			return
		}
		p.ext = true
		p.proto = b[at]
		at += size
	}
}

// setEnd notes where a datagram of total bytes ends.
func (p *parsed) setEnd(b []byte, total int) {
	p.end = p.l3At + total
	if p.end > len(b) {
		p.end, p.short = len(b), true
	}
}

// parseL4 looks for a whole TCP or UDP header at at.
func (p *parsed) parseL4(b []byte, at int) {
	if p.frag {
		return
	}
	switch {
	case p.proto == protoUDP && at+udpHeader <= p.end:
		p.l4At, p.l4Len = at, udpHeader
	case p.proto == protoTCP && at+tcpHeader <= p.end:
		if n := int(b[at+12]>>4) * 4; n >= tcpHeader && at+n <= p.end {
			p.l4At, p.l4Len = at, n
		}
	}
}

// csumAt is where the L4 checksum is.
func (p *parsed) csumAt() int {
	if p.proto == protoTCP {
		return p.l4At + 16
	}
	return p.l4At + 6
}

// TCP flags, RFC 9293 section 3.1.
const (
	tcpFIN = 0x01
	tcpPSH = 0x08
	tcpACK = 0x10
	tcpCWR = 0x80
)
