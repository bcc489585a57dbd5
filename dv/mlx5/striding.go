package mlx5

import "encoding/binary"

// Reading of a CQE of a striding receive queue, whose WQEs hold many frames.

// WQEID is the index of the WQE the frame is in, modulo the size of the ring.
func (c *CQE) WQEID() uint16 { return binary.BigEndian.Uint16(c[0x02:0x04]) }

// Filler reports a completion without a frame: the rest of the WQE was too
// small for the next one.
func (c *CQE) Filler() bool { return c[0x2c]&0x80 != 0 }

// Strides is how many strides this completion consumed.
func (c *CQE) Strides() int { return int(binary.BigEndian.Uint16(c[0x2c:0x2e]) & 0x7fff) }

// StridingBytes is the length of the frame in bytes.
func (c *CQE) StridingBytes() int { return int(binary.BigEndian.Uint16(c[0x2e:0x30])) }

// PutNext writes the 16-byte head of a striding receive WQE. index links WQEs
// of linked-list queues; cyclic ones want 0.
func PutNext(b []byte, index uint16) {
	s := (*[16]byte)(b)
	put64(s[0:8], uint64(index)<<32)
	put64(s[8:16], 0)
}
