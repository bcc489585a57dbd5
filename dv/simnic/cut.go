package simnic

import "encoding/binary"

// cutFrame turns f into the frames a cable carries: an unsegmented frame into
// its segments, with lengths, sequence numbers, flags and identification as the
// device would send them (linux net/ipv4/tcp_offload.c, udp_offload.c), and all
// checksums complete. emit is called in order; its frame is valid until it
// returns. buf is scratch that grows as needed. An ordinary finished frame is
// passed on as it is; one whose headers make no sense is passed on uncut.
func cutFrame(f Frame, buf *[]byte, emit func(Frame)) {
	if f.GSO != GSONone {
		if h, ok := parseGSO(f); ok {
			h.cut(buf, emit)
			return
		}
	}
	if !f.NeedsCsum {
		emit(Frame{Data: f.Data})
		return
	}
	*buf = append((*buf)[:0], f.Data...)
	completeChecksum(*buf, int(f.CsumStart), int(f.CsumOffset))
	emit(Frame{Data: *buf})
}

// gsoFrame is an unsegmented frame whose headers were found.
type gsoFrame struct {
	Frame
	l3, l4 int // where the headers start
	udp    bool
	v4     bool
}

// parseGSO finds the headers, and checks that every byte cut touches is there.
func parseGSO(f Frame) (gsoFrame, bool) {
	h := gsoFrame{Frame: f, l3: l3Offset(f.Data), l4: int(f.CsumStart), udp: f.GSO == GSOUDP}
	l4Min := 20
	if h.udp {
		l4Min = 8
	}
	if h.l3 == 0 || h.l4+l4Min > int(f.HdrLen) || int(f.HdrLen) > len(f.Data) || f.MSS == 0 {
		return h, false
	}
	h.v4 = f.Data[h.l3]>>4 == 4
	l3Min := 40
	if h.v4 {
		l3Min = 20
	}
	return h, h.l3+l3Min <= h.l4 && (!h.v4 || h.l3+int(f.Data[h.l3]&15)*4 <= h.l4)
}

// l3Offset is where the IP header starts, behind up to two VLAN tags, or 0.
func l3Offset(b []byte) int {
	for at := 12; at <= 20 && at+2 < len(b); at += 4 {
		switch binary.BigEndian.Uint16(b[at:]) {
		case 0x8100, 0x88a8:
		case 0x0800, 0x86dd:
			return at + 2
		default:
			return 0
		}
	}
	return 0
}

// cut emits the segments. A frame without payload is one segment.
func (h *gsoFrame) cut(buf *[]byte, emit func(Frame)) {
	hdr, payload := h.Data[:h.HdrLen], h.Data[h.HdrLen:]
	for i, done := 0, 0; done < len(payload) || i == 0; i++ {
		n := min(int(h.MSS), len(payload)-done)
		b := append(append((*buf)[:0], hdr...), payload[done:done+n]...)
		h.fixL3(b, i)
		h.fixL4(b, done, done == 0, done+n == len(payload))
		*buf = b
		emit(Frame{Data: b})
		done += n
	}
}

// fixL3 makes the IP header of segment i right.
func (h *gsoFrame) fixL3(b []byte, i int) {
	be, ip := binary.BigEndian, b[h.l3:]
	if !h.v4 {
		be.PutUint16(ip[4:], uint16(len(ip)-40))
		return
	}
	be.PutUint16(ip[2:], uint16(len(ip)))
	be.PutUint16(ip[4:], be.Uint16(ip[4:])+uint16(i))
	be.PutUint16(ip[10:], 0)
	be.PutUint16(ip[10:], ^fold(sum(0, ip[:int(ip[0]&15)*4])))
}

// fixL4 makes the TCP or UDP header of the segment at offset done right.
func (h *gsoFrame) fixL4(b []byte, done int, first, last bool) {
	be, l4 := binary.BigEndian, b[h.l4:]
	proto, at := byte(protoTCP), 16
	if h.udp {
		proto, at = protoUDP, 6
		be.PutUint16(l4[4:], uint16(len(l4)))
	} else {
		be.PutUint32(l4[4:], be.Uint32(l4[4:])+uint32(done))
		if !last {
			l4[13] &^= 0x09 // FIN, PSH
		}
		if !first {
			l4[13] &^= 0x80 // CWR
		}
	}
	be.PutUint16(l4[at:], fold(h.pseudo(b, proto, len(l4))))
	completeChecksum(b, h.l4, at)
}

// pseudo is the sum of the pseudo header of n bytes of L4.
func (h *gsoFrame) pseudo(b []byte, proto byte, n int) uint64 {
	addrs := b[h.l3+8 : h.l3+40]
	if h.v4 {
		addrs = b[h.l3+12 : h.l3+20]
	}
	return sum(uint64(proto)+uint64(n), addrs)
}

// completeChecksum sums b from start, which includes what the checksum field
// holds, and puts the checksum there. 0 is written as 0xffff, which is the same
// number and does not say "none" in UDP.
func completeChecksum(b []byte, start, offset int) {
	if start+offset+2 > len(b) {
		return
	}
	c := ^fold(sum(0, b[start:]))
	if c == 0 {
		c = 0xffff
	}
	binary.BigEndian.PutUint16(b[start+offset:], c)
}

// sum adds the big-endian 16-bit words of b, padded with a zero byte, to acc
// (RFC 1071). It takes 32 bits at a time: a sum of 16-bit words is the same.
func sum(acc uint64, b []byte) uint64 {
	for ; len(b) >= 8; b = b[8:] {
		v := binary.BigEndian.Uint64(b)
		acc += v>>32 + v&0xffffffff
	}
	for ; len(b) >= 2; b = b[2:] {
		acc += uint64(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		acc += uint64(b[0]) << 8
	}
	return acc
}

// fold brings a sum to 16 bits.
func fold(acc uint64) uint16 {
	for acc > 0xffff {
		acc = acc>>16 + acc&0xffff
	}
	return uint16(acc)
}
