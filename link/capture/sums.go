package capture

import "encoding/binary"

// completeSums writes the checksums that the NIC will write: that of the IPv4 header, and that of
// TCP or UDP if the frame is here as a whole and goes out in one piece. length is its whole length.
func completeSums(frame []byte, length int, inPieces bool) {
	h := parseHeaders(frame)
	if h.l4 == 0 || h.l4 > len(frame) {
		return
	}
	if h.etherType == typeIPv4 {
		ip := frame[h.l3:h.l4]
		ip[10], ip[11] = 0, 0
		binary.BigEndian.PutUint16(ip[10:], ^foldSum(addWords(0, ip)))
	}
	if inPieces || h.fragment || len(frame) != length {
		return
	}
	at, l4 := 16, frame[h.l4:] // the checksum's offset
	switch {
	case h.proto == protoTCP && len(l4) >= tcpLen:
	case h.proto == protoUDP && len(l4) >= udpLen:
		at = 6
	default:
		return
	}
	from, to := h.addresses(frame)
	l4[at], l4[at+1] = 0, 0
	s := ^foldSum(addWords(addWords(addWords(uint32(h.proto)+uint32(len(l4)), from), to), l4))
	if s == 0 && h.proto == protoUDP {
		s = 0xffff // RFC 768
	}
	binary.BigEndian.PutUint16(l4[at:], s)
}

// addWords adds 16-bit words, RFC 1071. Of 64 KiB it does not overflow.
func addWords(s uint32, b []byte) uint32 {
	for ; len(b) > 1; b = b[2:] {
		s += uint32(b[0])<<8 | uint32(b[1])
	}
	if len(b) == 1 {
		s += uint32(b[0]) << 8
	}
	return s>>16 + s&0xffff
}

func foldSum(s uint32) uint16 {
	s = s>>16 + s&0xffff
	return uint16(s>>16 + s)
}
