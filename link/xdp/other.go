//go:build !linux

package xdp

import (
	"errors"

	"github.com/rdma-netstack/rdma-netstack/link/packet"
)

// Port needs linux.
type Port struct{ *packet.Port }

// Beside implements packet.Joined.
func (p *Port) Beside() packet.Interface { return p.Port }

// Describe needs linux.
func (*Port) Describe() string { return "" }

// Examine needs linux.
func Examine(Config) ([]Finding, error) { return nil, errors.ErrUnsupported }

// Open needs linux.
func Open(Config) (*Port, error) { return nil, errors.ErrUnsupported }
