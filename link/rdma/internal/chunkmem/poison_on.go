//go:build chunkpoison

package chunkmem

import "golang.org/x/sys/unix"

const (
	// Poisoned says that what is released is overwritten and unmapped.
	Poisoned = true
	// chunkSize is one byte more than package buffer pools, so that a chunk is used once.
	chunkSize = pieceSize + 1
	// pieceStride is whole pages, of 4 KiB or 16.
	pieceStride = pieceSize + 16<<10
)

// mustProtect permits or forbids all access to whole pages.
func mustProtect(b []byte, access bool) {
	prot := unix.PROT_NONE
	if access {
		prot = unix.PROT_READ | unix.PROT_WRITE
	}
	if err := unix.Mprotect(b, prot); err != nil {
		panic(err)
	}
}
