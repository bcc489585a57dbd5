package rings

import (
	"encoding/binary"
	"fmt"
	"net"
)

// Sizes of a generated frame: without FCS, at least the smallest that carries the mark.
const (
	headerLen = 14 + 20 + 8
	markLen   = 16
	MinFrame  = headerLen + markLen + 2 // 60 bytes
)

// magic begins the mark of a generated frame's payload: run number and sequence number follow.
const magic = "rdpg"

// Template makes a UDP frame of size bytes from src to dst: 198.18.0.1 to 198.18.0.2 (RFC 2544
// appendix C.2.2), port 9.
func Template(dst, src net.HardwareAddr, size int) ([]byte, error) {
	if size < MinFrame {
		return nil, fmt.Errorf("frames of %d bytes: at least %d are needed for the sequence number",
			size, MinFrame)
	}
	f := make([]byte, size)
	copy(f, dst)
	copy(f[6:], src)
	f[12], f[13] = 0x08, 0x00
	ip := f[14:]
	ip[0], ip[8], ip[9] = 0x45, 64, 17
	binary.BigEndian.PutUint16(ip[2:], uint16(size-14))
	copy(ip[12:], []byte{198, 18, 0, 1, 198, 18, 0, 2})
	binary.BigEndian.PutUint16(ip[10:], headerSum(ip[:20]))
	udp := ip[20:]
	binary.BigEndian.PutUint16(udp[2:], 9)
	binary.BigEndian.PutUint16(udp[4:], uint16(size-34))
	return f, nil
}

// headerSum returns the IPv4 header checksum (RFC 791 section 3.1).
func headerSum(h []byte) uint16 {
	var sum uint32
	for i := 0; i < len(h); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(h[i:]))
	}
	sum = sum>>16 + sum&0xffff
	return ^uint16(sum + sum>>16)
}

// mark writes run and sequence number, and a source port that spreads frames over flows; the UDP
// checksum is left out, as IPv4 allows.
func mark(f []byte, run uint32, seq uint64, flows int) {
	binary.BigEndian.PutUint16(f[34:], uint16(49152+seq%uint64(flows)))
	m := f[headerLen:]
	copy(m, magic)
	binary.BigEndian.PutUint32(m[4:], run)
	binary.BigEndian.PutUint64(m[8:], seq)
}

// readMark finds the mark of a generated frame.
func readMark(f []byte) (run uint32, seq uint64, ok bool) {
	if len(f) < headerLen+markLen || string(f[headerLen:headerLen+4]) != magic {
		return 0, 0, false
	}
	m := f[headerLen:]
	return binary.BigEndian.Uint32(m[4:]), binary.BigEndian.Uint64(m[8:]), true
}
