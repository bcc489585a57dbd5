package packet

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// All but canonical ask the kernel through a packet socket, whose network namespace answers,
// whatever the calling thread's is.

// canonical returns the name of the interface that name names, as an alternative one (ip link
// property) maybe. Of one that is not there it is name.
func canonical(name string) string {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return name
	}
	return link.Attrs().Name
}

// ifaceNamed asks about the interface called name.
func ifaceNamed(fd int, name string) (i iface, err error) {
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return i, notFound(name, unix.ENODEV)
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, ifr); err != nil {
		return i, notFound(name, err)
	}
	i.index = int(ifr.Uint32())
	if i.mtu, err = mtuOf(fd, name); err != nil {
		return i, notFound(name, err)
	}
	if i.up, i.carrier, err = flagsOf(fd, name); err != nil {
		return i, notFound(name, err)
	}
	if info, err := unix.IoctlGetEthtoolDrvinfo(fd, name); err == nil {
		i.driver = unix.ByteSliceToString(info.Driver[:])
	}
	return i, nil
}

func notFound(name string, err error) error {
	if errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("there is no interface %s here: \"ip link\" lists those there are: %w",
			name, err)
	}
	return fmt.Errorf("ask about interface %s: %w", name, err)
}

// flagsOf says whether the interface is up, and whether it has a carrier.
func flagsOf(fd int, name string) (up, carrier bool, err error) {
	ifr, err := unix.NewIfreq(name)
	if err == nil {
		err = unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, ifr)
	}
	if err != nil {
		return false, false, err
	}
	flags := ifr.Uint16()
	return flags&unix.IFF_UP != 0, flags&unix.IFF_RUNNING != 0, nil
}

// mtuOf returns the interface's largest IP packet, in bytes.
func mtuOf(fd int, name string) (int, error) {
	ifr, err := unix.NewIfreq(name)
	if err == nil {
		err = unix.IoctlIfreq(fd, unix.SIOCGIFMTU, ifr)
	}
	if err != nil {
		return 0, err
	}
	return int(ifr.Uint32()), nil
}

// nameOf returns the present name of interface index. unix.ENODEV: it is gone.
func nameOf(fd, index int) (string, error) {
	ifr, err := unix.NewIfreq("")
	if err != nil {
		return "", err
	}
	ifr.SetUint32(uint32(index))
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFNAME, ifr); err != nil {
		return "", err
	}
	return ifr.Name(), nil
}
