//go:build !chunkpoison

package chunkmem

const (
	// Poisoned says that what is released is overwritten and unmapped.
	Poisoned = false
	// chunkSize is how many bytes of a piece a chunk has.
	chunkSize = pieceSize
	// pieceStride is how many bytes a piece takes.
	pieceStride = pieceSize
)

func mustProtect([]byte, bool) {}
