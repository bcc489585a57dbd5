package host

import (
	"errors"
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
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
		c.Filter = filterTCP
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

// filterTCP gives a TCP socket of this process a filter.
func filterTCP() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	drop := unix.SockFilter{Code: unix.BPF_RET}
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: 1, Filter: &drop})
	return errors.Join(os.NewSyscallError("setsockopt SO_ATTACH_FILTER", err), unix.Close(fd))
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
