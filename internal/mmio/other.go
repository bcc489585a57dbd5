//go:build !linux

package mmio

import (
	"errors"
	"fmt"
)

var errNotLinux = fmt.Errorf("device memory: %w outside linux", errors.ErrUnsupported)

// Alloc needs linux.
func Alloc(int) (*Region, error) { return nil, errNotLinux }

// AllocHuge needs linux.
func AllocHuge(int) (*Region, error) { return nil, errNotLinux }

// MapShared needs linux.
func MapShared(int, int64, int, bool) (*Region, error) { return nil, errNotLinux }

// ReadUser needs linux.
func ReadUser(uint64, []byte) error { return errNotLinux }

// WriteUser needs linux.
func WriteUser(uint64, []byte) error { return errNotLinux }

// Mapped needs linux; elsewhere it vouches for nothing.
func Mapped(uint64, int) bool { return false }
