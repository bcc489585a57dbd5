package xdp

import (
	"encoding/binary"
	"math/bits"
)

// transport says where the TCP or UDP header of an untagged frame is.
type transport struct {
	at    int
	proto byte
	v6    bool
}

// findTransport parses the headers. False: it is not TCP or UDP, or a fragment, or not whole.
func findTransport(frame []byte) (t transport, ok bool) {
	if len(frame) < ethLen+ipv4Len {
		return t, false
	}
	switch kind := binary.BigEndian.Uint16(frame[atType:]); {
	case kind == typeIPv4:
		if binary.BigEndian.Uint16(frame[atFragment4:])&fragmentBits != 0 ||
			frame[atVersion4]&15 < ipv4Len/4 {
			return t, false
		}
		t.proto, t.at = frame[atProtocol4], ethLen+int(frame[atVersion4]&15)*4
	case kind == typeIPv6 && len(frame) >= ethLen+ipv6Len:
		t.proto, t.at, t.v6 = frame[atProtocol6], ethLen+ipv6Len, true
	default:
		return t, false
	}
	switch t.proto {
	case protoTCP:
		return t, len(frame) >= t.at+tcpLen
	case protoUDP:
		return t, len(frame) >= t.at+udpLen
	}
	return t, false
}

// sumOffset returns where the checksum is in the header.
func (t *transport) sumOffset() int {
	if t.proto == protoUDP {
		return 6
	}
	return 16
}

// prepareSum writes the checksum of an IPv4 header and returns the sum of the pseudo-header.
func (t *transport) prepareSum(frame []byte) uint16 {
	addresses := frame[ethLen+8 : ethLen+ipv6Len]
	if !t.v6 {
		header := frame[ethLen:t.at]
		header[10], header[11] = 0, 0
		binary.BigEndian.PutUint16(header[10:], ^addWords(0, header))
		addresses = header[12:ipv4Len]
	}
	return addWords(uint64(t.proto)+uint64(len(frame)-t.at), addresses)
}

// completeSum writes the checksum, of which the pseudo-header's part is given.
func (t *transport) completeSum(frame []byte, pseudo uint16) {
	field := frame[t.at+t.sumOffset():]
	field[0], field[1] = 0, 0
	sum := ^addWords(uint64(pseudo), frame[t.at:])
	if sum == 0 && t.proto == protoUDP {
		sum = 0xffff // 0 says that there is none
	}
	binary.BigEndian.PutUint16(field, sum)
}

// addWords adds the 16-bit words of b to start in ones' complement arithmetic (RFC 1071), eight
// bytes at a time.
func addWords(start uint64, b []byte) uint16 {
	sum, carry := start, uint64(0)
	for ; len(b) >= 8; b = b[8:] {
		sum, carry = bits.Add64(sum, binary.BigEndian.Uint64(b), carry)
	}
	var rest [8]byte
	copy(rest[:], b)
	sum, carry = bits.Add64(sum, binary.BigEndian.Uint64(rest[:]), carry)
	sum, carry = bits.Add64(sum, 0, carry)
	sum += carry
	sum = sum>>32 + sum&0xffffffff
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

// Flags of TCP that a cut moves: those of the end are the last segment's, CWR the first's.
const (
	tcpFlags            = 13
	flagFIN, flagPSH    = 1, 8
	flagCWR             = 0x80
	maxHeaders          = ethLen + 60 + 60
	atLength4, atID4    = ethLen + 2, ethLen + 4
	atPayloadLength6    = ethLen + 4
	atSequence, atTCPLn = 4, 12
)

// cutter cuts a TCP segment up, as NICs do.
type cutter struct {
	head    [maxHeaders]byte
	t       transport
	size    int // of the headers
	payload int // of each segment but the last
	bufs    [][]byte
	buf, at int // where the rest of the payload begins
	left    int // bytes of it
	done    int // bytes before it
	id      uint16
}

// beginSegment starts on a frame in several buffers. False: it is not TCP.
func (c *cutter) beginSegment(bufs [][]byte, payload int) bool {
	n, total := 0, 0
	for _, b := range bufs {
		n += copy(c.head[n:], b)
		total += len(b)
	}
	var ok bool
	if c.t, ok = findTransport(c.head[:n]); !ok || c.t.proto != protoTCP {
		return false
	}
	c.size = c.t.at + int(c.head[c.t.at+atTCPLn]>>4)*4
	if c.size < c.t.at+tcpLen || c.size > n {
		return false
	}
	c.payload, c.bufs, c.left, c.done = payload, bufs, total-c.size, 0
	c.id = binary.BigEndian.Uint16(c.head[atID4:])
	c.buf, c.at = 0, c.size
	for c.buf < len(bufs) && c.at >= len(bufs[c.buf]) {
		c.at -= len(bufs[c.buf])
		c.buf++
	}
	return true
}

// hasMore reports whether there is another segment.
func (c *cutter) hasMore() bool { return c.left > 0 || c.done == 0 && c.bufs != nil }

// nextSegment writes the next segment, without checksums, and returns its length.
func (c *cutter) nextSegment(to []byte) int {
	n := min(c.payload, c.left)
	copy(to, c.head[:c.size])
	for filled := 0; filled < n; {
		k := copy(to[c.size+filled:c.size+n], c.bufs[c.buf][c.at:])
		filled, c.at = filled+k, c.at+k
		if c.at == len(c.bufs[c.buf]) {
			c.buf, c.at = c.buf+1, 0
		}
	}
	tcp := to[c.t.at:]
	binary.BigEndian.PutUint32(tcp[atSequence:],
		binary.BigEndian.Uint32(c.head[c.t.at+atSequence:])+uint32(c.done))
	if c.left > n {
		tcp[tcpFlags] &^= flagFIN | flagPSH
	}
	if c.done > 0 {
		tcp[tcpFlags] &^= flagCWR
	}
	if c.t.v6 {
		binary.BigEndian.PutUint16(to[atPayloadLength6:], uint16(c.size+n-ethLen-ipv6Len))
	} else {
		binary.BigEndian.PutUint16(to[atLength4:], uint16(c.size+n-ethLen))
		binary.BigEndian.PutUint16(to[atID4:], c.id)
		c.id++
	}
	c.done, c.left = c.done+n, c.left-n
	if c.left == 0 {
		c.bufs = nil
	}
	return c.size + n
}
