//go:build linux

package uverbs

import (
	"path/filepath"

	"golang.org/x/sys/unix"
)

// deviceNode finds the node of a device number: under its usual name, or, since containers rename
// nodes, under any name in the same directory.
func (s sysfs) deviceNode(uverbs string, major, minor uint32) (path string, present bool) {
	const dir = "dev/infiniband"
	usual := s.joinPath(dir, uverbs)
	if isDevice(usual, major, minor) {
		return usual, true
	}
	for _, name := range s.listNames(dir) {
		if p := filepath.Join(s.joinPath(dir), name); isDevice(p, major, minor) {
			return p, true
		}
	}
	return usual, false
}

// isDevice reports whether path is the character device major:minor.
func isDevice(path string, major, minor uint32) bool {
	var st unix.Stat_t
	return unix.Stat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR &&
		st.Rdev == unix.Mkdev(major, minor)
}
