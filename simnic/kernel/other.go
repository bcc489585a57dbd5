//go:build !linux

package kernel

import (
	"errors"
	"fmt"
	"net"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
)

// Linux stands for the kernel around a NIC. It works on linux only, as it returns linux descriptors
// and error numbers.
type Linux struct{}

// New returns a kernel around n.
func New(*simnic.NIC, Config) *Linux { return &Linux{} }

// Refused returns 0.
func (*Linux) Refused() int64 { return 0 }

// Pinned returns 0.
func (*Linux) Pinned() int64 { return 0 }

// OpenNode needs linux.
func (*Linux) OpenNode() (uverbs.Kernel, error) {
	return nil, fmt.Errorf("kernel: uverbs node: %w outside linux", errors.ErrUnsupported)
}

// PacketSocket needs linux.
type PacketSocket struct{}

// OpenPacketSocket needs linux.
func (*Linux) OpenPacketSocket() (*PacketSocket, error) {
	return nil, fmt.Errorf("kernel: packet socket: %w outside linux", errors.ErrUnsupported)
}

// Add needs linux.
func (*PacketSocket) Add(net.HardwareAddr) error { return errors.ErrUnsupported }

// Remove needs linux.
func (*PacketSocket) Remove(net.HardwareAddr) error { return errors.ErrUnsupported }

// Close needs linux.
func (*PacketSocket) Close() error { return errors.ErrUnsupported }
