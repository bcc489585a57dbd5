package rdma

import "encoding/binary"

// Sizes and offsets of headers, in bytes.
const (
	ethLen     = 14
	ipv4Len    = 20
	ipv6Len    = 40
	tcpLen     = 20
	udpLen     = 8
	maxHeaders = ethLen + ipv6Len + 60 // of a frame that can be merged
)

// EtherTypes and protocol numbers.
const (
	typeIPv4 = 0x0800
	typeIPv6 = 0x86dd

	protoICMP   = 1
	protoIGMP   = 2
	protoTCP    = 6
	protoUDP    = 17
	protoICMPv6 = 58

	extHopByHop    = 0
	extRouting     = 43
	extFragment    = 44
	extDestOptions = 60
)

// layout is where things are in one received frame. Offsets count from the frame's first byte.
type layout struct {
	etherType uint16
	l3        int // the IP header
	l4        int // the transport header; 0: none that we know, or a fragment
	end       int // the end of the IP packet; Ethernet padding may follow
	proto     uint8
	fragment  bool
	plain     bool // an IP header without options or extensions: what may be merged
}

// parse finds the headers of an IP frame. A frame whose lengths make no sense has no l4; the stack will drop and count it.
func (l *layout) parse(frame []byte) {
	switch l.etherType {
	case typeIPv4:
		l.parseIPv4(frame)
	case typeIPv6:
		l.parseIPv6(frame)
	}
}

func (l *layout) parseIPv4(frame []byte) {
	h := frame[l.l3:]
	if len(h) < ipv4Len || h[0]>>4 != 4 {
		return
	}
	header, total := int(h[0]&15)*4, int(binary.BigEndian.Uint16(h[2:]))
	if header < ipv4Len || total < header || total > len(h) {
		return
	}
	l.proto = h[9]
	l.end = l.l3 + total
	l.plain = header == ipv4Len
	if binary.BigEndian.Uint16(h[6:])&0x3fff != 0 { // offset or more fragments
		l.fragment = true
		return
	}
	l.l4 = l.l3 + header
}

func (l *layout) parseIPv6(frame []byte) {
	h := frame[l.l3:]
	if len(h) < ipv6Len || h[0]>>4 != 6 {
		return
	}
	total := ipv6Len + int(binary.BigEndian.Uint16(h[4:]))
	if total > len(h) {
		return
	}
	l.proto = h[6]
	l.end = l.l3 + total
	l.plain = true
	at := ipv6Len
	for {
		switch l.proto {
		case extHopByHop, extRouting, extDestOptions:
			if at+8 > total {
				return
			}
			l.plain = false
			l.proto, at = h[at], at+8+8*int(h[at+1])
			continue
		case extFragment:
			l.fragment = true
			return
		}
		if at <= total {
			l.l4 = l.l3 + at
		}
		return
	}
}
