package simnic

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"
)

// headerOf is Ethernet, tags VLAN tags, IPv4 (with 4 bytes of options) or IPv6,
// and TCP or UDP, with the lengths for n bytes of payload and no checksum. l3
// and l4 are where those start.
func headerOf(v6, udp bool, tags, n int) (b []byte, l3, l4 int) {
	b = append(b, 2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1)
	for range tags {
		b = append(b, 0x81, 0, 0, 5)
	}
	proto := byte(6)
	if udp {
		proto = 17
	}
	if v6 {
		b = append(b, 0x86, 0xdd)
		l3 = len(b)
		b = append(b, 0x60, 0, 0, 0, 0, 0, proto, 64)
		b = append(b, bytes.Repeat([]byte{0xfd}, 15)...)
		b = append(b, 1)
		b = append(b, bytes.Repeat([]byte{0xfd}, 15)...)
		b = append(b, 2)
	} else {
		b = append(b, 0x08, 0x00)
		l3 = len(b)
		b = append(b, 0x46, 0, 0, 0, 0xff, 0xff, 0x40, 0, 64, proto, 0, 0, 192, 168, 1, 1, 192, 168, 1, 2, 1, 1, 1, 1)
	}
	l4 = len(b)
	l4Len := 24
	if udp {
		l4Len = 8
	}
	if v6 {
		binary.BigEndian.PutUint16(b[l3+4:], uint16(l4Len+n))
	} else {
		binary.BigEndian.PutUint16(b[l3+2:], uint16(l4-l3+l4Len+n))
	}
	b = binary.BigEndian.AppendUint16(b, 1000)
	b = binary.BigEndian.AppendUint16(b, 2000)
	if udp {
		return append(binary.BigEndian.AppendUint16(b, uint16(8+n)), 0, 0), l3, l4
	}
	b = binary.BigEndian.AppendUint32(b, 0xfffffff0) // sequence number, about to wrap
	b = append(b, 0, 0, 0, 7, 6<<4, 0x99, 1, 0, 0, 0, 0, 0)
	return append(b, 1, 1, 1, 1), l3, l4 // FIN PSH ACK CWR, options
}

