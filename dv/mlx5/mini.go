package mlx5

import "encoding/binary"

// MiniCQESize is the size of one completion of a compressed session, in bytes;
// MinisPerCQE of them fill a CQE.
const (
	MiniCQESize = 8
	MinisPerCQE = CQESize / MiniCQESize
)

// MiniFormat says what a compressed session keeps per frame
// (mini_cqe_res_format of the device; not the bit numbers of mlx5dv).
type MiniFormat uint8

// What a session can keep beside the length: the hash, the checksum, the flow
// tag or the header type; of striding receive queues also the first stride.
const (
	MiniHash         MiniFormat = 0
	MiniCsum         MiniFormat = 1
	MiniTagStride    MiniFormat = 2
	MiniCsumStride   MiniFormat = 3
	MiniHeaderStride MiniFormat = 4
)

// MiniCQE is one 8-byte completion, as a big-endian word.
type MiniCQE uint64

// Mini is number i, modulo MinisPerCQE, of the 8 in an array slot.
func (c *CQE) Mini(i uint32) MiniCQE {
	at := i * MiniCQESize & (CQESize - MiniCQESize)
	return MiniCQE(binary.BigEndian.Uint64(c[at : at+MiniCQESize]))
}

// Hash returns the RSS hash (MiniHash).
func (m MiniCQE) Hash() uint32 { return uint32(m >> 32) }

// Checksum returns the ones' complement sum (MiniCsum, MiniCsumStride).
func (m MiniCQE) Checksum() uint16 { return uint16(m >> 48) }

// StrideIndex returns the first stride (the Stride formats).
func (m MiniCQE) StrideIndex() uint16 { return uint16(m >> 32) }

// ByteCount returns the length of the frame, or the striding form of it. MiniTagStride
// has only its low 24 bits.
func (m MiniCQE) ByteCount() uint32 { return uint32(m) }
