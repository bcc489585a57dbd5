package capture

import "encoding/binary"

// EtherTypes and protocol numbers (IANA).
const (
	typeIPv4 = 0x0800
	typeARP  = 0x0806
	typeVLAN = 0x8100
	typeQinQ = 0x88a8
	typeIPv6 = 0x86dd

	protoICMP   = 1
	protoTCP    = 6
	protoUDP    = 17
	protoICMPv6 = 58
	protoSCTP   = 132

	ethLen  = 14
	ipv4Len = 20
	ipv6Len = 40
	tcpLen  = 20
	udpLen  = 8
)

// headers says where the headers of a frame are, as far as they are there.
type headers struct {
	etherType uint16
	vlan      int // the outer tag's identifier, -1: no tag
	l3, l4    int // offsets; 0: there is none
	proto     uint8
	fragment  bool // not the first fragment of a datagram
}

// parseHeaders reads the headers of a frame, which may be cut off anywhere.
func parseHeaders(frame []byte) (h headers) {
	h.vlan = -1
	if len(frame) < ethLen {
		return h
	}
	at := ethLen
	h.etherType = binary.BigEndian.Uint16(frame[12:])
	for h.etherType == typeVLAN || h.etherType == typeQinQ {
		if len(frame) < at+tagLen {
			return h
		}
		if h.vlan < 0 {
			h.vlan = int(binary.BigEndian.Uint16(frame[at:]) & 0xfff)
		}
		h.etherType = binary.BigEndian.Uint16(frame[at+2:])
		at += tagLen
	}
	h.l3 = at
	switch p := frame[at:]; {
	case h.etherType == typeIPv4 && len(p) >= ipv4Len:
		h.proto = p[9]
		h.fragment = binary.BigEndian.Uint16(p[6:])&0x1fff != 0
		h.l4 = at + int(p[0]&15)*4
	case h.etherType == typeIPv6 && len(p) >= ipv6Len:
		h.proto = p[6]
		h.l4 = at + ipv6Len
	}
	return h
}

// addresses returns the source and destination of IP, or the sender's and target's of ARP; nil: the
// frame has none.
func (h *headers) addresses(frame []byte) (from, to []byte) {
	p := frame[h.l3:]
	switch {
	case h.l3 == 0:
	case h.etherType == typeIPv4 && len(p) >= ipv4Len:
		return p[12:16], p[16:20]
	case h.etherType == typeIPv6 && len(p) >= ipv6Len:
		return p[8:24], p[24:40]
	case h.etherType == typeARP && len(p) >= 28: // RFC 826, Ethernet and IPv4
		return p[14:18], p[24:28]
	}
	return nil, nil
}

// portsIn of TCP, UDP and SCTP.
func (h *headers) portsIn(frame []byte) (from, to uint16, ok bool) {
	switch h.proto {
	case protoTCP, protoUDP, protoSCTP:
	default:
		return 0, 0, false
	}
	if h.l4 == 0 || h.fragment || len(frame) < h.l4+4 {
		return 0, 0, false
	}
	return binary.BigEndian.Uint16(frame[h.l4:]), binary.BigEndian.Uint16(frame[h.l4+2:]), true
}
