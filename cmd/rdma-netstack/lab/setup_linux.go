package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Setup describes an interface. Zero fields are left unchanged.
type Setup struct {
	MAC       net.HardwareAddr
	MTU       int // bytes, without the Ethernet header
	Addresses []netip.Prefix
	OnLink    []netip.Addr // neighbours that are in the subnet of no address
}

// Up gives the interface of the calling thread's namespace its addresses and sets it up. IPv6
// addresses are usable at once: duplicate address detection is off, since the caller made the whole
// network.
func Up(ifname string, s Setup) error {
	link, err := netlink.LinkByName(ifname)
	if err != nil {
		return fmt.Errorf("find interface %s: %w", ifname, err)
	}
	if err := quietIPv6(ifname); err != nil {
		return err
	}
	if s.MAC != nil {
		if err := netlink.LinkSetHardwareAddr(link, s.MAC); err != nil {
			return fmt.Errorf("set MAC address of %s to %s: %w", ifname, s.MAC, err)
		}
	}
	if s.MTU != 0 {
		if err := netlink.LinkSetMTU(link, s.MTU); err != nil {
			return fmt.Errorf("set MTU of %s to %d: %w", ifname, s.MTU, err)
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set interface %s up: %w", ifname, err)
	}
	for _, p := range s.Addresses {
		if err := addAddress(link, p); err != nil {
			return fmt.Errorf("give %s the address %s: %w", ifname, p, err)
		}
	}
	for _, a := range s.OnLink {
		to := &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
		if err := netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: to,
			Scope: netlink.SCOPE_LINK}); err != nil {
			return fmt.Errorf("route %s to %s: %w", a, ifname, err)
		}
	}
	return nil
}

// addAddress gives an interface an address, which it may have already.
func addAddress(link netlink.Link, p netip.Prefix) error {
	addr := &netlink.Addr{IPNet: &net.IPNet{
		IP:   p.Addr().AsSlice(),
		Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen()),
	}}
	if p.Addr().Is6() {
		addr.Flags = unix.IFA_F_NODAD
	}
	if err := netlink.AddrAdd(link, addr); !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}

// quietIPv6 turns duplicate address detection and router solicitation off. On a kernel without IPv6
// it does nothing.
func quietIPv6(ifname string) error {
	for _, name := range []string{"accept_dad", "router_solicitations"} {
		err := os.WriteFile("/proc/sys/net/ipv6/conf/"+ifname+"/"+name, []byte("0"), 0)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("turn %s of %s off: %w", name, ifname, err)
		}
	}
	return nil
}

// Cable makes a veth pair, one end in each namespace. Both ends are down and without addresses.
func Cable(a *Net, aName string, b *Net, bName string) error {
	err := a.Do(func() error {
		return netlink.LinkAdd(&netlink.Veth{
			LinkAttrs:     netlink.LinkAttrs{Name: aName},
			PeerName:      bName,
			PeerNamespace: netlink.NsFd(b.file.Fd()),
		})
	})
	if err != nil {
		return fmt.Errorf("make veth pair %s (in %s) and %s (in %s): %w", aName, a.name, bName,
			b.name, err)
	}
	return nil
}
