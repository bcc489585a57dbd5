package stack

import (
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/hostnet"
)

// TestPortBelow chooses the device for a netdev by what is below it: one of a RoCE LAG is taken,
// those of ports that have one each are not.
func TestPortBelow(t *testing.T) {
	mac, another := net.HardwareAddr{2, 0, 0, 0, 0, 1}, net.HardwareAddr{2, 0, 0, 0, 0, 2}
	on := func(name, card string, rdma bool) hostnet.Port {
		return hostnet.Port{Name: name, MAC: mac, Card: card, RDMA: rdma}
	}
	bond := func(ports ...hostnet.Port) hostnet.Below {
		return hostnet.Below{Devices: ports, Bond: true, MAC: mac}
	}
	first, second := on("eth0", "0000:c1:00", true), on("eth1", "0000:c1:00", false)
	changed := bond(first, second)
	changed.MAC = another
	vlan := bond(first, second)
	vlan.VLAN = 5
	for _, tc := range []struct {
		name   string
		netdev string
		below  hostnet.Below
		rdma   []string // netdevs of RDMA devices
		want   string
		reason string
	}{
		{"a port", "eth0", hostnet.Below{MAC: mac}, []string{"eth0"}, "eth0", ""},
		{"no device", "eth0", hostnet.Below{MAC: mac}, nil, "eth0", ""},
		{"RoCE LAG", "bond0", bond(first, second), []string{"eth0"}, "eth0", ""},
		{"RoCE LAG whose second port is active", "bond0",
			bond(on("eth0", "0000:c1:00", true), on("eth1", "0000:c1:00", false)),
			[]string{"eth1"}, "eth1", ""},
		{"RoCE LAG as the bond's device", "bond0", bond(first, second), []string{"bond0"}, "bond0",
			""},
		{"a VLAN on RoCE LAG", "bond0.5", vlan, []string{"eth0"}, "eth0", ""},
		{"a bond of one port", "bond0", bond(first), []string{"eth0"}, "eth0", ""},
		{"a device per port", "bond0", bond(first, on("eth1", "0000:c1:00", true)),
			[]string{"eth0", "eth1"}, "", "a device for each of eth0, eth1 (no RoCE LAG)"},
		{"ports of two cards", "bond0", bond(first, on("eth1", "0000:d1:00", true)),
			[]string{"eth0", "eth1"}, "", "no RoCE LAG"},
		{"a port of another make", "bond0", bond(first, on("eno1", "", false)), []string{"eth0"},
			"", "rings for eth0 and none for eno1"},
		{"a device that no port is told of", "bond0", bond(first, on("eth1", "0000:c1:00", true)),
			[]string{"eth0"}, "", "none for eth1"},
		{"a bond without mlx5", "bond0", bond(on("eno1", "", false)), nil, "bond0", ""},
		{"another MAC", "bond0", changed, []string{"eth0"}, "", "fail_over_mac"},
		{"a netvsc device", "eth9", hostnet.Below{Devices: []hostnet.Port{first}, MAC: mac},
			[]string{"eth0"}, "eth0", ""},
		{"a net_failover device", "eth9", hostnet.Below{Devices: []hostnet.Port{
			on("eno1", "", false), first}, MAC: mac}, []string{"eth0"}, "eth0", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var all []dv.DeviceInfo
			for _, name := range tc.rdma {
				all = append(all, dv.DeviceInfo{Name: "mlx5_0", Netdev: name})
			}
			got, err := portBelow(tc.netdev, tc.below, all)
			switch {
			case got != tc.want || (err != nil) != (tc.reason != ""):
				t.Errorf("%q, %v; want %q", got, err, tc.want)
			case err != nil && (!errors.Is(err, dv.ErrNoRDMA) ||
				!strings.Contains(err.Error(), tc.reason)):
				t.Errorf("%v; want %s", err, tc.reason)
			}
		})
	}
}
