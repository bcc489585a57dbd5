package dv

import "net"

// DeviceInfo describes one RDMA device of this machine.
type DeviceInfo struct {
	// Name is the RDMA device ("mlx5_0"), Netdev its port's interface, Node the
	// device node ("/dev/infiniband/uverbs0").
	Name, Netdev, Node string
	// Firmware is its version, Type the hca_type ("MT4125"), GUID the node GUID.
	Firmware, Type, GUID string
	// LinkLayer is "Ethernet" or "InfiniBand", State as sysfs has it ("4: ACTIVE").
	LinkLayer, State string
	// MAC and MTU are the netdev's.
	MAC net.HardwareAddr
	MTU int
	// Why is nil if Open would be tried, else the error it would return.
	Why error
}

// Usable reports whether Open would be tried.
func (i DeviceInfo) Usable() bool { return i.Why == nil }

// List returns the RDMA devices of this machine. A machine without any gives
// an error that is ErrNoRDMA.
func List() ([]DeviceInfo, error) { return nil, ErrNoRDMA }
