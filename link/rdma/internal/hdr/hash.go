package hdr

import "encoding/binary"

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
