package uplink

import (
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/internal/hostnet"
)

// TestPortBelow chooses the device for a netdev by what is below it: one of a RoCE LAG, or those
// of a bond's ports.
func TestPortBelow(t *testing.T) {
	mac, another := net.HardwareAddr{2, 0, 0, 0, 0, 1}, net.HardwareAddr{2, 0, 0, 0, 0, 2}
	on := func(name, card string, rdma bool) hostnet.Port {
		return hostnet.Port{Name: name, MAC: mac, Card: card, RDMA: rdma}
	}
	bond := func(ports ...hostnet.Port) hostnet.Below {
		return hostnet.Below{Devices: ports, Bond: true, Mode: "active-backup", MAC: mac}
	}
	first, second := on("eth0", "0000:c1:00", true), on("eth1", "0000:c1:00", false)
	changed := bond(first, second)
	changed.MAC = another
	vlan := bond(first, second)
	vlan.VLAN = 5
	each := bond(first, on("eth1", "0000:c1:00", true))
	rr := each
	rr.Mode = "balance-rr"
	lacp := each
	lacp.Mode = "802.3ad"
	follow := bond(first, on("eth1", "0000:c1:00", true))
	follow.Devices[1].MAC = another
	for _, tc := range []struct {
		name   string
		netdev string
		below  hostnet.Below
		rdma   []string // netdevs of RDMA devices
		want   string
		ofBond bool
		reason string
	}{
		{"a port", "eth0", hostnet.Below{MAC: mac}, []string{"eth0"}, "eth0", false, ""},
		{"no device", "eth0", hostnet.Below{MAC: mac}, nil, "eth0", false, ""},
		{"RoCE LAG", "bond0", bond(first, second), []string{"eth0"}, "eth0", false, ""},
		{"RoCE LAG whose second port is active", "bond0", bond(first, second), []string{"eth1"},
			"eth1", false, ""},
		{"RoCE LAG as the bond's device", "bond0", bond(first, second), []string{"bond0"}, "bond0",
			false, ""},
		{"a VLAN on RoCE LAG", "bond0.5", vlan, []string{"eth0"}, "eth0", false, ""},
		{"a bond of one port", "bond0", bond(first), []string{"eth0"}, "eth0", true, ""},
		{"a device per port", "bond0", each, []string{"eth0", "eth1"}, "eth0", true, ""},
		{"a device per port, and LACP", "bond0", lacp, []string{"eth0", "eth1"}, "eth0", true, ""},
		{"a device per port, round robin", "bond0", rr, []string{"eth0", "eth1"}, "", false,
			"balance-rr"},
		{"a device per port, and MACs of their own", "bond0", follow, []string{"eth0", "eth1"}, "",
			false, "fail_over_mac"},
		{"ports of two cards", "bond0", bond(first, on("eth1", "0000:d1:00", true)),
			[]string{"eth0", "eth1"}, "eth0", true, ""},
		{"a port of another make", "bond0", bond(on("eno1", "", false), first), []string{"eth0"},
			"eth0", true, ""},
		{"a device that no port is told of", "bond0", each, []string{"eth0"}, "eth0", true, ""},
		{"a bond without mlx5", "bond0", bond(on("eno1", "", false)), nil, "bond0", false, ""},
		{"another MAC", "bond0", changed, []string{"eth0"}, "", false, "fail_over_mac"},
		{"a netvsc device", "eth9", hostnet.Below{Devices: []hostnet.Port{first}, MAC: mac},
			[]string{"eth0"}, "eth0", false, ""},
		{"a net_failover device", "eth9", hostnet.Below{Devices: []hostnet.Port{
			on("eno1", "", false), first}, MAC: mac}, []string{"eth0"}, "eth0", false, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var all []dv.DeviceInfo
			for _, name := range tc.rdma {
				all = append(all, dv.DeviceInfo{Name: "mlx5_0", Netdev: name})
			}
			got, ofBond, err := portBelow(tc.netdev, tc.below, all)
			switch {
			case got != tc.want || ofBond != tc.ofBond || (err != nil) != (tc.reason != ""):
				t.Errorf("%q, %v, %v; want %q", got, ofBond, err, tc.want)
			case err != nil && (!errors.Is(err, dv.ErrNoRDMA) ||
				!strings.Contains(err.Error(), tc.reason)):
				t.Errorf("%v; want %s", err, tc.reason)
			}
		})
	}
}
