package sim

import (
	"encoding/binary"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// The router in the middle of a network with a path MTU: it is heard of by ICMP only.
var (
	routerMAC  = tcpip.LinkAddress("\x02\x00\x00\x00\x00\xfe")
	router4    = tcpip.AddrFrom4([4]byte{10, 0, 0, 254})
	router6    = tcpip.AddrFrom16([16]byte{0xfd, 0x10, 15: 0xfe})
	routerHops = uint8(64)
)

// route does for a frame what a router does between links of a smaller MTU, which is mtu: it
// returns the frames that go on, and what is sent back to the frame's sender if that was too big.
func route(f []byte, mtu int) (on [][]byte, back []byte) {
	ip := f[header.EthernetMinimumSize:]
	if len(ip) <= mtu {
		return [][]byte{f}, nil
	}
	switch header.Ethernet(f).Type() {
	case header.IPv4ProtocolNumber:
		if header.IPv4(ip).Flags()&header.IPv4FlagDontFragment == 0 {
			return fragments4(f, mtu), nil
		}
		return nil, tooBig4(f, mtu)
	case header.IPv6ProtocolNumber:
		return nil, tooBig6(f, mtu)
	}
	return [][]byte{f}, nil
}

// fragments4 cuts an IPv4 packet without options, which may be a fragment, into fragments
// (RFC 791 section 3.2).
func fragments4(f []byte, mtu int) (all [][]byte) {
	const headers = header.EthernetMinimumSize + header.IPv4MinimumSize
	whole, data := header.IPv4(f[header.EthernetMinimumSize:]), f[headers:]
	size := (mtu - header.IPv4MinimumSize) &^ 7
	for at := 0; at < len(data); at += size {
		end := min(at+size, len(data))
		part := append(append([]byte(nil), f[:headers]...), data[at:end]...)
		ip := header.IPv4(part[header.EthernetMinimumSize:])
		flags := whole.Flags()
		if end < len(data) {
			flags |= header.IPv4FlagMoreFragments
		}
		ip.SetFlagsFragmentOffset(flags, whole.FragmentOffset()+uint16(at))
		ip.SetTotalLength(uint16(len(ip)))
		ip.SetChecksum(0)
		ip.SetChecksum(^ip.CalculateChecksum())
		all = append(all, part)
	}
	return all
}

// answerTo returns a frame to the sender of f, with room for so much behind its Ethernet header.
func answerTo(f []byte, room int) []byte {
	b := make([]byte, header.EthernetMinimumSize+room)
	header.Ethernet(b).Encode(&header.EthernetFields{SrcAddr: routerMAC,
		DstAddr: header.Ethernet(f).SourceAddress(), Type: header.Ethernet(f).Type()})
	return b
}

// tooBig4 says that a packet needs fragmentation and has "don't fragment" set (RFC 792, RFC 1191).
func tooBig4(f []byte, mtu int) []byte {
	whole := f[header.EthernetMinimumSize:]
	quoted := whole[:header.IPv4MinimumSize+8]
	length := header.IPv4MinimumSize + header.ICMPv4MinimumSize + len(quoted)
	b := answerTo(f, length)
	ip := header.IPv4(b[header.EthernetMinimumSize:])
	ip.Encode(&header.IPv4Fields{TotalLength: uint16(length), TTL: routerHops,
		Protocol: uint8(header.ICMPv4ProtocolNumber), SrcAddr: router4,
		DstAddr: header.IPv4(whole).SourceAddress()})
	ip.SetChecksum(^ip.CalculateChecksum())
	m := header.ICMPv4(ip.Payload())
	m.SetType(header.ICMPv4DstUnreachable)
	m.SetCode(header.ICMPv4FragmentationNeeded)
	m.SetMTU(uint16(mtu))
	copy(m[header.ICMPv4MinimumSize:], quoted)
	m.SetChecksum(^checksum.Checksum(m, 0))
	return b
}

// tooBig6 says that a packet is too big, and has as much of it as fits (RFC 4443 section 3.2).
func tooBig6(f []byte, mtu int) []byte {
	whole := f[header.EthernetMinimumSize:]
	const headers = header.IPv6MinimumSize + header.ICMPv6PacketTooBigMinimumSize
	quoted := whole[:min(len(whole), header.IPv6MinimumMTU-headers)]
	b := answerTo(f, headers+len(quoted))
	ip := header.IPv6(b[header.EthernetMinimumSize:])
	ip.Encode(&header.IPv6Fields{PayloadLength: uint16(len(ip) - header.IPv6MinimumSize),
		TransportProtocol: header.ICMPv6ProtocolNumber, HopLimit: routerHops, SrcAddr: router6,
		DstAddr: header.IPv6(whole).SourceAddress()})
	m := header.ICMPv6(ip.Payload())
	m.SetType(header.ICMPv6PacketTooBig)
	binary.BigEndian.PutUint32(m[4:], uint32(mtu))
	copy(m[header.ICMPv6PacketTooBigMinimumSize:], quoted)
	m.SetChecksum(header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: m, Src: router6,
		Dst: header.IPv6(whole).SourceAddress()}))
	return b
}
