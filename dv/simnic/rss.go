package simnic

import "encoding/binary"

// DefaultHashKey is the Toeplitz key that Microsoft published with its test
// vectors and most drivers use.
var DefaultHashKey = [40]byte{
	0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb,
	0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
}

// toeplitz holds, for each of the 36 bytes of the longest input and each value of
// that byte, what it adds to the hash.
type toeplitz [36][256]uint32

func newToeplitz(key [40]byte) *toeplitz {
	t := new(toeplitz)
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
	return t
}

// sum is the Toeplitz hash of at most 36 bytes.
func (t *toeplitz) sum(in []byte) uint32 {
	var h uint32
	for i, b := range in[:min(len(in), len(t))] {
		h ^= t[i][b]
	}
	return h
}
