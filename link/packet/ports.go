package packet

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"sync/atomic"
)

// Ports are ports of one address that are ours on the host's MAC (Config.Host), of TCP or UDP.
type Ports struct {
	UDP         bool
	Addr        netip.Addr // without a zone
	First, Last uint16     // a block, or one port
}

// portTable holds what comes to a port with the host's MAC: frames to Ports, ICMP errors about what
// was sent from them, and what tells of neighbours: ARP, neighbour solicitations and
// advertisements. One goroutine adds and removes single ports while others look; all else does not
// change.
type portTable struct {
	single map[portsOf]*portSet
	blocks []Ports

	// byPort counts the addresses that have a single port, of TCP and of UDP. It is the writer's.
	byPort [2]map[uint16]int
}

// portsOf says whose ports a portSet holds.
type portsOf struct {
	addr netip.Addr
	udp  bool
}

// portSet holds a bit for each port, in pages that are made once one of their bits is set.
type portSet [1 << 16 / portPage]atomic.Pointer[[portPage / 64]atomic.Uint64]

const portPage = 1024

func (s *portSet) has(port uint16) bool {
	page := s[port/portPage].Load()
	return page != nil && page[port%portPage/64].Load()&(1<<(port%64)) != 0
}

// put sets or clears a port's bit, and says whether it was the other way before.
func (s *portSet) put(port uint16, set bool) bool {
	if s.has(port) == set {
		return false
	}
	page, bit := s[port/portPage].Load(), uint64(1)<<(port%64)
	if page == nil {
		page = new([portPage / 64]atomic.Uint64)
		s[port/portPage].Store(page)
	}
	if word := &page[port%portPage/64]; set {
		word.Or(bit)
	} else {
		word.And(^bit)
	}
	return true
}

type portKey struct {
	addr netip.Addr
	port uint16
	udp  bool
}

func newPortTable(list []Ports) *portTable {
	t := &portTable{byPort: [2]map[uint16]int{{}, {}}}
	var single []Ports
	for _, p := range list {
		if p.First == p.Last {
			single = append(single, p)
		} else {
			t.blocks = append(t.blocks, p)
		}
	}
	return t.with(single)
}

// with returns a table that has these single ports, too: t itself, unless an address is new. Then
// t is the writer's no longer.
func (t *portTable) with(single []Ports) *portTable {
	grown := t
	for _, p := range single {
		of := portsOf{p.Addr, p.UDP}
		if grown.single[of] != nil {
			continue
		}
		if grown == t {
			grown = &portTable{single: maps.Clone(t.single), blocks: t.blocks, byPort: t.byPort}
		}
		if grown.single == nil {
			grown.single = map[portsOf]*portSet{}
		}
		grown.single[of] = new(portSet)
	}
	for _, p := range single {
		if grown.single[portsOf{p.Addr, p.UDP}].put(p.First, true) {
			grown.byPort[protocolIndex(p.UDP)][p.First]++
		}
	}
	return grown
}

// drop removes single ports.
func (t *portTable) drop(single []Ports) {
	for _, p := range single {
		set := t.single[portsOf{p.Addr, p.UDP}]
		if set == nil || !set.put(p.First, false) {
			continue
		}
		count := t.byPort[protocolIndex(p.UDP)]
		if count[p.First]--; count[p.First] == 0 {
			delete(count, p.First)
		}
	}
}

func protocolIndex(udp bool) int {
	if udp {
		return 1
	}
	return 0
}

// hasPort says whether a port of ours is meant.
func (t *portTable) hasPort(k portKey) bool {
	if set := t.single[portsOf{k.addr, k.udp}]; set != nil && set.has(k.port) {
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
	typeARP = 0x0806

	protoICMP   = 1
	protoICMPv6 = 58
	icmpLen     = 8

	// ICMP errors: RFC 792, and RFC 4443 section 2.1: those of ICMPv6 are below firstInformation.
	icmpUnreachable, icmpTimeExceeded, icmpParameter = 3, 11, 12
	icmpv6FirstInformation                           = 128

	// RFC 4861 sections 4.3 and 4.4
	neighborSolicitation, neighborAdvertisement = 135, 136
)

// isOurs says whether a frame without tag is for us. What the kernel's filter has let pass is
// looked at in full here.
func (t *portTable) isOurs(f []byte) bool {
	if len(f) < ethLen+ipv4Len {
		return false
	}
	switch binary.BigEndian.Uint16(f[12:]) {
	case typeARP:
		return true
	case typeIPv4, typeIPv6:
		at, ok := findTransport(f)
		if !ok {
			at, ok = findBehindExtensions(f)
		}
		if ok {
			return t.hasPort(destination(f, &at))
		}
		return t.isAnswer(f)
	}
	return false
}

// findBehindExtensions does what findTransport does, for IPv6 packets with extension headers, but a
// fragment's, that nobody answers.
func findBehindExtensions(f []byte) (t transport, ok bool) {
	if binary.BigEndian.Uint16(f[12:]) != typeIPv6 || len(f) < ethLen+ipv6Len ||
		!isExtension(f[ethLen+6]) {
		return t, false
	}
	proto, at, plain := skipExtensions(f[ethLen:], f[ethLen+6], ipv6Len)
	t = transport{ip: ethLen, at: ethLen + at, proto: proto, v6: true}
	return t, plain && (proto == protoTCP && len(f) >= t.at+tcpLen ||
		proto == protoUDP && len(f) >= t.at+udpLen)
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

// isAnswer says whether a packet is an ICMP error about a packet of ours, or tells of a neighbour.
func (t *portTable) isAnswer(f []byte) bool {
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
			return t.isSentByUs(ip[header+icmpLen:])
		}
		return false
	}
	if len(ip) < ipv6Len+icmpLen || ip[6] != protoICMPv6 {
		return false
	}
	kind := ip[ipv6Len]
	if kind < icmpv6FirstInformation {
		return t.isSentByUs(ip[ipv6Len+icmpLen:])
	}
	return kind == neighborSolicitation || kind == neighborAdvertisement
}

// isSentByUs says whether the packet that begins so is one of ours: the ports follow the IP header.
func (t *portTable) isSentByUs(ip []byte) bool {
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
		at := ipv6Len
		if proto = ip[6]; proto == extFragment { // the only extension header of what is sent here
			if len(ip) < ipv6Len+extensionLen+ports {
				return false
			}
			proto, at = ip[ipv6Len], ipv6Len+extensionLen
		}
		k.addr = netip.AddrFrom16([16]byte(ip[8:]))
		k.port = binary.BigEndian.Uint16(ip[at:])
	}
	k.udp = proto == protoUDP
	return (proto == protoTCP || proto == protoUDP) && t.hasPort(k)
}
