//go:build !linux

package packet

import "errors"

// Port needs linux.
type Port struct{ port }

// port is what nothing implements here.
type port interface {
	Interface
	MTUTeller
	Driver() string
	SetPorts([]Ports) error
	Stats() Stats
}

// Open needs linux.
func Open(Config) (*Port, error) { return nil, errors.ErrUnsupported }
