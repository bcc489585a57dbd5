package probe

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
)

// Ether types of the frames made and understood here. Experimental is IEEE 802's first one for
// local experiments.
const (
	etherIPv4    = 0x0800
	etherARP     = 0x0806
	Experimental = 0x88b5
)

// Broadcast gives the address of everybody.
var Broadcast = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// EtherFrame makes a frame, padded to the smallest size, 60 bytes without FCS.
func EtherFrame(dst, src net.HardwareAddr, etherType uint16, payload []byte) []byte {
	f := make([]byte, 0, 60)
	f = append(append(f, dst...), src...)
	f = append(binary.BigEndian.AppendUint16(f, etherType), payload...)
	return append(f, make([]byte, max(0, 60-len(f)))...)
}

// EchoFrame makes an ICMP echo request over IPv4 (RFC 791, RFC 792).
func EchoFrame(dst, src net.HardwareAddr, from, to netip.Addr, id, seq uint16) []byte {
	icmp := echoRequest(kindFor(to), id, seq)
	ip := make([]byte, 20, 20+len(icmp))
	ip[0] = 0x45 // version 4, header of 5 words
	binary.BigEndian.PutUint16(ip[2:], uint16(cap(ip)))
	ip[8], ip[9] = 64, 1 // time to live, protocol ICMP
	copy(ip[12:], from.AsSlice())
	copy(ip[16:], to.AsSlice())
	binary.BigEndian.PutUint16(ip[10:], inetChecksum(ip))
	return EtherFrame(dst, src, etherIPv4, append(ip, icmp...))
}

// arpHeader begins an ARP packet for IPv4 on Ethernet (RFC 826); the operation follows.
var arpHeader = []byte{0, 1, 8, 0, 6, 4}

// ARPFrame asks everybody who has an address.
func ARPFrame(src net.HardwareAddr, from, who netip.Addr) []byte {
	p := append(bytes.Clone(arpHeader), 0, 1)
	p = append(append(p, src...), from.AsSlice()...)
	p = append(append(p, make([]byte, 6)...), who.AsSlice()...)
	return EtherFrame(Broadcast, src, etherARP, p)
}

// Frame describes a frame that was received, as far as it is understood.
type Frame struct {
	Dst, Src    net.HardwareAddr
	EtherType   uint16
	EchoRequest bool
	EchoReply   bool
	ID, Seq     uint16     // of the echo
	ARPSender   netip.Addr // of an ARP reply
}

// ParseFrame takes a frame apart. Frames it does not understand have only the Ethernet header's
// fields.
func ParseFrame(frame []byte) Frame {
	if len(frame) < 14 {
		return Frame{}
	}
	s := Frame{
		Dst: bytes.Clone(
			frame[:6],
		), Src: bytes.Clone(frame[6:12]), EtherType: binary.BigEndian.Uint16(frame[12:]),
	}
	switch p := frame[14:]; {
	case s.EtherType == etherIPv4 && len(p) >= 28 && p[0] == 0x45 && p[9] == 1:
		s.EchoRequest, s.EchoReply = p[20] == 8, p[20] == 0
		s.ID, s.Seq = binary.BigEndian.Uint16(p[24:]), binary.BigEndian.Uint16(p[26:])
	case s.EtherType == etherARP && len(p) >= 28 && bytes.Equal(p[:6], arpHeader) && p[7] == 2:
		s.ARPSender, _ = netip.AddrFromSlice(p[14:18])
	}
	return s
}
