package host

import (
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/rdma-netstack/rdma-netstack/internal/backing"
)

// askKernel has netlink and the kernel tell what files do not.
func (c *Config) askKernel() {
	if c.ESwitchMode == nil {
		c.ESwitchMode = eswitchModeOf
	}
	if c.VF == nil {
		c.VF = vfOf
	}
	if c.Pause == nil {
		c.Pause = pauseOf
	}
	if c.RxRing == nil {
		c.RxRing = rxRingOf
	}
	if c.Filter == nil {
		c.Filter = backing.TryFilters
	}
	if c.NetdevName == nil {
		c.NetdevName = netdevName
	}
}

// netdevName asks for the name of a netdev by one that may be an alternative.
func netdevName(name string) string {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return name
	}
	return link.Attrs().Name
}

func eswitchModeOf(pci string) (string, error) {
	d, err := netlink.DevLinkGetDeviceByName("pci", pci)
	if err != nil {
		return "", fmt.Errorf("ask devlink about %s: %w", pci, err)
	}
	return d.Attrs.Eswitch.Mode, nil
}

func vfOf(pf string, n int) (VF, error) {
	link, err := netlink.LinkByName(pf)
	if err != nil {
		return VF{}, fmt.Errorf("ask about the functions of %s: %w", pf, err)
	}
	for _, v := range link.Attrs().Vfs {
		if v.ID == n {
			return VF{Trusted: v.Trust == 1, SpoofCheck: v.Spoofchk}, nil
		}
	}
	return VF{}, fmt.Errorf("%s tells nothing of VF %d", pf, n)
}
