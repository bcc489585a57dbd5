package hostnet

import (
	"net"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/vishvananda/netlink"
)

// plant makes what sysfs has of netdevs that are functions, by name, with their RDMA devices.
func plant(t *testing.T, functions map[string]struct{ address, driver, rdma string }) string {
	t.Helper()
	root := t.TempDir()
	for name, f := range functions {
		function := filepath.Join(root, "sys/devices/pci0000:c0", f.address)
		must(t, os.MkdirAll(filepath.Join(function, "net", name), 0o755))
		must(t, os.MkdirAll(filepath.Join(root, "sys/class/net", name), 0o755))
		must(t, os.Symlink("../../../devices/pci0000:c0/"+f.address,
			filepath.Join(root, "sys/class/net", name, "device")))
		must(t, os.Symlink("../../../bus/pci/drivers/"+f.driver,
			filepath.Join(function, "driver")))
		if f.rdma != "" {
			must(t, os.MkdirAll(filepath.Join(function, "infiniband", f.rdma), 0o755))
		}
	}
	return root
}

// TestBelow asks what is below devices of many kinds.
func TestBelow(t *testing.T) {
	root := plant(t, map[string]struct{ address, driver, rdma string }{
		"enp1s0f0": {"0000:c1:00.0", "mlx5_core", "mlx5_bond_0"},
		"enp1s0f1": {"0000:c1:00.1", "mlx5_core", ""},
		"eno1":     {"0000:c2:00.0", "igb", ""},
	})
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	attrs := func(name string, index, master int) netlink.LinkAttrs {
		return netlink.LinkAttrs{Name: name, Index: index, MasterIndex: master, HardwareAddr: mac}
	}
	bond := &netlink.Bond{LinkAttrs: attrs("bond0", 10, 0)}
	upper := &netlink.Device{LinkAttrs: attrs("eth9", 12, 0)}
	bridge := &netlink.Bridge{LinkAttrs: attrs("br0", 14, 0)}
	port0, port1 := &netlink.Device{LinkAttrs: attrs("enp1s0f0", 1, 10)},
		&netlink.Device{LinkAttrs: attrs("enp1s0f1", 2, 10)}
	other := &netlink.Device{LinkAttrs: attrs("eno1", 3, 12)}
	alone := &netlink.Device{LinkAttrs: attrs("eth1", 4, 0)}
	vlan := func(parent int) netlink.Link {
		a := attrs("vlan", 20, 0)
		a.ParentIndex = parent
		return &netlink.Vlan{LinkAttrs: a, VlanId: 5}
	}
	all := []netlink.Link{bond, port0, port1, upper, other, alone, bridge,
		&netlink.Veth{LinkAttrs: attrs("veth0", 15, 14)}}
	first, second := Port{"enp1s0f0", mac, "0000:c1:00", true},
		Port{"enp1s0f1", mac, "0000:c1:00", false}
	for name, tc := range map[string]struct {
		of   netlink.Link
		want Below
	}{
		"a bond":            {bond, Below{Devices: []Port{first, second}, Bond: true}},
		"a VLAN on a bond":  {vlan(10), Below{Devices: []Port{first, second}, Bond: true, VLAN: 5}},
		"a VLAN on a port":  {vlan(4), Below{Devices: []Port{{Name: "eth1", MAC: mac}}, VLAN: 5}},
		"a netvsc device":   {upper, Below{Devices: []Port{{Name: "eno1", MAC: mac}}}},
		"a bridge":          {bridge, Below{}},
		"a port of its own": {alone, Below{}},
	} {
		t.Run(name, func(t *testing.T) {
			tc.want.MAC = mac
			if got := below(tc.of, all, root); !reflect.DeepEqual(got, tc.want) {
				t.Errorf("%+v, want %+v", got, tc.want)
			}
		})
	}
}
