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
	bond := &netlink.Bond{LinkAttrs: attrs("bond0", 10, 0), Mode: netlink.BOND_MODE_ACTIVE_BACKUP}
	spread := &netlink.Bond{LinkAttrs: attrs("bond1", 30, 0), Mode: netlink.BOND_MODE_802_3AD}
	deliver := &netlink.Bond{LinkAttrs: attrs("bond2", 40, 0), AllSlavesActive: 1,
		Mode: netlink.BOND_MODE_ACTIVE_BACKUP}
	upper := &netlink.Device{LinkAttrs: attrs("eth9", 12, 0)}
	bridge := &netlink.Bridge{LinkAttrs: attrs("br0", 14, 0)}
	port0, port1 := &netlink.Device{LinkAttrs: attrs("enp1s0f0", 1, 10)},
		&netlink.Device{LinkAttrs: attrs("enp1s0f1", 2, 10)}
	slave := func(d *netlink.Device, state netlink.BondSlaveState,
		link netlink.BondSlaveMiiStatus) *netlink.Device {
		d.LinkAttrs.Slave = &netlink.BondSlave{State: state, MiiStatus: link}
		return d
	}
	slave(port0, netlink.BondStateBackup, netlink.BondLinkUp)
	slave(port1, netlink.BondStateActive, netlink.BondLinkFail)
	other := &netlink.Device{LinkAttrs: attrs("eno1", 3, 12)}
	alone := &netlink.Device{LinkAttrs: attrs("eth1", 4, 0)}
	vlan := func(parent int) netlink.Link {
		a := attrs("vlan", 20, 0)
		a.ParentIndex = parent
		return &netlink.Vlan{LinkAttrs: a, VlanId: 5}
	}
	all := []netlink.Link{bond, port0, port1, upper, other, alone, bridge,
		&netlink.Veth{LinkAttrs: attrs("veth0", 15, 14)}, spread, deliver,
		slave(&netlink.Device{LinkAttrs: attrs("eth2", 5, 30)}, netlink.BondStateActive,
			netlink.BondLinkUp),
		slave(&netlink.Device{LinkAttrs: attrs("eth3", 6, 30)}, netlink.BondStateActive,
			netlink.BondLinkDown),
		slave(&netlink.Device{LinkAttrs: attrs("eth4", 7, 30)}, netlink.BondStateBackup,
			netlink.BondLinkUp),
		slave(&netlink.Device{LinkAttrs: attrs("eth5", 8, 40)}, netlink.BondStateBackup,
			netlink.BondLinkUp)}
	on := func(name string) Port { return Port{Name: name, MAC: mac} }
	first := Port{Name: "enp1s0f0", MAC: mac, Card: "0000:c1:00", RDMA: true}
	second := Port{Name: "enp1s0f1", MAC: mac, Card: "0000:c1:00", Sends: true, Receives: true}
	eth2, eth3, eth5 := on("eth2"), on("eth3"), on("eth5")
	eth2.Sends, eth2.Receives, eth3.Receives, eth5.Receives = true, true, true, true
	pair := Below{Devices: []Port{first, second}, Bond: true, Mode: "active-backup"}
	tagged := pair
	tagged.VLAN = 5
	for name, tc := range map[string]struct {
		of   netlink.Link
		want Below
	}{
		"a bond":           {bond, pair},
		"a VLAN on a bond": {vlan(10), tagged},
		"a bond that spreads": {spread, Below{Devices: []Port{eth2, eth3, on("eth4")}, Bond: true,
			Mode: "802.3ad"}},
		"a bond that delivers all": {deliver, Below{Devices: []Port{eth5}, Bond: true,
			Mode: "active-backup"}},
		"a VLAN on a port":  {vlan(4), Below{Devices: []Port{on("eth1")}, VLAN: 5}},
		"a netvsc device":   {upper, Below{Devices: []Port{on("eno1")}}},
		"a bridge":          {bridge, Below{}},
		"a port of its own": {alone, Below{}},
	} {
		t.Run(name, func(t *testing.T) {
			tc.want.MAC = mac
			if got := belowLink(tc.of, all, root); !reflect.DeepEqual(got, tc.want) {
				t.Errorf("%+v, want %+v", got, tc.want)
			}
		})
	}
}
