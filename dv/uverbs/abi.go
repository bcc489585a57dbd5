package uverbs

import (
	"encoding/binary"
	"fmt"
)

// The structs of abi_core.go and abi_mlx5.go are laid out without implicit padding, so writing
// their fields one after the other in host order gives the C layout; abi_test.go compares every
// size and offset with the C headers.

// SizeOf returns the size in bytes of a uAPI struct of this package (a value or a pointer to one).
func SizeOf(v any) int {
	n := binary.Size(v)
	if n < 0 {
		panic(fmt.Sprintf("uverbs: %T has no fixed size", v))
	}
	return n
}

// PutStruct writes the uAPI struct v at the start of dst in host byte order and returns its size.
// It panics when dst is shorter than the struct.
func PutStruct(dst []byte, v any) int {
	n, err := binary.Encode(dst, binary.NativeEndian, v)
	if err != nil {
		panic(fmt.Sprintf("uverbs: encode %T of %d bytes into %d: %v", v, SizeOf(v), len(dst), err))
	}
	return n
}

// GetStruct fills the uAPI struct that v points to from src. As in the kernel's own copies, bytes
// that src does not have read as zero and surplus bytes of src are ignored. This allows a struct to
// grow between kernel versions.
func GetStruct(src []byte, v any) {
	n := SizeOf(v)
	if len(src) < n {
		src = append(make([]byte, 0, n), src...)[:n]
	}
	if _, err := binary.Decode(src, binary.NativeEndian, v); err != nil {
		panic(fmt.Sprintf("uverbs: decode %T from %d bytes: %v", v, len(src), err))
	}
}

// BE16, BE32 and BE64 are fields that the uAPI has in network byte order (__be16, __be32, __be64).
type (
	BE16 [2]byte
	BE32 [4]byte
	BE64 [8]byte
)

// ToBE16 returns v in network byte order.
func ToBE16(v uint16) (b BE16) { binary.BigEndian.PutUint16(b[:], v); return b }

// ToBE32 returns v in network byte order.
func ToBE32(v uint32) (b BE32) { binary.BigEndian.PutUint32(b[:], v); return b }

// ToBE64 returns v in network byte order.
func ToBE64(v uint64) (b BE64) { binary.BigEndian.PutUint64(b[:], v); return b }

// Value returns the number the field holds.
func (b BE16) Value() uint16 { return binary.BigEndian.Uint16(b[:]) }

// Value returns the number the field holds.
func (b BE32) Value() uint32 { return binary.BigEndian.Uint32(b[:]) }

// Value returns the number the field holds.
func (b BE64) Value() uint64 { return binary.BigEndian.Uint64(b[:]) }
