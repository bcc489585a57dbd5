package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

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

// Up gives the interface of the calling thread's namespace its addresses and sets it up. It turns
// duplicate address detection off, since the caller made the whole network, and waits until Linux
// takes packets to the IPv6 addresses.
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
	for _, p := range s.Addresses {
		if err := awaitLocal(link, p.Addr()); err != nil {
			return err
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

// localTime bounds how long Linux may take over a local route beside other load.
const localTime = 20 * time.Second

// awaitLocal waits until Linux takes packets to an address of the interface. It makes the route for
// one of IPv6 in a work item, after its answer to the request (addrconf_dad_work, which runs also
// where it looks for no duplicates), and drops what arrives before. An address that the interface
// had and whose duplicates Linux looks for, or found, is not waited for: without a carrier Linux
// never ends that.
func awaitLocal(link netlink.Link, a netip.Addr) error {
	for deadline := time.Now().Add(localTime); a.Is6(); time.Sleep(time.Millisecond) {
		routes, err := netlink.RouteGet(a.AsSlice())
		if err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL {
			return nil
		}
		if held, err := heldBack(link, a); held || err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s of %s is not local after %v: %+v, %v", a, link.Attrs().Name,
				localTime, routes, err)
		}
	}
	return nil
}

// heldBack reports whether duplicate address detection keeps an address of the interface from use.
func heldBack(link netlink.Link, a netip.Addr) (bool, error) {
	addrs, err := netlink.AddrList(link, netlink.FAMILY_V6)
	if err != nil {
		return false, fmt.Errorf("list addresses of %s: %w", link.Attrs().Name, err)
	}
	return slices.ContainsFunc(addrs, func(have netlink.Addr) bool {
		return have.IP.Equal(a.AsSlice()) &&
			have.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0
	}), nil
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
