package uverbs

import (
	"errors"
	"fmt"
)

// PortCounters is an optional interface of a Kernel: the counters of a port. They are in sysfs, not
// behind the device node.
type PortCounters interface {
	// PortCounter reads a counter of a port, which is counted from 1, by its name in the port's
	// hw_counters. It may be called concurrently with all methods of Kernel.
	PortCounter(port uint8, name string) (uint64, error)
}

// PortCounter reads a counter of a port from the kernel, by its name in the directory
// ports/<port>/hw_counters of the RDMA device in sysfs, such as "out_of_buffer". Each call is a
// command to the firmware, of some 10 us, unless the last call was less than the time in the file
// "lifespan" ago. The error is errors.ErrUnsupported for a Kernel without PortCounters, and
// fs.ErrNotExist where sysfs has no such counter.
func (c *Context) PortCounter(port uint8, name string) (uint64, error) {
	c.mu.Lock()
	k := c.kernel
	c.mu.Unlock()
	if k == nil {
		return 0, fmt.Errorf("read port counter %s: %w", name, ErrClosed)
	}
	from, ok := k.(PortCounters)
	if !ok {
		return 0, fmt.Errorf("read port counter %s: %w by this node", name, errors.ErrUnsupported)
	}
	n, err := from.PortCounter(port, name)
	if err != nil {
		return 0, fmt.Errorf("read port counter %s: %w", name, err)
	}
	return n, nil
}

// portCounter reads a counter of a port of the RDMA device whose node is the character device
// major:minor.
func (s sysfs) portCounter(major, minor uint32, port uint8, name string) (uint64, error) {
	device := s.readText("sys/dev/char", fmt.Sprintf("%d:%d", major, minor), "ibdev")
	return s.readCount("sys/class/infiniband", device, "ports", fmt.Sprint(port), "hw_counters",
		name)
}
