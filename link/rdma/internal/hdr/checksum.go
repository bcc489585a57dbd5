package hdr

import (
	"encoding/binary"

	"gvisor.dev/gvisor/pkg/tcpip/checksum"
)

// validSum is the folded sum of data that includes its own checksum.
const validSum = 0xffff

// HeaderOK verifies the IPv4 header's checksum; other frames have none.
func (p *Packet) HeaderOK(frame []byte) bool {
	if p.EtherType != TypeIPv4 || p.End == 0 {
		return true
	}
	return checksum.Checksum(frame[p.L3:p.L3+int(frame[p.L3]&15)*4], 0) == validSum
}

// TransportOK verifies the checksum of a TCP segment or UDP datagram. True of anything else, and of
// lengths that the stack refuses.
func (p *Packet) TransportOK(frame []byte) bool {
	if p.L4 == 0 {
		return true
	}
	data := frame[p.L4:p.End]
	switch p.Proto {
	case ProtoTCP:
		if len(data) < TCPLen {
			return true
		}
	case ProtoUDP:
		if len(data) < UDPLen {
			return true
		}
		n := int(binary.BigEndian.Uint16(data[4:]))
		if n < UDPLen || n > len(data) {
			return true
		}
		data = data[:n]
		if data[6]|data[7] == 0 {
			return p.EtherType == TypeIPv4 // RFC 768; RFC 8200 section 8.1
		}
	default:
		return true
	}
	return checksum.Checksum(data, p.pseudoSum(frame, len(data))) == validSum
}

// LacksChecksum reports whether a UDP datagram over IPv6 has a checksum of 0, which means none: RFC
// 8200 section 8.1 has it discarded, and so does Linux for sockets that have not asked for such
// ones (net/ipv6/udp.c __udp6_lib_rcv; RFC 6935 allows them for tunnels).
func (p *Packet) LacksChecksum(frame []byte) bool {
	return p.Proto == ProtoUDP && p.EtherType == TypeIPv6 && p.L4 != 0 && p.End-p.L4 >= UDPLen &&
		frame[p.L4+6]|frame[p.L4+7] == 0
}

// pseudoSum returns the sum of the pseudo header of n bytes of transport.
func (p *Packet) pseudoSum(frame []byte, n int) uint16 {
	addresses := frame[p.L3+12 : p.L3+20]
	if p.EtherType == TypeIPv6 {
		addresses = frame[p.L3+8 : p.L3+40]
	}
	rest := [6]byte{1: p.Proto, 2: byte(n >> 24), 3: byte(n >> 16), 4: byte(n >> 8), 5: byte(n)}
	return checksum.Checksum(rest[:], checksum.Checksum(addresses, 0))
}

// Seal writes the lengths and checksums of a frame that ends with its TCP segment.
func (p *Packet) Seal(frame []byte) {
	ip, tcp := frame[p.L3:], frame[p.L4:]
	if p.EtherType == TypeIPv6 {
		binary.BigEndian.PutUint16(ip[4:], uint16(len(ip)-IPv6Len))
	} else {
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
		ip[10], ip[11] = 0, 0
		binary.BigEndian.PutUint16(ip[10:], ^checksum.Checksum(ip[:p.L4-p.L3], 0))
	}
	tcp[16], tcp[17] = 0, 0
	binary.BigEndian.PutUint16(tcp[16:], ^checksum.Checksum(tcp, p.pseudoSum(frame, len(tcp))))
}

// SetDatagramLength makes the lengths in headers, which are Ethernet, IP without options or
// extensions, and UDP, those of a datagram with n bytes of payload.
func SetDatagramLength(headers []byte, n int) {
	ip, udp := headers[EthLen:], headers[len(headers)-UDPLen:]
	if ip[0]>>4 == 4 {
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+n))
	} else {
		binary.BigEndian.PutUint16(ip[4:], uint16(len(ip)-IPv6Len+n))
	}
	binary.BigEndian.PutUint16(udp[4:], uint16(UDPLen+n))
}
