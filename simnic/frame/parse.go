package frame

import (
	"encoding/binary"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
)

// EtherTypes and IP protocol numbers, as IANA assigns them.
const (
	EtherVLAN  = 0x8100 // C-tag
	EtherQinQ  = 0x88a8 // S-tag
	EtherIPv4  = 0x0800
	EtherIPv6  = 0x86dd
	protoHop   = 0
	ProtoTCP   = 6
	ProtoUDP   = 17
	protoRoute = 43
	protoFrag  = 44
	protoAH    = 51
	protoOpts  = 60
)

// Sizes in bytes.
const (
	EtherHeader = 14
	VLANTag     = 4
	IPv6Header  = 40
	TCPHeader   = 20
	UDPHeader   = 8
	MinFrame    = 60 // shortest frame of a wire, without FCS
)

// Headers says where the headers of a frame are and what they say. Offsets are in
// bytes from the start of the frame.
type Headers struct {
	Tags       uint8  // VLAN tags, at most 2
	L3         uint8  // mlx5.L3IPv4, L3IPv6 or L3Other
	Proto      uint8  // IP protocol behind all extension headers
	Fragment   bool   // IP fragment, first ones included
	Extensions bool   // IPv4 options or IPv6 extension headers
	Truncated  bool   // the frame ends before the datagram
	TPID       uint16 // EtherType of the outermost tag
	TCI        uint16 // tag control information of the outermost tag
	EtherType  uint16 // behind the tags
	L3At       int    // offset of the L3 header
	L4At       int    // offset of the TCP or UDP header, 0 unless all of it is there
	L4Len      int    // bytes of the L4 header
	End        int    // offset of the end of the datagram, at most that of the frame
}

// Parse reads the headers of a frame of at least EtherHeader bytes.
func Parse(b []byte) (p Headers) {
	p.L3At = EtherHeader
	p.EtherType = binary.BigEndian.Uint16(b[12:])
	for p.Tags < 2 && (p.EtherType == EtherVLAN || p.EtherType == EtherQinQ) &&
		len(b) >= p.L3At+VLANTag {
		if p.Tags == 0 {
			p.TPID, p.TCI = p.EtherType, binary.BigEndian.Uint16(b[p.L3At:])
		}
		p.EtherType = binary.BigEndian.Uint16(b[p.L3At+2:])
		p.Tags++
		p.L3At += VLANTag
	}
	p.End = len(b)
	switch p.EtherType {
	case EtherIPv4:
		p.parseIPv4(b)
	case EtherIPv6:
		p.parseIPv6(b)
	}
	return p
}

func (p *Headers) parseIPv4(b []byte) {
	h := b[p.L3At:]
	if len(h) < 20 || h[0]>>4 != 4 {
		return
	}
	size, total := int(h[0]&15)*4, int(binary.BigEndian.Uint16(h[2:]))
	if size < 20 || size > len(h) || total < size {
		return
	}
	p.L3 = mlx5.L3IPv4
	p.Proto = h[9]
	p.Extensions = size > 20
	p.Fragment = binary.BigEndian.Uint16(h[6:])&0x3fff != 0
	p.setEnd(b, total)
	p.parseL4(b, p.L3At+size)
}

func (p *Headers) parseIPv6(b []byte) {
	h := b[p.L3At:]
	if len(h) < IPv6Header || h[0]>>4 != 6 {
		return
	}
	p.L3 = mlx5.L3IPv6
	p.setEnd(b, IPv6Header+int(binary.BigEndian.Uint16(h[4:])))
	p.Proto = h[6]
	at := p.L3At + IPv6Header
	for at+8 <= p.End {
		size := 8 + 8*int(b[at+1])
		switch p.Proto {
		case protoHop, protoRoute, protoOpts:
		case protoFrag:
			size, p.Fragment = 8, true
		case protoAH:
			size = 8 + 4*int(b[at+1])
		default:
			p.parseL4(b, at)
			return
		}
		p.Extensions = true
		p.Proto = b[at]
		at += size
	}
}

// setEnd notes where a datagram of total bytes ends.
func (p *Headers) setEnd(b []byte, total int) {
	p.End = p.L3At + total
	if p.End > len(b) {
		p.End, p.Truncated = len(b), true
	}
}

// parseL4 looks for a whole TCP or UDP header at at.
func (p *Headers) parseL4(b []byte, at int) {
	if p.Fragment {
		return
	}
	switch {
	case p.Proto == ProtoUDP && at+UDPHeader <= p.End:
		p.L4At, p.L4Len = at, UDPHeader
	case p.Proto == ProtoTCP && at+TCPHeader <= p.End:
		if n := int(b[at+12]>>4) * 4; n >= TCPHeader && at+n <= p.End {
			p.L4At, p.L4Len = at, n
		}
	}
}

// ChecksumAt returns the offset of the TCP or UDP checksum.
func (p *Headers) ChecksumAt() int {
	if p.Proto == ProtoTCP {
		return p.L4At + 16
	}
	return p.L4At + 6
}

// Flags in byte 13 of a TCP header, RFC 9293 section 3.1.
const (
	TCPFIN = 0x01
	TCPPSH = 0x08
	TCPACK = 0x10
	TCPCWR = 0x80
)
