package rdma

import (
	"encoding/binary"

	"gvisor.dev/gvisor/pkg/tcpip/checksum"
)

// validSum is the folded sum of data that includes its own checksum.
const validSum = 0xffff

// headerOK verifies the IPv4 header's checksum; other frames have none.
func (l *layout) headerOK(frame []byte) bool {
	if l.etherType != typeIPv4 || l.end == 0 {
		return true
	}
	return checksum.Checksum(frame[l.l3:l.l3+int(frame[l.l3]&15)*4], 0) == validSum
}

// transportOK verifies the checksum of a TCP segment or UDP datagram. True for anything else, and for lengths the stack will
// stumble over anyway.
func (l *layout) transportOK(frame []byte) bool {
	if l.l4 == 0 {
		return true
	}
	data := frame[l.l4:l.end]
	switch l.proto {
	case protoTCP:
		if len(data) < tcpLen {
			return true
		}
	case protoUDP:
		if len(data) < udpLen {
			return true
		}
		n := int(binary.BigEndian.Uint16(data[4:]))
		if n < udpLen || n > len(data) {
			return true
		}
		data = data[:n]
		if data[6]|data[7] == 0 {
			return l.etherType == typeIPv4 // optional there (RFC 768), compulsory in IPv6 (RFC 8200 section 8.1)
		}
	default:
		return true
	}
	return checksum.Checksum(data, l.pseudo(frame, len(data))) == validSum
}

// pseudo is the sum of the pseudo header of n bytes of transport.
func (l *layout) pseudo(frame []byte, n int) uint16 {
	addresses := frame[l.l3+12 : l.l3+20]
	if l.etherType == typeIPv6 {
		addresses = frame[l.l3+8 : l.l3+40]
	}
	rest := [6]byte{1: l.proto, 2: byte(n >> 24), 3: byte(n >> 16), 4: byte(n >> 8), 5: byte(n)}
	return checksum.Checksum(rest[:], checksum.Checksum(addresses, 0))
}
