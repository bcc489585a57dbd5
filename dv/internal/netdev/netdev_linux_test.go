package netdev

import (
	"fmt"
	"net"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// route is one of the kernel's, as netlink tells it.
func route(dst, gateway string, metric int) netlink.Route {
	r := netlink.Route{Type: unix.RTN_UNICAST, Priority: metric, Gw: net.ParseIP(gateway)}
	if dst != "" {
		_, r.Dst, _ = net.ParseCIDR(dst)
	}
	return r
}

func TestNetworkOfRoutes(t *testing.T) {
	local := route("10.7.0.255/32", "", 0)
	local.Type = unix.RTN_LOCAL
	black := route("0.0.0.0/0", "10.0.0.66", 1)
	black.Type = unix.RTN_BLACKHOLE
	routes := []netlink.Route{
		route("10.0.0.0/16", "", 0), route("10.0.9.0/24", "", 100),
		route("10.0.9.0/24", "", 0), local, black,
		route("0.0.0.0/0", "10.0.0.2", 200), route("", "10.0.0.1", 100),
		// a network behind a router, and a link without routers
		route("203.0.113.0/24", "10.0.0.3", 0), route("0.0.0.0/0", "", 0),
		route("fe80::/64", "", 256), route("ff00::/8", "", 256), route("2001:db8::/64", "", 256),
		route("2001:db8::9/128", "", 256),
		route("::/0", "fe80::1", 1024),
	}
	if got, want := fmt.Sprint(subnetsOf(routes)),
		"[2001:db8::/64 10.0.9.0/24 10.0.0.0/16]"; got != want {
		t.Errorf("subnets %s, want %s", got, want)
	}
	if got, want := fmt.Sprint(gatewaysOf(routes)), "[10.0.0.1 fe80::1]"; got != want {
		t.Errorf("gateways %s, want %s", got, want)
	}
}

func TestVLANAmong(t *testing.T) {
	links := []netlink.Link{
		&netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "eth0", Index: 2}},
		&netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Name: "other.5", ParentIndex: 3}, VlanId: 5},
		&netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Name: "voice", ParentIndex: 2}, VlanId: 5},
	}
	for id, want := range map[int]string{5: "voice", 6: "", 0: ""} {
		if got := vlanAmong(links, 2, id); got != want {
			t.Errorf("VLAN %d: %q, want %q", id, got, want)
		}
	}
}
