package rig

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"sort"
	"strings"
)

// archiveFile is one entry of an initramfs: a regular file, a symbolic link (mode os.ModeSymlink,
// data is the target) or a directory.
type archiveFile struct {
	mode os.FileMode
	data []byte
}

// newc writes files, keyed by absolute path, as a cpio archive in the format the kernel unpacks
// (linux Documentation/driver-api/early-userspace/buffer-format.rst). Parent directories are added.
func newc(files map[string]archiveFile) []byte {
	all := map[string]archiveFile{}
	for name, f := range files {
		name = strings.TrimPrefix(path.Clean(name), "/")
		all[name] = f
		for d := path.Dir(name); d != "."; d = path.Dir(d) {
			if _, ok := all[d]; !ok {
				all[d] = archiveFile{mode: os.ModeDir | 0o755}
			}
		}
	}
	names := make([]string, 0, len(all))
	for n := range all {
		names = append(names, n)
	}
	sort.Strings(names)
	var b bytes.Buffer
	for i, n := range names {
		writeEntry(&b, i+1, n, all[n])
	}
	writeEntry(&b, 0, "TRAILER!!!", archiveFile{})
	return b.Bytes()
}

// writeEntry writes one header, name and data, each padded to 4 bytes.
func writeEntry(b *bytes.Buffer, inode int, name string, f archiveFile) {
	fmt.Fprintf(b, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
		inode, unixMode(f.mode), 0, 0, 1, 0, len(f.data), 0, 0, 0, 0, len(name)+1, 0)
	b.WriteString(name)
	b.WriteByte(0)
	pad4(b)
	b.Write(f.data)
	pad4(b)
}

func pad4(b *bytes.Buffer) {
	for b.Len()%4 != 0 {
		b.WriteByte(0)
	}
}

// unixMode is the mode with the file type as in stat(2).
func unixMode(m os.FileMode) uint32 {
	perm := uint32(m.Perm())
	switch {
	case m.IsDir():
		return 0o040000 | perm
	case m&os.ModeSymlink != 0:
		return 0o120777
	default:
		return 0o100000 | perm
	}
}