// referenceChecksum is RFC 1071 in its plainest form.
func referenceChecksum(parts ...[]byte) uint16 {
	var sum uint32
	for i, b := range bytes.Join(parts, nil) {
		if i%2 == 0 {
			sum += uint32(b) << 8
		} else {
			sum += uint32(b)
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// checkFrame recomputes everything in an IP frame, and returns its L4 payload.
func checkFrame(t *testing.T, b []byte, l3, l4 int, udp bool) []byte {
	t.Helper()
	be := binary.BigEndian
	proto, hdr := byte(6), 24
	if udp {
		proto, hdr = 17, 8
	}
	pseudo := make([]byte, 4)
	pseudo[1] = proto
	be.PutUint16(pseudo[2:], uint16(len(b)-l4))
	var addrs []byte
	if b[l3]>>4 == 4 {
		if c := referenceChecksum(b[l3:l4]); c != 0 {
			t.Errorf("IPv4 header checksum is wrong: %x", b[l3:l4])
		}
		if n := int(be.Uint16(b[l3+2:])); n != len(b)-l3 {
			t.Errorf("IPv4 length %d of %d", n, len(b)-l3)
		}
		addrs = b[l3+12 : l3+20]
	} else {
		if n := int(be.Uint16(b[l3+4:])); n != len(b)-l4 {
			t.Errorf("IPv6 length %d of %d", n, len(b)-l4)
		}
		addrs = b[l3+8 : l3+40]
	}
	if udp && int(be.Uint16(b[l4+4:])) != len(b)-l4 {
		t.Errorf("UDP length %d of %d", be.Uint16(b[l4+4:]), len(b)-l4)
	}
	if c := referenceChecksum(addrs, pseudo, b[l4:]); c != 0 {
		t.Errorf("L4 checksum is wrong by %#x: %x", c, b[l4:])
	}
	return b[l4+hdr:]
}

func gsoKind(v6, udp bool) GSO {
	switch {
	case udp:
		return GSOUDP
	case v6:
		return GSOTCPv6
	}
	return GSOTCPv4
}

func TestCutFrame(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, udp := range []bool{false, true} {
			for tags := range 3 {
				for _, n := range []int{0, 1, 99, 100, 101, 1000, 60000} {
					t.Run(fmt.Sprintf("v6=%v,udp=%v,tags=%d,%d", v6, udp, tags, n), func(t *testing.T) {
						testCut(t, v6, udp, tags, n)
					})
				}
			}
		}
	}
}

func testCut(t *testing.T, v6, udp bool, tags, n int) {
	hdr, l3, l4 := headerOf(v6, udp, tags, n)
	payload := make([]byte, n)
	for i := range payload {
		payload[i] = byte(i*7 + i>>8)
	}
	f := Frame{
		Data: append(bytes.Clone(hdr), payload...), NeedsCsum: true,
		CsumStart: uint16(l4), CsumOffset: 16, GSO: gsoKind(v6, udp), HdrLen: uint16(len(hdr)), MSS: 100,
	}
	if udp {
		f.CsumOffset = 6
	}
	before := bytes.Clone(f.Data)
	buf := bytes.Repeat([]byte{0xa5}, 3000)
	var joined []byte
	segments := 0
	cutFrame(f, &buf, func(s Frame) {
		if s.GSO != GSONone || s.NeedsCsum {
			t.Error("segment is not finished")
		}
		if !bytes.Equal(s.Data[:l3], hdr[:l3]) {
			t.Errorf("Ethernet header %x", s.Data[:l3])
		}
		last := (segments+1)*100 >= n
		if !v6 && binary.BigEndian.Uint16(s.Data[l3+4:]) != uint16(0xffff+segments) {
			t.Errorf("segment %d has identification %x", segments, s.Data[l3+4:l3+6])
		}
		if !udp {
			if seq := binary.BigEndian.Uint32(s.Data[l4+4:]); seq != 0xfffffff0+uint32(segments*100) {
				t.Errorf("segment %d has sequence number %#x", segments, seq)
			}
			want := byte(0x10)
			if last {
				want |= 0x09
			}
			if segments == 0 {
				want |= 0x80
			}
			if s.Data[l4+13] != want {
				t.Errorf("segment %d has flags %#x, want %#x", segments, s.Data[l4+13], want)
			}
		}
		joined = append(joined, checkFrame(t, s.Data, l3, l4, udp)...)
		segments++
	})
	if want := max(1, (n+99)/100); segments != want {
		t.Errorf("%d segments, want %d", segments, want)
	}
	if !bytes.Equal(joined, payload) {
		t.Error("payload changed")
	}
	if !bytes.Equal(f.Data, before) {
		t.Error("the frame given was written to")
	}
}

// udpFrame is a finished frame of 5 bytes of payload behind tags VLAN tags.
func udpFrame(t *testing.T, tags int) Frame {
	t.Helper()
	hdr, l3, l4 := headerOf(false, true, tags, 5)
	f := Frame{
		Data: append(hdr, "hello"...), NeedsCsum: true, CsumStart: uint16(l4), CsumOffset: 6,
		GSO: GSOUDP, HdrLen: uint16(len(hdr)), MSS: 100,
	}
	var buf []byte
	cutFrame(f, &buf, func(s Frame) { f = cloneFrame(s) })
	checkFrame(t, f.Data, l3, l4, true)
	return f
}

func TestPlainFramePassesUncopied(t *testing.T) {
	f, buf := numbered(1), []byte(nil)
	cutFrame(f, &buf, func(s Frame) {
		if &s.Data[0] != &f.Data[0] {
			t.Error("copied")
		}
	})
}

// Whatever the metadata says, cutting neither panics nor loops.
func FuzzCutFrame(f *testing.F) {
	hdr, _, l4 := headerOf(false, false, 0, 7)
	f.Add(append(hdr, "payload"...), byte(GSOTCPv4), uint16(l4), uint16(16), uint16(len(hdr)), uint16(3))
	hdr, _, l4 = headerOf(true, true, 1, 7)
	f.Add(append(hdr, "payload"...), byte(GSOUDP), uint16(l4), uint16(6), uint16(len(hdr)), uint16(3))
	f.Fuzz(func(t *testing.T, data []byte, kind byte, start, offset, hdrLen, mss uint16) {
		var buf []byte
		fr := Frame{Data: data, NeedsCsum: true, CsumStart: start, CsumOffset: offset, GSO: GSO(kind % 4), HdrLen: hdrLen, MSS: mss}
		total := 0
		cutFrame(fr, &buf, func(s Frame) { total += len(s.Data) })
		if total < len(data) {
			t.Errorf("%d bytes became %d", len(data), total)
		}
	})
}
