package dv

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/rdma-netstack/rdma-netstack/dv/internal/netdev"
)

// DeviceInfo describes one port of an RDMA device of this machine.
type DeviceInfo struct {
	// Name is the RDMA device ("mlx5_0"), Netdev its port's interface, Node the
	// device node ("/dev/infiniband/uverbs0").
	Name, Netdev, Node string
	// Firmware is its version, Type the hca_type ("MT4125"), GUID the node GUID.
	Firmware, Type, GUID string
	// Port gives the number of the port that Netdev is at, and Ports how many the device has: 1,
	// but for a card with several ports on one device, and in switchdev mode, where the functions'
	// representors are ports as well.
	Port, Ports int
	// LinkLayer is "Ethernet" or "InfiniBand".
	LinkLayer string
	// State is "ACTIVE" or "DOWN", Rate as sysfs has it ("100 Gb/sec (4X EDR)"). Find leaves them
	// out.
	State, Rate string
	// MAC and MTU are the netdev's.
	MAC net.HardwareAddr
	MTU int
	// Representor: the netdev stands for a function behind the e-switch (switchdev).
	Representor bool
	// Why is nil if Open would be tried, else the error it would return.
	Why error
}

// Usable reports whether Open would be tried.
func (i DeviceInfo) Usable() bool { return i.Why == nil }

// Device names the port as [Config.Device] takes it: "mlx5_0", or "mlx5_0/2" where the device has
// several.
func (i DeviceInfo) Device() string {
	if i.Ports > 1 {
		return fmt.Sprintf("%s/%d", i.Name, i.Port)
	}
	return i.Name
}

// List returns the ports of the RDMA devices of this machine, by name, of each device the one first
// that its name alone stands for. A machine without any gives an error that is ErrNoRDMA.
func List() ([]DeviceInfo, error) { return thisHost().listPorts() }

func (m *host) listPorts() ([]DeviceInfo, error) {
	nodes, err := m.listNodes()
	if err != nil {
		return nil, err
	}
	var infos []DeviceInfo
	for i := range nodes {
		nodes[i].ReadStates(m.root)
		infos = append(infos, m.describePorts(&nodes[i])...)
	}
	return infos, nil
}

// Find returns the first port that is wanted and usable, in the order of List; of those that are
// wanted but not usable, the last one's reason. If none is wanted the error is ErrNotFound. It asks
// the firmware nothing.
func Find(wanted func(DeviceInfo) bool) (DeviceInfo, error) { return thisHost().findPort(wanted) }

func (m *host) findPort(wanted func(DeviceInfo) bool) (DeviceInfo, error) {
	nodes, err := m.listNodes()
	if err != nil {
		return DeviceInfo{}, err
	}
	err = ErrNotFound
	for i := range nodes {
		for _, d := range m.describePorts(&nodes[i]) {
			switch {
			case !wanted(d):
			case d.Usable():
				return d, nil
			default:
				err = d.Why
			}
		}
	}
	return DeviceInfo{}, err
}

// Describe returns the port that device names as [Config.Device] does. It asks the firmware
// nothing, and leaves out State and Rate. Where there is no such port the error is that of Open.
func Describe(device string) (DeviceInfo, error) { return thisHost().describeOne(device) }

func (m *host) describeOne(device string) (DeviceInfo, error) {
	nodes, err := m.listNodes()
	if err != nil {
		return DeviceInfo{}, err
	}
	n, port, err := m.portCalled(device, nodes)
	if err != nil {
		return DeviceInfo{}, err
	}
	return m.describePort(n, port), nil
}

// describePorts puts together what sysfs, netlink and our own checks say of each port.
func (m *host) describePorts(n *node) (all []DeviceInfo) {
	for _, port := range n.portNumbers() {
		all = append(all, m.describePort(n, port))
	}
	if len(all) == 0 { // one that is going or coming
		all = append(all, m.describePort(n, 1))
	}
	return all
}

func (m *host) describePort(n *node, port uint8) DeviceInfo {
	name := n.netdevOf(port)
	info := DeviceInfo{
		Name: n.IBDev, Node: n.Node, Firmware: n.Firmware, Type: n.HCAType, GUID: n.NodeGUID,
		Netdev: name, Port: int(port), Ports: len(n.Ports), Representor: n.representors[name],
	}
	if p := n.sysfsPort(port); p != nil {
		info.LinkLayer, info.State, info.Rate = p.LinkLayer, p.State, p.Rate
	}
	t, err := m.targetOf(n, port)
	if err == nil {
		info.MAC, info.MTU = t.facts.MAC, t.facts.MTU
		err = t.checkUsable()
	}
	info.Why = err
	return info
}

// Network is how Linux uses the netdev of a port: what a second host on the same
// link needs to know besides its own address.
type Network struct {
	// Netdev gives the name of the port's interface.
	Netdev string
	// Addresses are Linux's own there.
	Addresses []netip.Addr
	// Subnets lists the prefixes on the link, without the link-local ones, longest first.
	Subnets []netip.Prefix
	// Gateways gives the default routers, at most one per IP version.
	Gateways []netip.Addr
}

// NetworkOf asks the kernel, by netlink, about the netdev of the port that nic names, in the
// network namespace of the calling thread: about the VLAN interface on top of it if nic says VLAN.
// A netdev that is no port of an RDMA device is asked about, too. Nothing is opened. A port without
// that interface there gives an error that is ErrNotFound.
func NetworkOf(nic NIC) (Network, error) {
	t, err := locatePort(&Config{NIC: nic})
	if nic.Model.Kernel == nil && (errors.Is(err, ErrNoRDMA) || errors.Is(err, ErrNotMlx5)) {
		t, err = &target{facts: PortFacts{Name: nic.Device, Netdev: nic.Device}}, nil
	}
	if err != nil {
		return Network{}, err
	}
	name := t.facts.Netdev
	if name == "" {
		return Network{}, errorOfKind(ErrNotFound, "%s has no netdev in this network namespace",
			t.facts.Name)
	}
	i, err := netdev.ByName(name)
	if err != nil {
		return Network{}, withKind(ErrNotFound,
			fmt.Errorf("netdev %s of %s: %w", name, t.facts.Name, err))
	}
	name = i.Name // which an alternative name was resolved to
	if nic.VLAN != 0 {
		if name, err = netdev.VLANOn(name, int(nic.VLAN)); err != nil {
			return Network{}, withKind(ErrNotFound, err)
		}
	}
	n, err := netdev.NetworkOf(name)
	if err != nil {
		return Network{}, fmt.Errorf("read addresses and routes of %s: %w", name, err)
	}
	return Network(n), nil
}
