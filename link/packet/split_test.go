package packet

import (
	"bytes"
	"net/netip"
	"testing"
)

// FuzzSplit cuts up any frame that a neighbour may send: no payload may be lost or invented, and
// the frame must be unchanged afterwards.
func FuzzSplit(f *testing.F) {
	mac := bytes.Repeat([]byte{2}, 6)
	for _, to := range []string{"192.0.2.1", "2001:db8::1"} {
		a := netip.MustParseAddr(to)
		etherType := uint16(typeIPv4)
		if a.Is6() {
			etherType = typeIPv6
		}
		whole := testFrame(mac, etherType, testIP(a, protoUDP, make([]byte, udpLen+3000)))
		f.Add(whole, uint16(1200))
		f.Add(whole[:ethLen+ipv4Len+udpLen], uint16(1))
		short := bytes.Clone(whole)
		short[ethLen] = 0x41 // an IP header of 4 bytes
		f.Add(short, uint16(7))
	}
	f.Fuzz(func(t *testing.T, frame []byte, size uint16) {
		var s splitter
		before := bytes.Clone(frame)
		if !s.beginFrame(frame, int(size)) {
			return
		}
		header, got := s.header, []byte(nil)
		for s.hasMore() {
			d := s.nextDatagram()
			if n := len(d) - header; n <= 0 || n > int(size) {
				t.Fatalf("a datagram of %d bytes, of %d at most", n, size)
			}
			got = append(got, d[header:]...)
		}
		if !bytes.Equal(got, frame[header:]) {
			t.Errorf("%d bytes of payload became %d", len(frame)-header, len(got))
		}
		if !bytes.Equal(frame, before) {
			t.Error("the frame was changed")
		}
	})
}

// testFrame and testIP need no system.
func testFrame(mac []byte, etherType uint16, packet []byte) []byte {
	f := append(append(append([]byte(nil), mac...), mac...), byte(etherType>>8), byte(etherType))
	return append(f, packet...)
}

func testIP(a netip.Addr, proto byte, payload []byte) []byte {
	if a.Is6() {
		h := make([]byte, ipv6Len)
		h[0], h[6] = 0x60, proto
		return append(h, payload...)
	}
	h := make([]byte, ipv4Len)
	h[0], h[9] = 0x45, proto
	return append(h, payload...)
}
