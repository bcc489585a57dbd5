package hdr

import "encoding/binary"

// flowLabelBits are those of the first word of an IPv6 header (RFC 8200 section 3).
const flowLabelBits = 1<<20 - 1

// LabelFlow gives a packet of TCP or UDP over IPv6 the label of its flow (RFC 6437), unless it has
// one, so that routers and bonds that look at labels spread flows over their paths. As with Linux's
// net.ipv6.auto_flowlabels the label is a hash of addresses and ports, which seed keeps others from
// foretelling; fragments have no ports, and so the first does without. The frame begins with the
// Ethernet header and has no VLAN tag.
func LabelFlow(frame []byte, seed uint64) {
	const ports = EthLen + IPv6Len
	if len(frame) < ports || binary.BigEndian.Uint16(frame[12:]) != TypeIPv6 {
		return
	}
	first := binary.BigEndian.Uint32(frame[EthLen:])
	if first&flowLabelBits != 0 {
		return
	}
	p := Packet{EtherType: TypeIPv6, L3: EthLen}
	flow := uint32(0)
	switch proto := frame[EthLen+6]; {
	case proto == ExtFragment:
	case (proto == ProtoTCP || proto == ProtoUDP) && len(frame) >= ports+4:
		flow = binary.BigEndian.Uint32(frame[ports:])
	default:
		return
	}
	label := mix(p.addressBits(frame)^seed, flow) & flowLabelBits
	binary.BigEndian.PutUint32(frame[EthLen:], first|max(label, 1))
}
