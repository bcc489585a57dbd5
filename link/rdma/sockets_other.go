//go:build !linux

package rdma

import (
	"errors"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
)

// Sockets needs linux.
func Sockets(*packet.Port) Backend { return None() }

// SocketsInVLAN needs linux.
func SocketsInVLAN(*packet.Port, uint16) Backend { return None() }

// RingsAndSockets needs linux.
func RingsAndSockets(*dv.Device, *packet.Port) Backend { return None() }

// NewOverRingsAndSockets needs linux.
func NewOverRingsAndSockets(*dv.Device, *packet.Port, Options) (*Endpoint, error) {
	return nil, errors.ErrUnsupported
}

// NewOverPort needs linux.
func NewOverPort(*packet.Port, Options) (*Endpoint, error) { return nil, errors.ErrUnsupported }
