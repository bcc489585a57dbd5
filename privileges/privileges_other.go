//go:build !linux || !(amd64 || arm64)

package privileges

import "fmt"

// Held lists the capabilities in effect: none are known here.
func Held() ([]Capability, error) { return nil, fmt.Errorf("capabilities: %w", ErrUnsupported) }

// Drop is for Linux.
func Drop(...Capability) error { return fmt.Errorf("drop capabilities: %w", ErrUnsupported) }

// Filter is for Linux.
func Filter() error { return fmt.Errorf("filter system calls: %w", ErrUnsupported) }

// Restrict is for Linux.
func Restrict(Paths) error { return fmt.Errorf("restrict paths: %w", ErrUnsupported) }
