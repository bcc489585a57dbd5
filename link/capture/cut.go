package capture

import (
	"encoding/binary"
	"time"
)

// TCP flags, RFC 9293 section 3.1: those of the last segment only, and of the first only.
const (
	flagsLast  = 0x01 | 0x08 // FIN, PSH
	flagsFirst = 0x80        // CWR
)

// recordSegments records the segments, or datagrams, into which the NIC cuts a frame: each with the
// headers of the whole, its own lengths, IPv4 identification and sequence number.
func (t *Tap) recordSegments(s *shard, b *Batch, h *held, order time.Time) {
	frame := b.data[h.from : h.from+h.kept]
	if h.headers > len(frame) {
		return
	}
	p := parseHeaders(frame)
	if p.l4 == 0 || !(p.proto == protoTCP && p.l4+tcpLen <= h.headers ||
		p.proto == protoUDP && p.l4+udpLen <= h.headers) {
		t.recordFrame(s, b, h, frame, h.length, order)
		return
	}
	payload := frame[h.headers:]
	for done, i := 0, 0; done < h.length-h.headers; done, i = done+h.mss, i+1 {
		size := min(h.mss, h.length-h.headers-done)
		s.segment = append(s.segment[:0], frame[:h.headers]...)
		if done < len(payload) {
			s.segment = append(s.segment, payload[done:min(done+size, len(payload))]...)
		}
		last := done+size == h.length-h.headers
		rewriteHeaders(s.segment, &p, i, done, h.headers+size, last)
		completeSums(s.segment, h.headers+size, false)
		t.recordFrame(s, b, h, s.segment, h.headers+size, order)
	}
}

// rewriteHeaders makes the headers those of segment i, whose payload begins done bytes into that of
// the whole. length is the segment's, in bytes.
func rewriteHeaders(frame []byte, p *headers, i, done, length int, last bool) {
	ip, l4 := frame[p.l3:], frame[p.l4:]
	if p.etherType == typeIPv4 {
		binary.BigEndian.PutUint16(ip[2:], uint16(length-p.l3))
		binary.BigEndian.PutUint16(ip[4:], binary.BigEndian.Uint16(ip[4:])+uint16(i))
	} else {
		binary.BigEndian.PutUint16(ip[4:], uint16(length-p.l3-ipv6Len))
	}
	if p.proto == protoUDP {
		binary.BigEndian.PutUint16(l4[4:], uint16(length-p.l4))
		return
	}
	binary.BigEndian.PutUint32(l4[4:], binary.BigEndian.Uint32(l4[4:])+uint32(done))
	if !last {
		l4[13] &^= flagsLast
	}
	if i > 0 {
		l4[13] &^= flagsFirst
	}
}
