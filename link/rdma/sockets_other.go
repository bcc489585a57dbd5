//go:build !linux

package rdma

import (
	"errors"

	"github.com/rdma-netstack/rdma-netstack/link/packet"
)

// NewOverPort needs linux.
func NewOverPort(*packet.Port, Options) (*Endpoint, error) { return nil, errors.ErrUnsupported }
