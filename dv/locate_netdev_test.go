package dv

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// netvscTree is a virtual function as Linux shows it on Hyper-V: its netdev is a lower device of
// another one.
func netvscTree(t *testing.T, driver string) *host {
	m := usual(t)
	for name, to := range map[string]string{
		"sys/class/net/enp1s0v0/master":    "../../../VMBUS:00/net/eth0",
		"sys/class/net/eth0/device/driver": "../../../bus/drivers/" + driver,
	} {
		path := filepath.Join(m.root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755),
			os.Symlink(to, path)); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// Behind hv_netvsc only the function's own MAC is heard.
func TestLocateNetvsc(t *testing.T) {
	got, err := netvscTree(t, "hv_netvsc").locateName("enp1s0v0")
	if err != nil || got.facts.Netvsc != "eth0" {
		t.Fatalf("%+v, %v", got, err)
	}
	own, other := net.HardwareAddr{2, 0, 0, 0, 0, 2}, net.HardwareAddr{2, 0, 0, 0, 0, 9}
	for _, tc := range []struct {
		name    string
		cfg     Config
		refused bool
	}{
		{"random", Config{}, true},
		{"another", Config{NIC: NIC{MAC: other}}, true},
		{"another, though the netdev's is allowed", Config{NIC: NIC{MAC: other,
			Steering: Steering{AllowNetdevMAC: true}}}, true},
		{"the function's own", Config{NIC: NIC{Steering: Steering{AllowNetdevMAC: true}}}, false},
		{"the function's own, given", Config{NIC: NIC{MAC: own,
			Steering: Steering{AllowNetdevMAC: true}}}, false},
	} {
		mac, err := chooseMAC(&tc.cfg, &got.facts)
		if tc.refused && (!errors.Is(err, ErrMAC) || !strings.Contains(err.Error(), "hv_netvsc") ||
			!strings.Contains(err.Error(), "broadcasts arrive on eth0")) {
			t.Errorf("%s: %v, %v", tc.name, mac, err)
		}
		if !tc.refused && (err != nil || mac.String() != own.String()) {
			t.Errorf("%s: %v, %v", tc.name, mac, err)
		}
	}
	// a bond takes broadcasts of its ports and leaves the switch alone
	if got, err := netvscTree(t, "bonding").locateName("enp1s0v0"); err != nil ||
		got.facts.Netvsc != "" {
		t.Errorf("lower device of a bond: %+v, %v", got, err)
	}
}

// listOf remembers which netdev's list was opened.
type listOf struct {
	AddressList
	netdev string
}

// Our addresses go into the list of the port's netdev; where that is in another network
// namespace, the commands are said.
func TestLocateAddresses(t *testing.T) {
	m := usual(t)
	m.addresses = func(name string) (AddressList, error) { return listOf{netdev: name}, nil }
	got, err := m.locateName("mlx5_0")
	if err != nil {
		t.Fatal(err)
	}
	if list, err := got.addresses(slog.New(slog.DiscardHandler)); err != nil ||
		list.(listOf).netdev != "enp1s0f0" {
		t.Errorf("list %+v, %v", list, err)
	}
	if err := os.RemoveAll(filepath.Join(m.root,
		"sys/class/infiniband/mlx5_0/device/net")); err != nil {
		t.Fatal(err)
	}
	if got, err = m.locateName("mlx5_0"); err != nil || got.facts.Netdev != "" {
		t.Fatalf("%+v, %v", got, err)
	}
	if list, err := got.addresses(slog.New(slog.DiscardHandler)); err != nil ||
		list.(commandList).level != slog.LevelInfo {
		t.Errorf("without SR-IOV: %+v, %v", list, err)
	}
	if err := os.WriteFile(filepath.Join(m.root,
		"sys/class/infiniband/mlx5_0/device/sriov_numvfs"), []byte("4\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	list, err := got.addresses(slog.New(slog.NewTextHandler(&said,
		&slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(list.Add(net.HardwareAddr{2, 0, 0, 0, 0, 9}),
		list.Add(net.HardwareAddr{0x33, 0x33, 0xff, 0, 0, 9}), list.Add(nil),
		list.Remove(nil), list.Close())
	for _, want := range []string{
		"bridge fdb add 02:00:00:00:00:09 dev NETDEV self",
		"ip maddr add 33:33:ff:00:00:09 dev NETDEV",
		"ip link set NETDEV allmulticast on", "device=mlx5_0",
	} {
		if err != nil || !strings.Contains(said.String(), want) {
			t.Errorf("%q is not in: %s %v", want, said.String(), err)
		}
	}
}
