//go:build !linux

package uverbs

import "golang.org/x/sys/unix"

// OpenNode fails: uverbs nodes exist on Linux only.
func OpenNode(path string) (Kernel, error) {
	return nil, kernelFailure(opOpenNode, path, unix.ENOSYS, memory{})
}

// deviceNode finds no node, as uverbs nodes exist on Linux only.
func (s sysfs) deviceNode(uverbs string, major, minor uint32) (path string, present bool) {
	return s.joinPath("dev/infiniband", uverbs), false
}

// readUntold reads from a descriptor that does not block.
func readUntold(fd int, b []byte) (int, error) { return unix.Read(fd, b) }
