//go:build !linux

package rdma

import (
	"errors"

	"github.com/rdma-netstack/rdma-netstack/link/packet"
)

// Sockets needs linux.
func Sockets(*packet.Port) Backend { return None() }

// NewOverPort needs linux.
func NewOverPort(*packet.Port, Options) (*Endpoint, error) { return nil, errors.ErrUnsupported }
