package packet

import (
	"encoding/binary"
	"net/netip"
)

// Ports are ports of one address that are ours on the host's MAC (Config.Host), of TCP or UDP.
type Ports struct {
	UDP         bool
	Addr        netip.Addr // without a zone
	First, Last uint16     // a block, or one port
}

// portTable holds what comes to a port with the host's MAC: frames to Ports, ICMP errors about what
// was sent from them, and the answers to ARP requests and neighbour solicitations. It does not
// change.
type portTable struct {
	single map[portKey]struct{}
	blocks []Ports
}

type portKey struct {
	addr netip.Addr
	port uint16
	udp  bool
}

func newPortTable(list []Ports) *portTable {
	t := &portTable{single: make(map[portKey]struct{}, len(list))}
	for _, p := range list {
		if p.First == p.Last {
			t.single[portKey{p.Addr, p.First, p.UDP}] = struct{}{}
		} else {
			t.blocks = append(t.blocks, p)
		}
	}
	return t
}

// has says whether a port of ours is meant.
func (t *portTable) has(k portKey) bool {
	if _, ok := t.single[k]; ok {
		return true
	}
	for _, b := range t.blocks {
		if b.UDP == k.udp && b.First <= k.port && k.port <= b.Last && b.Addr == k.addr {
			return true
		}
	}
	return false
}

const (
	typeARP   = 0x0806
	arpReply  = 2
	arpOpcode = ethLen + 6

	protoICMP   = 1
	protoICMPv6 = 58
	icmpLen     = 8

	// ICMP errors: RFC 792, and RFC 4443 section 3, whose types are all below.
	icmpUnreachable, icmpTimeExceeded, icmpParameter = 3, 11, 12
	icmpv6FirstError, icmpv6LastError                = 1, 4

	neighborAdvertisement = 136 // RFC 4861 section 4.4
)

// ours says whether a frame without tag is for us. What the kernel's filter has let pass is looked
// at in full here.
func (t *portTable) ours(f []byte) bool {
	if len(f) < ethLen+ipv4Len {
		return false
	}
	switch binary.BigEndian.Uint16(f[12:]) {
	case typeARP:
		return binary.BigEndian.Uint16(f[arpOpcode:]) == arpReply
	case typeIPv4, typeIPv6:
		if at, ok := findTransport(f); ok {
			return t.has(destination(f, &at))
		}
		return t.answers(f)
	}
	return false
}

// destination returns where a frame goes.
func destination(f []byte, at *transport) portKey {
	k := portKey{udp: at.proto == protoUDP, port: binary.BigEndian.Uint16(f[at.at+2:])}
	if at.v6 {
		k.addr = netip.AddrFrom16([16]byte(f[ethLen+24:]))
	} else {
		k.addr = netip.AddrFrom4([4]byte(f[ethLen+16:]))
	}
	return k
}

// answers says whether a packet is an ICMP error about a packet of ours, or advertises a neighbour.
func (t *portTable) answers(f []byte) bool {
	ip := f[ethLen:]
	if ip[0]>>4 == 4 {
		const fragment = 0x3fff // more fragments, or an offset
		header := int(ip[0]&15) * 4
		if ip[9] != protoICMP || binary.BigEndian.Uint16(ip[6:])&fragment != 0 ||
			len(ip) < header+icmpLen {
			return false
		}
		switch ip[header] {
		case icmpUnreachable, icmpTimeExceeded, icmpParameter:
			return t.sent(ip[header+icmpLen:])
		}
		return false
	}
	if len(ip) < ipv6Len+icmpLen || ip[6] != protoICMPv6 {
		return false
	}
	kind := ip[ipv6Len]
	if icmpv6FirstError <= kind && kind <= icmpv6LastError {
		return t.sent(ip[ipv6Len+icmpLen:])
	}
	return kind == neighborAdvertisement
}

// sent says whether the packet that begins so is one of ours: the ports follow the IP header.
func (t *portTable) sent(ip []byte) bool {
	const ports = 4
	var k portKey
	var proto byte
	switch {
	case len(ip) >= ipv4Len+ports && ip[0]>>4 == 4:
		header := int(ip[0]&15) * 4
		if header < ipv4Len || len(ip) < header+ports {
			return false
		}
		proto, k.addr = ip[9], netip.AddrFrom4([4]byte(ip[12:]))
		k.port = binary.BigEndian.Uint16(ip[header:])
	case len(ip) >= ipv6Len+ports && ip[0]>>4 == 6:
		proto, k.addr = ip[6], netip.AddrFrom16([16]byte(ip[8:]))
		k.port = binary.BigEndian.Uint16(ip[ipv6Len:])
	}
	k.udp = proto == protoUDP
	return (proto == protoTCP || proto == protoUDP) && t.has(k)
}
