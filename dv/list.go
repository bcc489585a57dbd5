package dv

import "net"

// DeviceInfo describes one RDMA device of this machine.
type DeviceInfo struct {
	// Name is the RDMA device ("mlx5_0"), Netdev its port's interface, Node the
	// device node ("/dev/infiniband/uverbs0").
	Name, Netdev, Node string
	// Firmware is its version, Type the hca_type ("MT4125"), GUID the node GUID.
	Firmware, Type, GUID string
	// Port is the number of the port that Netdev is at, 1 unless there are several.
	Port int
	// LinkLayer is "Ethernet" or "InfiniBand", State "ACTIVE" or "DOWN", Rate as
	// sysfs has it ("100 Gb/sec (4X EDR)").
	LinkLayer, State, Rate string
	// MAC and MTU are the netdev's.
	MAC net.HardwareAddr
	MTU int
	// Why is nil if Open would be tried, else the error it would return.
	Why error
}

// Usable reports whether Open would be tried.
func (i DeviceInfo) Usable() bool { return i.Why == nil }

// List returns the RDMA devices of this machine, by name. A machine without
// any gives an error that is ErrNoRDMA.
func List() ([]DeviceInfo, error) { return thisMachine().list() }

func (m *machine) list() ([]DeviceInfo, error) {
	nodes, err := m.nodes()
	if err != nil {
		return nil, err
	}
	infos := make([]DeviceInfo, len(nodes))
	for i := range nodes {
		infos[i] = m.describe(&nodes[i])
	}
	return infos, nil
}

// describe puts together what sysfs, netlink and our own checks say.
func (m *machine) describe(n *node) DeviceInfo {
	port := n.defaultPort()
	info := DeviceInfo{
		Name: n.IBDev, Node: n.Node, Firmware: n.Firmware, Type: n.HCAType, GUID: n.NodeGUID,
		Netdev: n.netdev(port), Port: int(port),
	}
	if p := n.port(port); p != nil {
		info.LinkLayer, info.State, info.Rate = p.LinkLayer, p.State, p.Rate
	}
	t, err := m.target(n, port)
	if err == nil {
		info.MAC, info.MTU = t.facts.MAC, t.facts.MTU
		err = t.ready()
	}
	info.Why = err
	return info
}
