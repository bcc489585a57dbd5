package mlx5

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"strings"
)

// Field describes one field of a structure: bits [Hi:Lo] of the big-endian word that
// starts at Byte. Bit 0 is the least significant of the word, and the word is
// the smallest of 1, 2, 4 or 8 bytes that has bit Hi.
type Field struct {
	Name   string
	Byte   int
	Hi, Lo uint8
}

// Get reads the field from a structure that starts at b[0].
func (f Field) Get(b []byte) uint64 { return f.word(b) >> f.Lo & f.mask() }

// Put writes the field into a structure that starts at b[0] and leaves the
// other bits alone. A value that does not fit is a broken invariant: it panics.
func (f Field) Put(b []byte, v uint64) {
	if v > f.mask() {
		panic(fmt.Sprintf("mlx5: value %#x does not fit field %s of %d bits", v, f.Name,
			f.Hi-f.Lo+1))
	}
	f.setWord(b, f.word(b)&^(f.mask()<<f.Lo)|v<<f.Lo)
}

// Size returns the width in bytes of the word that holds the field.
func (f Field) Size() int {
	switch {
	case f.Hi < 8:
		return 1
	case f.Hi < 16:
		return 2
	case f.Hi < 32:
		return 4
	}
	return 8
}

// Max returns the largest value that fits.
func (f Field) Max() uint64 { return f.mask() }

func (f Field) mask() uint64 { return ^uint64(0) >> (63 - (f.Hi - f.Lo)) }

func (f Field) word(b []byte) uint64 {
	b = b[f.Byte:]
	switch f.Size() {
	case 1:
		return uint64(b[0])
	case 2:
		return uint64(binary.BigEndian.Uint16(b))
	case 4:
		return uint64(binary.BigEndian.Uint32(b))
	}
	return binary.BigEndian.Uint64(b)
}

func (f Field) setWord(b []byte, v uint64) {
	b = b[f.Byte:]
	switch f.Size() {
	case 1:
		b[0] = byte(v)
	case 2:
		binary.BigEndian.PutUint16(b, uint16(v))
	case 4:
		binary.BigEndian.PutUint32(b, uint32(v))
	default:
		binary.BigEndian.PutUint64(b, v)
	}
}

// Layout is the field table of one structure. Bits that no field names are
// reserved: written as zero, ignored when read.
type Layout struct {
	Name   string
	Size   int // bytes
	Fields []Field
}

// String lists the fields of the structure at b[0] that are not zero.
func (l *Layout) String(b []byte) string {
	var s strings.Builder
	s.WriteString(l.Name)
	for _, f := range l.Fields {
		if v := f.Get(b); v != 0 {
			fmt.Fprintf(&s, " %s=%#x", f.Name, v)
		}
	}
	return s.String()
}

// put64 is binary.BigEndian.PutUint64 in a form that the compiler keeps as one
// store: given v in pieces, it would store the pieces.
func put64(b []byte, v uint64) { binary.LittleEndian.PutUint64(b, bits.ReverseBytes64(v)) }
