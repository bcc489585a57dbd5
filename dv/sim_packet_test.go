package dv_test

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv"
)

// packet is an IP packet of proto with right checksums, to our MAC.
func packet(src, dst netip.AddrPort, proto uint8, payload int) []byte {
	l4 := make([]byte, payload+map[uint8]int{6: 20, 17: 8}[proto])
	for i := range l4 {
		l4[i] = byte(i * 3)
	}
	sumAt := -1
	if proto == 6 || proto == 17 {
		binary.BigEndian.PutUint16(l4, src.Port())
		binary.BigEndian.PutUint16(l4[2:], dst.Port())
	}
	switch proto {
	case 6:
		l4[12], l4[13], sumAt = 0x50, 0x10, 16
	case 17:
		binary.BigEndian.PutUint16(l4[4:], uint16(len(l4)))
		sumAt = 6
	}
	s, d := src.Addr().AsSlice(), dst.Addr().AsSlice()
	if sumAt >= 0 {
		l4[sumAt], l4[sumAt+1] = 0, 0
		pseudo := append(append(bytes.Clone(s), d...), 0, proto, byte(len(l4)>>8), byte(len(l4)))
		binary.BigEndian.PutUint16(l4[sumAt:], ^checksum(append(pseudo, l4...)))
	}
	return append(ipHeader(s, d, proto, len(l4)), l4...)
}

// ipHeader is an Ethernet header to our MAC and an IPv4 or IPv6 one.
func ipHeader(src, dst []byte, proto uint8, n int) []byte {
	h := append(bytes.Clone(ourMAC), peerMAC...)
	if len(src) == 4 {
		ip := []byte{0x45, 0, byte((n + 20) >> 8), byte(n + 20), 0, 1, 0, 0, 64, proto, 0, 0}
		ip = append(append(ip, src...), dst...)
		binary.BigEndian.PutUint16(ip[10:], ^checksum(ip))
		return append(append(h, 0x08, 0x00), ip...)
	}
	ip := []byte{0x60, 0, 0, 0, byte(n >> 8), byte(n), proto, 64}
	return append(append(append(h, 0x86, 0xdd), append(ip, src...)...), dst...)
}

// checksum is the ones' complement sum of b.
func checksum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	if len(b)%2 == 1 {
		sum += uint32(b[len(b)-1]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

// flows is the i'th flow of each class.
func flows(i int) map[string]dv.Flow {
	v4 := func(host int, port int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(host)}), uint16(port))
	}
	v6 := func(host int, port int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8,
			15: byte(host)}), uint16(port))
	}
	return map[string]dv.Flow{
		"TCP over IPv4": {Proto: 6, Src: v4(7, 30000+i), Dst: v4(1, 80)},
		"UDP over IPv4": {Proto: 17, Src: v4(7, 40000+i), Dst: v4(1, 53)},
		"TCP over IPv6": {Proto: 6, Src: v6(7, 30000+i), Dst: v6(1, 80)},
		"UDP over IPv6": {Proto: 17, Src: v6(7, 40000+i), Dst: v6(1, 53)},
		"ICMP":          {Proto: 1, Src: v4(7+i, 0), Dst: v4(1, 0)},
		"ICMPv6":        {Proto: 58, Src: v6(7+i, 0), Dst: v6(1, 0)},
	}
}

// onlyQueue is the queue that the one frame under way came to.
func onlyQueue(t *testing.T, d *dv.Device, what string) int {
	t.Helper()
	queue := -1
	for i := range d.NumRx() {
		for _, p := range poll(d.Rx(i)) {
			if queue >= 0 {
				t.Fatalf("%s: more than one frame", what)
			}
			if queue = i; p.Flags&dv.RxHash == 0 {
				t.Fatalf("%s: no hash", what)
			}
		}
	}
	if queue < 0 {
		t.Fatalf("%s: no frame", what)
	}
	return queue
}
