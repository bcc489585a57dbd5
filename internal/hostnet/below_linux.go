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
	return belowLink(link, all, "/"), nil
}

// belowLink returns what is below one of all links. root names the directory of /sys.
func belowLink(link netlink.Link, all []netlink.Link, root string) (b Below) {
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
	bond, ok := link.(*netlink.Bond)
	if b.Bond = ok; ok {
		b.Mode = bond.Mode.String()
	}
	if _, bridge := link.(*netlink.Bridge); bridge {
		return b
	}
	var members []Port
	for _, o := range all {
		if o.Attrs().MasterIndex == link.Attrs().Index {
			p := portOf(o, root)
			if b.Bond {
				p.ofBond(bond, o.Attrs().Slave)
			}
			members = append(members, p)
		}
	}
	if len(members) > 0 {
		b.Devices = members
	}
	return b
}

// portOf returns what sysfs says of a device below. An mlx5 function's netdev and RDMA device have
// the PCI function for a parent.
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

// ofBond notes what the bond does with its member, as bond_slave_can_tx and
// bond_should_deliver_exact_match have it (linux include/net/bonding.h,
// drivers/net/bonding/bond_main.c). In active-backup mode the active member sends although it may
// be about to be given up, which is what BondLinkFail says.
func (p *Port) ofBond(bond *netlink.Bond, slave netlink.LinkSlave) {
	s, ok := slave.(*netlink.BondSlave)
	if !ok {
		return
	}
	active := s.State == netlink.BondStateActive
	p.Sends = active && (s.MiiStatus == netlink.BondLinkUp ||
		bond.Mode == netlink.BOND_MODE_ACTIVE_BACKUP)
	p.Receives = active || bond.AllSlavesActive == 1
}
