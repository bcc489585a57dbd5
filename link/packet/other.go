//go:build !linux

package packet

import (
	"errors"
	"net"
)

// Port needs linux.
type Port struct{ port }

// port is what nothing implements here.
type port interface {
	Name() string
	Driver() string
	MAC() net.HardwareAddr
	MTU() int
	SetGroups([]net.HardwareAddr) error
	SetPorts([]Ports) error
	Mute() error
	Unmute() error
	LinkUp() bool
	LinkChanged() <-chan struct{}
	Done() <-chan struct{}
	Err() error
	Stats() Stats
	Close() error
}

// Open needs linux.
func Open(Config) (*Port, error) { return nil, errors.ErrUnsupported }
