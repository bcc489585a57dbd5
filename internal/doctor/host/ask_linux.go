package host

import (
	"fmt"

	"github.com/vishvananda/netlink"
)

// ask has netlink tell what files do not.
func (c *Config) ask() {
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
