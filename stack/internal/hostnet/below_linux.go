package hostnet

import (
	"fmt"
	"net"

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
	index := link.Attrs().Index
	below := func(o netlink.Link) bool { return o.Attrs().MasterIndex == index }
	switch l := link.(type) {
	case *netlink.Vlan:
		b.VLAN = uint16(l.VlanId)
		below = func(o netlink.Link) bool { return o.Attrs().Index == l.ParentIndex }
	case *netlink.Bond:
		b.Bond = true
	case *netlink.Bridge:
		return b, nil
	}
	for _, o := range all {
		if below(o) {
			b.Devices = append(b.Devices, o.Attrs().Name)
		}
	}
	return b, nil
}
