package simnic

import (
	"bytes"
	"encoding/binary"
	"math/bits"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

// DefaultHashKey is the Toeplitz key that Microsoft published with its test
// vectors and most drivers use.
var DefaultHashKey = [40]byte{
	0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f,
	0xb0, 0xd0, 0xca, 0x2b, 0xcb,
	0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7,
	0x3b, 0xbe, 0xac, 0x01, 0xfa,
}

// toeplitz holds, for each of the 36 bytes of the longest input and each value of that byte, its
// contribution to the hash.
type toeplitz [36][256]uint32

// hashTable holds the table of a key, and the key. A NIC keeps the last one: the TIRs
// of a driver usually share a key.
type hashTable struct {
	key [40]byte
	toeplitz
}

// hashTable returns the table of a key.
func (n *NIC) hashTable(key [40]byte) *toeplitz {
	if t := n.lastHash.Load(); t != nil && t.key == key {
		return &t.toeplitz
	}
	t := &hashTable{key: key}
	t.toeplitz.fillTable(key)
	n.lastHash.Store(t)
	return &t.toeplitz
}

func (t *toeplitz) fillTable(key [40]byte) {
	for i := range t {
		window := uint64(binary.BigEndian.Uint32(key[i:]))<<8 | uint64(key[i+4])
		for v := 1; v < 256; v++ {
			for bit := 0; bit < 8; bit++ {
				if v&(0x80>>bit) != 0 {
					t[i][v] ^= uint32(window >> (8 - bit))
				}
			}
		}
	}
}

// xor8 returns the hash of HashXOR8.
func xor8(in []byte) uint32 {
	var h uint8
	for _, b := range in {
		h ^= b
	}
	return uint32(bits.Reverse8(h))
}

// hashBytes returns the Toeplitz hash of at most 36 bytes.
func (t *toeplitz) hashBytes(in []byte) uint32 {
	var h uint32
	for i, b := range in[:min(len(in), len(t))] {
		h ^= t[i][b]
	}
	return h
}

// Parts of a completion's hash type.
const (
	hashTypeSrc  = 0 // shift of the source address, 2 bits: 1 IPv4, 2 IPv6
	hashTypeDst  = 2
	hashTypePort = 4 // shift of the source port, 2 bits: 1 TCP, 2 UDP
	hashTypeDpt  = 6
)

// addresses appends the selected addresses to in. It returns nil if the frame has the other IP
// version or none.
func (s *HashSelection) addresses(in, data []byte, p *frame.Headers, kind *uint8) []byte {
	at, size, code := p.L3At+12, 4, uint8(1)
	want := uint8(mlx5.L3IPv4)
	if s.IPv6 {
		at, size, code, want = p.L3At+8, 16, 2, mlx5.L3IPv6
	}
	if p.L3 != want {
		return nil
	}
	if s.Fields&HashSrcIP != 0 {
		in = append(in, data[at:at+size]...)
		*kind |= code << hashTypeSrc
	}
	if s.Fields&HashDstIP != 0 {
		in = append(in, data[at+size:at+2*size]...)
		*kind |= code << hashTypeDst
	}
	return in
}

// appendPorts appends the selected ports to in. It returns nil for a fragment or another protocol.
func (s *HashSelection) appendPorts(in, data []byte, p *frame.Headers, kind *uint8) []byte {
	proto, code := uint8(frame.ProtoTCP), uint8(1)
	if s.UDP {
		proto, code = frame.ProtoUDP, 2
	}
	if p.L4At == 0 || p.Proto != proto {
		return nil
	}
	if s.Fields&HashSrcPort != 0 {
		in = append(in, data[p.L4At:p.L4At+2]...)
		*kind |= code << hashTypePort
	}
	if s.Fields&HashDstPort != 0 {
		in = append(in, data[p.L4At+2:p.L4At+4]...)
		*kind |= code << hashTypeDpt
	}
	return in
}

// orderTuple puts the smaller of two addresses, and of two ports, first, so that both directions of
// a flow have the same hash.
func (s *HashSelection) orderTuple(in []byte) {
	if s.Fields&HashSrcIP != 0 && s.Fields&HashDstIP != 0 {
		size := 4
		if s.IPv6 {
			size = 16
		}
		swapIfGreater(in[:size], in[size:2*size])
		in = in[2*size:]
	}
	if s.Fields&HashSrcPort != 0 && s.Fields&HashDstPort != 0 {
		in = in[len(in)-4:]
		swapIfGreater(in[:2], in[2:])
	}
}

// swapIfGreater exchanges a and b, of equal length and at most 16 bytes.
func swapIfGreater(a, b []byte) {
	if bytes.Compare(a, b) <= 0 {
		return
	}
	for i := range a {
		a[i], b[i] = b[i], a[i]
	}
}
