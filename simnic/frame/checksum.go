package frame

import (
	"encoding/binary"
	"math/bits"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
)

// Sum returns the ones' complement sum of b as big-endian 16-bit words (RFC 1071),
// not inverted. A last odd byte counts as the high half of a word.
func Sum(b []byte) uint16 {
	var s, t, carry uint64
	for ; len(b) >= 64; b = b[64:] { // two independent carry chains, which the processor overlaps
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

// AddSums returns the ones' complement sum of sums.
func AddSums(sums ...uint16) uint16 {
	var s uint32
	for _, v := range sums {
		s += uint32(v)
	}
	return foldSum(s)
}

// foldSum returns the ones' complement sum of the words added up in s.
func foldSum(s uint32) uint16 {
	s = s>>16 + s&0xffff
	return uint16(s>>16 + s)
}

// PseudoSum returns the sum of the pseudo header for n bytes of L4 header and payload
// (RFC 9293 section 3.1, RFC 8200 section 8.1). b is the frame of p.
func (p *Headers) PseudoSum(b []byte, n int) uint16 {
	h := b[p.L3At:]
	var addrs uint16
	if p.L3 == mlx5.L3IPv4 {
		addrs = Sum(h[12:20])
	} else {
		addrs = Sum(h[8:40])
	}
	return AddSums(addrs, uint16(p.Proto), uint16(n>>16), uint16(n))
}

// SetIPv4Checksum writes the header checksum if b, the frame of p, is IPv4.
func (p *Headers) SetIPv4Checksum(b []byte) {
	if p.L3 != mlx5.L3IPv4 {
		return
	}
	h := b[p.L3At : p.L3At+int(b[p.L3At]&15)*4]
	binary.BigEndian.PutUint16(h[10:], 0)
	binary.BigEndian.PutUint16(h[10:], ^Sum(h))
}

// SeedChecksum writes the sum of the pseudo header to the checksum field of the
// TCP or UDP header, as NeedsCsum wants it. It reports whether b, the frame of p,
// has a whole datagram with such a header.
func (p *Headers) SeedChecksum(b []byte) bool {
	if p.L4At == 0 || p.Truncated {
		return false
	}
	binary.BigEndian.PutUint16(b[p.ChecksumAt():], p.PseudoSum(b, p.End-p.L4At))
	return true
}

// checksumOf turns the sum of L4 header, payload and pseudo header into a checksum.
// UDP sends 0 as 0xffff (RFC 768); for TCP the two mean the same and 0 is kept.
func checksumOf(sum uint16, udp bool) uint16 {
	if c := ^sum; c != 0 || !udp {
		return c
	}
	return 0xffff
}

// L4Checksum returns the checksum of a frame with NeedsCsum, over all of Data from CsumStart on.
func (f *Frame) L4Checksum() uint16 {
	return checksumOf(Sum(f.Data[f.CsumStart:]), f.CsumOffset == 6)
}

// CompleteChecksum writes the checksum of a frame with NeedsCsum in place, and clears NeedsCsum.
func (f *Frame) CompleteChecksum() {
	if at := int(f.CsumStart) + int(f.CsumOffset); f.NeedsCsum && at+2 <= len(f.Data) {
		binary.BigEndian.PutUint16(f.Data[at:], f.L4Checksum())
	}
	f.NeedsCsum = false
}
