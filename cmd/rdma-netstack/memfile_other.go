//go:build !linux

package main

import (
	"errors"
	"fmt"
	"os"
)

// memoryFile fails outside Linux.
func memoryFile(name, _ string) (*os.File, error) {
	return nil, fmt.Errorf("make file %s in memory: %w", name, errors.ErrUnsupported)
}
