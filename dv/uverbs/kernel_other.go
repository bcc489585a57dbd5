//go:build !linux

package uverbs

import "golang.org/x/sys/unix"

// OpenNode fails: uverbs nodes exist on Linux only.
func OpenNode(path string) (Kernel, error) {
	return nil, failure(opOpenNode, path, unix.ENOSYS, memory{})
}
