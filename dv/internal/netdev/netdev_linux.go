package netdev

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ByName asks the kernel about the netdev called name.
func ByName(name string) (Interface, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return Interface{}, err
	}
	return interfaceOf(link), nil
}

func interfaceOf(link netlink.Link) Interface {
	a := link.Attrs()
	return Interface{Name: a.Name, MAC: a.HardwareAddr, MTU: a.MTU, Up: a.Flags&net.FlagUp != 0}
}

// NetworkOf reads the main routing table and the addresses of the netdev called name.
func NetworkOf(name string) (Network, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return Network{}, err
	}
	routes, err := netlink.RouteList(link, netlink.FAMILY_ALL)
	if err != nil {
		return Network{}, err
	}
	addrs, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return Network{}, err
	}
	n := Network{Netdev: name}
	for _, a := range addrs {
		if own, ok := netip.AddrFromSlice(a.IP); ok {
			n.Addresses = append(n.Addresses, own.Unmap())
		}
		// One may be there without a route to its subnet.
		routes = append(routes, netlink.Route{Type: unix.RTN_UNICAST, Dst: a.IPNet})
	}
	n.Subnets, n.Gateways = subnetsOf(routes), gatewaysOf(routes)
	return n, nil
}

// VLANOn finds the interface of VLAN id on top of the netdev called name.
func VLANOn(name string, id int) (string, error) {
	under, err := netlink.LinkByName(name)
	if err != nil {
		return "", err
	}
	links, err := netlink.LinkList()
	if err != nil {
		return "", fmt.Errorf("list netdevs: %w", err)
	}
	if v := vlanAmong(links, under.Attrs().Index, id); v != "" {
		return v, nil
	}
	return "", fmt.Errorf("no interface of VLAN %d on %s", id, name)
}

// vlanAmong returns the name of the interface of VLAN id on top of the one with an index, "" if
// there is none.
func vlanAmong(links []netlink.Link, index, id int) string {
	for _, l := range links {
		if v, ok := l.(*netlink.Vlan); ok && v.VlanId == id && v.ParentIndex == index {
			return v.Name
		}
	}
	return ""
}

// subnetsOf returns the destinations of routes that have no next hop.
func subnetsOf(routes []netlink.Route) (list []netip.Prefix) {
	for _, r := range routes {
		if r.Type != unix.RTN_UNICAST || r.Gw != nil || r.Via != nil || r.Dst == nil {
			continue
		}
		a, ok := netip.AddrFromSlice(r.Dst.IP)
		ones, _ := r.Dst.Mask.Size()
		p := netip.PrefixFrom(a.Unmap(), ones).Masked()
		if ok && ones > 0 && !p.IsSingleIP() && !p.Addr().IsLinkLocalUnicast() &&
			!p.Addr().IsMulticast() && !slices.Contains(list, p) {
			list = append(list, p)
		}
	}
	slices.SortStableFunc(list, func(a, b netip.Prefix) int { return b.Bits() - a.Bits() })
	return list
}

// gatewaysOf returns the next hops of the default routes with the lowest metrics.
func gatewaysOf(routes []netlink.Route) (list []netip.Addr) {
	routes = slices.Clone(routes)
	slices.SortStableFunc(routes, func(a, b netlink.Route) int { return a.Priority - b.Priority })
	have := map[bool]bool{}
	for _, r := range routes {
		a, ok := netip.AddrFromSlice(r.Gw)
		a = a.Unmap()
		if !ok || r.Type != unix.RTN_UNICAST || !isDefault(r.Dst) || have[a.Is4()] {
			continue
		}
		have[a.Is4()] = true
		list = append(list, a)
	}
	return list
}

func isDefault(dst *net.IPNet) bool {
	if dst == nil {
		return true
	}
	ones, _ := dst.Mask.Size()
	return ones == 0
}
