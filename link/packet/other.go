//go:build !linux

package packet

import "errors"

// Port needs linux.
type Port struct{ Netdev }

// Open needs linux.
func Open(Config) (*Port, error) { return nil, errors.ErrUnsupported }
