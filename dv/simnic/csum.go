package simnic

import (
	"encoding/binary"
	"math/bits"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
)

// sum16 is the ones' complement sum of b as big-endian 16-bit words (RFC 1071),
// not inverted. A last odd byte counts as the high half of a word.
func sum16(b []byte) uint16 {
	var s, t, carry uint64
	for ; len(b) >= 64; b = b[64:] { // two chains of additions with carry, which the processor does side by side
		p := (*[64]byte)(b)
		s, carry = bits.Add64(s, binary.LittleEndian.Uint64(p[:]), 0)
		s, carry = bits.Add64(s, binary.LittleEndian.Uint64(p[8:]), carry)
		s, carry = bits.Add64(s, binary.LittleEndian.Uint64(p[16:]), carry)
		s, carry = bits.Add64(s, binary.LittleEndian.Uint64(p[24:]), carry)
		s += carry
		t, carry = bits.Add64(t, binary.LittleEndian.Uint64(p[32:]), 0)
		t, carry = bits.Add64(t, binary.LittleEndian.Uint64(p[40:]), carry)
		t, carry = bits.Add64(t, binary.LittleEndian.Uint64(p[48:]), carry)
		t, carry = bits.Add64(t, binary.LittleEndian.Uint64(p[56:]), carry)
		t += carry
	}
	s, carry = bits.Add64(s, t, 0)
	s += carry
	for len(b) >= 8 {
		s, carry = bits.Add64(s, binary.LittleEndian.Uint64(b), 0)
		s += carry
		b = b[8:]
	}
	if len(b) > 0 {
		var last [8]byte
		copy(last[:], b)
		s, carry = bits.Add64(s, binary.LittleEndian.Uint64(last[:]), 0)
		s += carry
	}
	s = s>>32 + s&0xffffffff
	s = s>>32 + s&0xffffffff
	s = s>>16 + s&0xffff
	s = s>>16 + s&0xffff
	return bits.ReverseBytes16(uint16(s))
}

// add16 is the ones' complement sum of sums.
func add16(sums ...uint16) uint16 {
	var s uint32
	for _, v := range sums {
		s += uint32(v)
	}
	return fold16(s)
}

// fold16 is the ones' complement sum of the words added up in s.
func fold16(s uint32) uint16 {
	s = s>>16 + s&0xffff
	return uint16(s>>16 + s)
}

// pseudo is the sum of the pseudo header for an L4 part of n bytes.
func (p *parsed) pseudo(b []byte, n int) uint16 {
	h := b[p.l3At:]
	var addrs uint16
	if p.l3 == mlx5.L3IPv4 {
		addrs = sum16(h[12:20])
	} else {
		addrs = sum16(h[8:40])
	}
	return add16(addrs, uint16(p.proto), uint16(n>>16), uint16(n))
}

// setIPv4Checksum writes the header checksum if there is an IPv4 header.
func (p *parsed) setIPv4Checksum(b []byte) {
	if p.l3 != mlx5.L3IPv4 {
		return
	}
	h := b[p.l3At : p.l3At+int(b[p.l3At]&15)*4]
	binary.BigEndian.PutUint16(h[10:], 0)
	binary.BigEndian.PutUint16(h[10:], ^sum16(h))
}

// seed writes the pseudo header's sum where the L4 checksum belongs, for
// somebody else to complete. It reports whether there is such a place.
func (p *parsed) seed(b []byte) bool {
	if p.l4At == 0 || p.short {
		return false
	}
	binary.BigEndian.PutUint16(b[p.csumAt():], p.pseudo(b, p.end-p.l4At))
	return true
}

// checksumOf turns the sum of an L4 part and its pseudo header into a checksum.
// UDP sends 0 as 0xffff (RFC 768); for TCP the two mean the same and 0 is kept.
func checksumOf(sum uint16, udp bool) uint16 {
	if c := ^sum; c != 0 || !udp {
		return c
	}
	return 0xffff
}

// CompleteChecksum writes the L4 checksum of a frame that needs it, in place. The sum
// ends with the datagram, so that padding does not matter.
func (f *Frame) CompleteChecksum() {
	if at := int(f.CsumStart) + int(f.CsumOffset); f.NeedsCsum && at+2 <= len(f.Data) {
		c := checksumOf(sum16(f.Data[f.CsumStart:]), f.CsumOffset == 6)
		binary.BigEndian.PutUint16(f.Data[at:], c)
	}
	f.NeedsCsum = false
}
