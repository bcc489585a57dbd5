package mlx5

import "encoding/binary"

// EndOfListLKey in a segment of zero bytes ends the list of a receive WQE that
// uses fewer segments than it has room for.
const EndOfListLKey = 0x100

// inlineFlag in the byte count makes a data segment an inline one.
const inlineFlag = 1 << 31

// PutData writes the 16 bytes of a data segment: n bytes at addr, in the region
// lkey names. n must not be 0 in a send WQE: the device reads that as 2 GiB.
func PutData(b []byte, n uint32, lkey uint32, addr uint64) {
	s := (*[DataSegSize]byte)(b)
	put64(s[0:8], uint64(n)<<32|uint64(lkey))
	put64(s[8:16], addr)
}

// PutInlineDataHeader writes the 4 bytes ahead of n bytes of inline data.
func PutInlineDataHeader(b []byte, n int) {
	binary.BigEndian.PutUint32(b[:InlineHeaderSize], inlineFlag|uint32(n))
}

// InlineDS is how many DS an inline data segment of n bytes takes.
func InlineDS(n int) int { return (InlineHeaderSize + n + DSSize - 1) / DSSize }

// PutInlineData writes an inline data segment that holds data, pads it with
// zeros to the next DS and returns how many DS it takes. b must have that many.
func PutInlineData(b, data []byte) int {
	ds := InlineDS(len(data))
	PutInlineDataHeader(b, len(data))
	clear(b[InlineHeaderSize+copy(b[InlineHeaderSize:], data) : ds*DSSize])
	return ds
}
