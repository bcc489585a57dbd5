package main

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// memoryFile returns a file without a directory entry: it disappears when its last descriptor is
// closed.
func memoryFile(name, content string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a file in memory: %w", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err := f.WriteString(content); err != nil {
		f.Close()
		return nil, fmt.Errorf("fill a file in memory: %w", err)
	}
	return f, nil
}
