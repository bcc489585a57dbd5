//go:build !linux

package simnic

import (
	"errors"
	"fmt"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
)

// Linux is the kernel around a NIC. It can be played on linux only, whose
// descriptors and error numbers it gives out.
type Linux struct{}

// NewLinux puts a kernel around n.
func NewLinux(*NIC, LinuxConfig) *Linux { return &Linux{} }

// OpenNode needs linux.
func (*Linux) OpenNode() (uverbs.Kernel, error) {
	return nil, fmt.Errorf("simnic: uverbs node: %w outside linux", errors.ErrUnsupported)
}
