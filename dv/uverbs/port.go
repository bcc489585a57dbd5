package uverbs

import (
	"errors"
	"fmt"
)

// PortAttr holds the state of a port as the kernel's RDMA side sees it. On Ethernet the MTU is the
// netdev's, and is not here.
type PortAttr struct {
	State     uint8  // PortStateActive when the netdev is up and has carrier
	PhysState uint8  // 5 link up, 3 disabled, 2 polling
	LinkLayer uint8  // LinkLayerEthernet is needed
	SpeedMbps uint32 // of the link, Mbit/s, up to the maximum of the old encoding; 0 unknown
}

// Ethernet reports whether the port carries Ethernet frames.
func (p PortAttr) Ethernet() bool { return p.LinkLayer == LinkLayerEthernet }

// Active reports whether the link is up.
func (p PortAttr) Active() bool { return p.State == PortStateActive }

// QueryPort queries the state of a port, counted from 1. A port the device does not have is EINVAL.
func (c *Context) QueryPort(port uint8) (PortAttr, error) {
	var r QueryPortResp
	err := c.runWrite(write{op: opQueryPort, noun: fmt.Sprintf("port %d", port),
		in: QueryPortReq{PortNum: port}, out: &r})
	return PortAttr{State: r.State, PhysState: r.PhysState, LinkLayer: r.LinkLayer,
		SpeedMbps: linkSpeed(r.ActiveWidth, r.ActiveSpeed)}, err
}

// linkSpeed multiplies the number of lanes by the speed of a lane, both in InfiniBand's encoding.
func linkSpeed(width, speed uint8) uint32 {
	lanes := map[uint8]uint32{1: 1, 2: 4, 4: 8, 8: 12, 16: 2}
	mbps := map[uint8]uint32{1: 2500, 2: 5000, 4: 10000, 8: 10000, 16: 14000,
		32: 25000, 64: 50000, 128: 100000}
	return lanes[width] * mbps[speed]
}

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
