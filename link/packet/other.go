//go:build !linux

package packet

import (
	"errors"
	"net"
)

// Port needs linux.
type Port struct{ port }

// port says what nothing implements here.
type port interface {
	Interface
	MTUTeller
	Driver() string
	SetMAC(net.HardwareAddr) error
	SetPorts([]Ports) error
	ChangePorts(added, removed []Ports) error
	Stats() Stats
}

// Open needs linux.
func Open(Config) (*Port, error) { return nil, errors.ErrUnsupported }
