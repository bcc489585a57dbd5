package pcie

import "encoding/binary"

// field is a bit field of a firmware structure: its first bit, counted from the most
// significant bit of byte 0, and its width. All firmware structures are big-endian (linux
// include/linux/mlx5/mlx5_ifc.h names them).
type field struct{ bit, width int }

// get reads the field from b; bits beyond the end of b read as zero.
func (f field) get(b []byte) uint64 {
	var v uint64
	for i := f.bit; i < f.bit+f.width; {
		n := min(8-i%8, f.bit+f.width-i)
		v <<= n
		if i/8 < len(b) {
			v |= uint64(b[i/8]>>(8-i%8-n)) & (1<<n - 1)
		}
		i += n
	}
	return v
}

// set writes the low bits of v into the field; the rest of b keeps its value, and bits
// beyond its end are dropped.
func (f field) set(b []byte, v uint64) {
	for i := f.bit + f.width; i > f.bit; {
		n := min((i-1)%8+1, i-f.bit)
		i -= n
		if i/8 < len(b) {
			shift := 8 - i%8 - n
			mask := byte(1<<n-1) << shift
			b[i/8] = b[i/8]&^mask | byte(v<<shift)&mask
		}
		v >>= n
	}
}

func (f field) is(b []byte) bool    { return f.get(b) != 0 }
func (f field) u32(b []byte) uint32 { return uint32(f.get(b)) }

// number is the 24-bit object number at bytes 9 to 11, where nearly every command names its object
// and where the reply to a create command has the new one.
var number = field{72, 24}

// part returns b[off:off+n], or zeros where b is shorter, so that a context can be decoded
// from a short command.
func part(b []byte, off, n int) []byte {
	if off+n <= len(b) {
		return b[off : off+n]
	}
	out := make([]byte, n)
	if off < len(b) {
		copy(out, b[off:])
	}
	return out
}

// addresses reads big-endian 64-bit words from off to the end of b: page lists.
func addresses(b []byte, off int) []uint64 {
	var out []uint64
	for ; off+8 <= len(b); off += 8 {
		out = append(out, binary.BigEndian.Uint64(b[off:]))
	}
	return out
}
