// Package eth makes the bytes of a peer's Ethernet frames for tests, and verifies checksums, apart
// from what the product does.
package eth

import (
	"encoding/binary"
	"net"
	"net/netip"
)

// Lengths of headers without options, in bytes.
const (
	ethLen  = 14
	ipv4Len = 20
	ipv6Len = 40
	tcpLen  = 20
	udpLen  = 8
)

// Ethernet returns a frame with an Ethernet header of its own.
func Ethernet(dst, src net.HardwareAddr, etherType uint16, payload []byte) []byte {
	f := append(append([]byte(nil), dst...), src...)
	return append(binary.BigEndian.AppendUint16(f, etherType), payload...)
}

// IP returns an IP packet with a correct header checksum.
func IP(src, dst netip.Addr, proto byte, payload []byte) []byte {
	if src.Is6() {
		h := make([]byte, ipv6Len)
		h[0], h[6], h[7] = 0x60, proto, 64
		binary.BigEndian.PutUint16(h[4:], uint16(len(payload)))
		copy(h[8:], src.AsSlice())
		copy(h[24:], dst.AsSlice())
		return append(h, payload...)
	}
	h := make([]byte, ipv4Len)
	h[0], h[8], h[9] = 0x45, 64, proto
	binary.BigEndian.PutUint16(h[2:], uint16(ipv4Len+len(payload)))
	copy(h[12:], src.AsSlice())
	copy(h[16:], dst.AsSlice())
	binary.BigEndian.PutUint16(h[10:], ^Sum(h))
	return append(h, payload...)
}

// TCP returns a segment without a checksum.
func TCP(srcPort, dstPort uint16, flags byte, payload []byte) []byte {
	h := make([]byte, tcpLen)
	binary.BigEndian.PutUint16(h, srcPort)
	binary.BigEndian.PutUint16(h[2:], dstPort)
	binary.BigEndian.PutUint32(h[4:], 1000)
	h[12], h[13] = tcpLen/4<<4, flags
	binary.BigEndian.PutUint16(h[14:], 65535)
	return append(h, payload...)
}

// UDP returns a datagram without a checksum.
func UDP(srcPort, dstPort uint16, payload []byte) []byte {
	h := make([]byte, udpLen)
	binary.BigEndian.PutUint16(h, srcPort)
	binary.BigEndian.PutUint16(h[2:], dstPort)
	binary.BigEndian.PutUint16(h[4:], uint16(udpLen+len(payload)))
	return append(h, payload...)
}

// Sum returns the Internet checksum of the parts in a row, of which all but the last have even
// lengths, not complemented (RFC 1071): in 64 bits, folded at the end.
func Sum(parts ...[]byte) uint16 {
	total := uint64(0)
	for _, b := range parts {
		for i, c := range b {
			total += uint64(c) << (8 * (1 - i%2))
		}
	}
	for total > 0xffff {
		total = total>>16 + total&0xffff
	}
	return uint16(total)
}

// SumOK verifies the TCP or UDP checksum of an untagged frame without options, and the IP header's.
func SumOK(f []byte) bool {
	at, addresses, proto := ethLen+ipv4Len, f[ethLen+12:ethLen+20], f[ethLen+9]
	if f[ethLen]>>4 == 6 {
		at, addresses, proto = ethLen+ipv6Len, f[ethLen+8:ethLen+40], f[ethLen+6]
	} else if Sum(f[ethLen:at]) != 0xffff {
		return false
	}
	length := len(f) - at
	pseudo := []byte{0, proto, byte(length >> 8), byte(length)}
	return Sum(addresses, pseudo, f[at:]) == 0xffff
}

// Payload returns n bytes that differ.
func Payload(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}
