package hostnet

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
)

// Below asks what carries the frames of the device called name.
func (k *Kernel) Below(name string) (b Below, err error) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	if k.handle == nil {
		return b, net.ErrClosed
	}
	link, err := k.handle.LinkByName(name)
	if err != nil {
		return b, fmt.Errorf("ask what is below %s: %w", name, err)
	}
	all, err := k.handle.LinkList()
	if err != nil {
		return b, fmt.Errorf("ask what is below %s: %w", name, err)
	}
	return below(link, all, "/"), nil
}

// below is Below of one of all links. root is that of /sys.
func below(link netlink.Link, all []netlink.Link, root string) (b Below) {
	b.MAC = link.Attrs().HardwareAddr
	if vlan, ok := link.(*netlink.Vlan); ok {
		b.VLAN = uint16(vlan.VlanId)
		for _, o := range all {
			if o.Attrs().Index == vlan.ParentIndex {
				link = o
				b.Devices = []Port{portOf(o, root)}
			}
		}
	}
	_, b.Bond = link.(*netlink.Bond)
	if _, bridge := link.(*netlink.Bridge); bridge {
		return b
	}
	var members []Port
	for _, o := range all {
		if o.Attrs().MasterIndex == link.Attrs().Index {
			members = append(members, portOf(o, root))
		}
	}
	if len(members) > 0 {
		b.Devices = members
	}
	return b
}

// portOf is what sysfs says of a device below. An mlx5 function's netdev and RDMA device have the
// PCI function for a parent.
func portOf(link netlink.Link, root string) Port {
	p := Port{Name: link.Attrs().Name, MAC: link.Attrs().HardwareAddr}
	function := filepath.Join(root, "sys/class/net", p.Name, "device")
	driver, _ := os.Readlink(filepath.Join(function, "driver"))
	address, _ := os.Readlink(function) // an error: it is no device of a bus
	if filepath.Base(driver) == "mlx5_core" {
		p.Card, _, _ = strings.Cut(filepath.Base(address), ".")
	}
	_, err := os.Stat(filepath.Join(function, "infiniband"))
	p.RDMA = err == nil
	return p
}
