package subnet

import (
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// resolvConf names resolvers, which may be anywhere (resolv.conf(5)).
const resolvConf = "/etc/resolv.conf"

// InUse lists what the namespace uses: addresses of its interfaces, destinations of its routes in
// every table, their routers, and its resolvers. Interface except, which need not exist, does not
// count, nor do routes to (nearly) everywhere and link-local addresses.
func InUse(except string) ([]Use, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	name := map[int]string{}
	for _, l := range links {
		name[l.Attrs().Index] = l.Attrs().Name
	}
	uses, err := addresses(name, except)
	if err != nil {
		return nil, err
	}
	more, err := routes(name, except)
	if err != nil {
		return nil, err
	}
	return append(append(uses, more...), resolvers()...), nil
}

func addresses(name map[int]string, except string) (uses []Use, err error) {
	all, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range all {
		p, ok := prefix(a.IPNet)
		if ifname := name[a.LinkIndex]; ok && ifname != except && !p.Addr().IsLinkLocalUnicast() {
			uses = append(uses, Use{p, fmt.Sprintf("%s has %s", ifname, p)})
		}
	}
	return uses, nil
}

func routes(name map[int]string, except string) (uses []Use, err error) {
	filter := &netlink.Route{Table: unix.RT_TABLE_UNSPEC}
	all, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, filter, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	for _, r := range all {
		if r.LinkIndex != 0 && name[r.LinkIndex] == except {
			continue
		}
		over := ""
		if r.LinkIndex != 0 {
			over = " over " + name[r.LinkIndex]
		}
		if p, ok := prefix(r.Dst); ok && !everywhere(p) {
			uses = append(uses, Use{p, fmt.Sprintf("there is a route to %s%s", p, over)})
		}
		for _, gw := range routers(r) {
			uses = append(uses,
				Use{netip.PrefixFrom(gw, gw.BitLen()), fmt.Sprintf("the router %s is%s", gw, over)})
		}
	}
	return uses, nil
}

// routers returns the next hops of a route, except link-local ones.
func routers(r netlink.Route) (all []netip.Addr) {
	hops := []net.IP{r.Gw}
	for _, h := range r.MultiPath {
		hops = append(hops, h.Gw)
	}
	for _, ip := range hops {
		if a, ok := netip.AddrFromSlice(ip); ok && !a.Unmap().IsLinkLocalUnicast() {
			all = append(all, a.Unmap())
		}
	}
	return all
}

// everywhere reports routes that do not conflict with a subnet: the default route, also in two
// halves (VPNs) or as 2000::/3, and those to link-local and multicast addresses, which every
// interface has.
func everywhere(p netip.Prefix) bool {
	widest := 3
	if p.Addr().Is4() {
		widest = 1
	}
	return p.Bits() <= widest || p.Addr().IsLinkLocalUnicast() || p.Addr().IsMulticast()
}

// resolvers are empty where the file cannot be read.
func resolvers() (uses []Use) {
	if _, err := os.Stat(resolvConf); err != nil {
		return nil
	}
	conf, err := dns.ClientConfigFromFile(resolvConf)
	if err != nil {
		return nil
	}
	for _, server := range conf.Servers {
		if a, err := netip.ParseAddr(server); err == nil {
			a = a.WithZone("")
			uses = append(
				uses,
				Use{netip.PrefixFrom(a, a.BitLen()),
					fmt.Sprintf("%s names the resolver %s", resolvConf, a)},
			)
		}
	}
	return uses
}

func prefix(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	a, ok := netip.AddrFromSlice(n.IP)
	bits, _ := n.Mask.Size()
	p := netip.PrefixFrom(a.Unmap(), bits)
	return p, ok && p.IsValid()
}
