// Package simtest has what the tests of the software NIC's packages share: test
// frames as bytes, a plain checksum to compare with, the seed of random numbers.
package simtest

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// Seed returns TEST_SEED, or one that it chooses and logs.
func Seed(t testing.TB) uint64 {
	t.Helper()
	if s := os.Getenv("TEST_SEED"); s != "" {
		seed, err := strconv.ParseUint(s, 0, 64)
		if err != nil {
			t.Fatalf("TEST_SEED: %v", err)
		}
		return seed
	}
	seed := rand.Uint64()
	t.Logf("TEST_SEED=%d", seed)
	return seed
}

// Header builds Ethernet, tags VLAN tags, IPv4 (with 4 bytes of options) or IPv6, and TCP or UDP,
// with the lengths for n bytes of payload and no checksum. l3 and l4 are where those start.
func Header(v6, udp bool, tags, n int) (b []byte, l3, l4 int) {
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
		b = append(b, 0x46, 0, 0, 0, 0xff, 0xff, 0x40, 0, 64, proto, 0, 0, 192, 168, 1, 1,
			192, 168, 1, 2, 1, 1, 1, 1)
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

// Checksum computes that of RFC 1071 in its plainest form.
func Checksum(parts ...[]byte) uint16 {
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

// CheckFrame recomputes everything in an IP frame, and returns its L4 payload.
func CheckFrame(t testing.TB, b []byte, l3, l4 int, udp bool) []byte {
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
		if c := Checksum(b[l3:l4]); c != 0 {
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
	if c := Checksum(addrs, pseudo, b[l4:]); c != 0 {
		t.Errorf("L4 checksum is wrong by %#x: %x", c, b[l4:])
	}
	return b[l4+hdr:]
}
