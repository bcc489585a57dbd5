package dv

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv/internal/netdev"
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
)

// tree is files of a made-up /sys and /dev, as the kernel lays them out.
type tree map[string]string

// card adds the files of one RDMA device.
func (tr tree) card(uverbsN, ibdev, driver, linkLayer string, netdevs ...string) tree {
	verbs, dev := "sys/class/infiniband_verbs/"+uverbsN, "sys/class/infiniband/"+ibdev
	tr["sys/class/infiniband_verbs/abi_version"] = "6\n"
	tr[verbs+"/ibdev"] = ibdev + "\n"
	tr[verbs+"/abi_version"] = "1\n"
	tr[verbs+"/dev"] = "1:3\n" // the null device, which stands in for the node
	tr["dev/infiniband/"+uverbsN] = "-> /dev/null"
	tr[dev+"/fw_ver"] = "22.43.2026\n"
	tr[dev+"/node_guid"] = "0c42:a103:0065:1234\n"
	if driver == "mlx5_core" {
		tr[dev+"/hca_type"] = "MT4125\n"
	}
	if driver != "" {
		tr[dev+"/device/driver"] = "-> ../../drivers/" + driver
	}
	for _, n := range netdevs {
		tr[dev+"/device/net/"+n+"/mtu"] = "1500\n"
	}
	tr[dev+"/ports/1/link_layer"] = linkLayer + "\n"
	tr[dev+"/ports/1/state"] = "4: ACTIVE\n"
	tr[dev+"/ports/1/rate"] = "100 Gb/sec (4X EDR)\n"
	return tr
}

// write puts the tree below a new directory.
func (tr tree) write(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range tr {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if to, link := strings.CutPrefix(content, "-> "); link {
			err = os.Symlink(to, path)
		} else {
			err = os.WriteFile(path, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// usual is a machine with two cards, one in InfiniBand mode, and a software
// RDMA device.
func usual(t *testing.T) *host {
	tr := tree{}.card("uverbs0", "mlx5_0", "mlx5_core", "Ethernet", "enp1s0f0").
		card("uverbs1", "mlx5_1", "mlx5_core", "InfiniBand", "ib0").
		card("uverbs2", "rxe0", "", "Ethernet").
		card("uverbs3", "mlx5_2", "mlx5_core", "Ethernet", "enp1s0v0")
	tr["sys/class/infiniband/mlx5_2/device/physfn"] = "-> ../0000:01:00.0"
	tr["sys/class/infiniband/rxe0/ports/1/gid_attrs/ndevs/0"] = "eth0\n"
	interfaces := map[string]netdev.Interface{
		"eth0": {Name: "eth0", MAC: net.HardwareAddr{2, 0, 0, 0, 0, 9}, MTU: 1500, Up: true},
		"enp1s0f0": {Name: "enp1s0f0", MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, MTU: 9000,
			Up: true},
		"enp1s0v0": {Name: "enp1s0v0", MAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}, MTU: 1500,
			Up: true},
		"ib0": {Name: "ib0", MTU: 2044, Up: true},
	}
	return &host{
		root: tr.write(t),
		iface: func(name string) (netdev.Interface, error) {
			if i, ok := interfaces[name]; ok {
				return i, nil
			}
			return netdev.Interface{}, errors.New("Link not found")
		},
		rdma: func(string) netdev.RDMAFacts { return netdev.RDMAFacts{} },
		env: func() (uverbs.Environment, error) {
			return uverbs.Environment{NetRaw: true,
				Memlock: 64 << 20}, nil
		},
		pinned: func() uint64 { return 0 },
		open:   func(string) (uverbs.Kernel, error) { return nil, unix.ENXIO },
	}
}

func TestLocate(t *testing.T) {
	for _, name := range []string{"mlx5_0", "enp1s0f0"} {
		got, err := usual(t).locateName(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		f := got.facts
		if f.Name != "mlx5_0" || f.Netdev != "enp1s0f0" || f.MTU != 9000 ||
			f.MAC.String() != "02:00:00:00:00:01" || f.Port != 1 || f.Virtual || f.Down {
			t.Errorf("%s: %+v", name, f)
		}
	}
	if got, err := usual(t).locateName("enp1s0v0"); err != nil || !got.facts.Virtual {
		t.Errorf("virtual function: %+v, %v", got, err)
	}
}

// A virtual function in a guest gets no random MAC, which its switch would not pass.
func TestLocateGuestVF(t *testing.T) {
	m := usual(t)
	for name, content := range map[string]string{"vendor": "0x15b3\n", "device": "0x101e\n"} {
		path := filepath.Join(m.root, "sys/class/infiniband/mlx5_0/device", name)
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := m.locateName("enp1s0f0")
	if err != nil || !got.facts.Virtual {
		t.Fatalf("function without physfn: %+v, %v", got, err)
	}
	if mac, err := chooseMAC(&Config{}, &got.facts); !errors.Is(err, ErrMAC) {
		t.Errorf("MAC %v, %v, want ErrMAC", mac, err)
	}
	own := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	if mac, err := chooseMAC(&Config{NIC: NIC{Steering: Steering{AllowNetdevMAC: true}}},
		&got.facts); err != nil ||
		mac.String() != own.String() {
		t.Errorf("with AllowNetdevMAC %v, %v, want %v", mac, err, own)
	}
}

// On a card with several ports netlink says which one has the netdev.
func TestLocateSecondPort(t *testing.T) {
	m := usual(t)
	m.rdma = func(name string) netdev.RDMAFacts {
		return netdev.RDMAFacts{Driver: uverbs.DriverMLX5, Netdevs: map[uint8]string{2: "enp1s0f0"}}
	}
	for port, layer := range map[string]string{"1": "Ethernet", "2": "Ethernet"} {
		p := filepath.Join(m.root, "sys/class/infiniband/mlx5_0/ports", port)
		os.MkdirAll(p, 0o755)
		os.WriteFile(filepath.Join(p, "link_layer"), []byte(layer), 0o644)
	}
	for _, name := range []string{"mlx5_0", "enp1s0f0"} {
		got, err := m.locateName(name)
		if err != nil || got.facts.Port != 2 || got.driver != uverbs.DriverMLX5 {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// Each refusal is of its kind, is one line, and says what to do.
func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		name, device string
		change       func(m *host)
		want         error
		says         string
	}{
		{"nothing named", "", nil, ErrConfig, "set Config.Device"},
		{"unknown name", "mlx5_9", nil, ErrNotFound,
			"RDMA devices here: mlx5_0, mlx5_1, mlx5_2, rxe0"},
		{"netdev without RDMA device", "eth0", nil, ErrNoRDMA, "not a port of an mlx5 NIC"},
		{"no RDMA at all", "mlx5_0", func(m *host) { m.root = t.TempDir() }, ErrNoRDMA, "modprobe"},
		{"InfiniBand", "mlx5_1", nil, ErrInfiniBand, "LINK_TYPE_P1=ETH"},
		{"InfiniBand by netdev", "ib0", nil, ErrInfiniBand, "LINK_TYPE_P1=ETH"},
		{"other make, by sysfs", "rxe0", nil, ErrNotMlx5, "an mlx5 NIC"},
		{"other make, by netlink", "mlx5_0", func(m *host) {
			m.rdma = func(string) netdev.RDMAFacts {
				return netdev.RDMAFacts{Driver: uverbs.DriverRXE}
			}
		}, ErrNotMlx5, "an mlx5 NIC"},
		{"node missing", "mlx5_0", func(m *host) { os.RemoveAll(filepath.Join(m.root, "dev")) },
			ErrNotFound, "--device"},
		{"netdev down", "mlx5_0", func(m *host) {
			m.iface = func(string) (netdev.Interface, error) {
				return netdev.Interface{MTU: 1500},
					nil
			}
		}, ErrDown, "ip link set enp1s0f0 up"},
		{"no CAP_NET_RAW", "mlx5_0", func(m *host) {
			m.env = func() (uverbs.Environment, error) { return uverbs.Environment{}, nil }
		}, ErrPermission, "cap_net_raw"},
		{"memlock", "mlx5_0", func(m *host) {
			m.env = func() (uverbs.Environment,
				error) {
				return uverbs.Environment{NetRaw: true, Memlock: 1 << 20}, nil
			}
		}, ErrMemlock,
			"MiB of locked memory (this process has locked 0.0 already), the limit is 1.0"},
		{"memlock used up", "mlx5_0",
			func(m *host) { m.pinned = func() uint64 { return 63 << 20 } },
			ErrMemlock, "has locked 63.0 already"},
		{"own MAC of a virtual function", "mlx5_2", nil, ErrMAC, "AllowNetdevMAC"},
		{"node goes away", "mlx5_0", nil, unix.ENXIO, "open mlx5_0: uverbs"},
		{"node forbidden", "mlx5_0", func(m *host) {
			m.open = func(string) (uverbs.Kernel, error) { return nil, unix.EACCES }
		}, ErrPermission, "open mlx5_0: uverbs"},
		{"node forbidden, in errno's words", "mlx5_0", func(m *host) {
			m.open = func(string) (uverbs.Kernel, error) { return nil, unix.EPERM }
		}, unix.EPERM, "open mlx5_0: uverbs"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := usual(t)
			if c.change != nil {
				c.change(m)
			}
			target, err := m.locateName(c.device)
			if err == nil {
				_, err = openTarget(t.Context(), Config{}, target)
			}
			if !errors.Is(err, c.want) {
				t.Fatalf("%v is not %v", err, c.want)
			}
			if text := err.Error(); !strings.Contains(text, c.says) ||
				strings.Contains(text, "\n") {
				t.Errorf("%q does not say %q in one line", text, c.says)
			}
		})
	}
}

func TestList(t *testing.T) {
	m := usual(t)
	list, err := m.listPorts()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, i := range list {
		state := "usable"
		if !i.Usable() {
			state = i.Why.Error()
		}
		got = append(got, i.Name+" "+i.Netdev+" "+i.LinkLayer+" "+i.State+": "+state[:6])
	}
	want := "mlx5_0 enp1s0f0 Ethernet ACTIVE: usable|mlx5_1 ib0 InfiniBand ACTIVE: port 1|mlx5_2 " +
		"enp1s0v0 Ethernet ACTIVE: usable|rxe0  Ethernet ACTIVE: rxe0 i"
	if s := strings.Join(got, "|"); s != want {
		t.Errorf("list\n%s\nwant\n%s", s, want)
	}
	if i := list[0]; i.MTU != 9000 || i.MAC.String() != "02:00:00:00:00:01" ||
		i.Firmware != "22.43.2026" || i.Type != "MT4125" {
		t.Errorf("facts %+v", i)
	}
	m.root = t.TempDir()
	if _, err := m.listPorts(); !errors.Is(err, ErrNoRDMA) {
		t.Errorf("a machine without RDMA: %v", err)
	}
}

// TestFind: the device that is wanted is found without a look at what takes time, the table of
// addresses if netlink tells the netdev, and what the firmware is asked for.
func TestFind(t *testing.T) {
	m := usual(t)
	m.rdma = func(name string) netdev.RDMAFacts {
		return netdev.RDMAFacts{Netdevs: map[uint8]string{1: map[string]string{
			"mlx5_0": "enp1s0f0", "mlx5_1": "ib0", "mlx5_2": "enp1s0v0"}[name]}}
	}
	named := func(name string) func(DeviceInfo) bool {
		return func(d DeviceInfo) bool { return d.Netdev == name }
	}
	d, err := m.findPort(named("enp1s0v0"))
	if err != nil || d.Name != "mlx5_2" || d.MTU != 1500 || d.State != "" || d.Rate != "" {
		t.Errorf("%+v, %v", d, err)
	}
	if _, err := m.findPort(named("ib0")); err == nil || !strings.Contains(err.Error(),
		"InfiniBand") {
		t.Errorf("not usable: %v", err)
	}
	if _, err := m.findPort(named("eth9")); !errors.Is(err, ErrNotFound) {
		t.Errorf("not there: %v", err)
	}
	nodes, err := m.listNodes()
	if err != nil || nodes[3].IBDev != "rxe0" || nodes[3].Ports[0].Netdevs != nil {
		t.Errorf("the table of addresses was read: %+v, %v", nodes, err)
	}
	m.rdma = func(string) netdev.RDMAFacts { return netdev.RDMAFacts{} }
	nodes, err = m.listNodes()
	if err != nil || len(nodes[3].Ports[0].Netdevs) != 1 {
		t.Errorf("the table of addresses was not read: %+v, %v", nodes, err)
	}
	m.root = t.TempDir()
	if _, err := m.findPort(named("enp1s0f0")); !errors.Is(err, ErrNoRDMA) {
		t.Errorf("a machine without RDMA: %v", err)
	}
}

// TestOpenUnderMemlock: under the limit of locked memory that systems have by default, a device
// with one receive queue is opened with smaller rings, which is said once; with none to spare it is
// refused in words.
func TestOpenUnderMemlock(t *testing.T) {
	for _, tt := range []struct {
		limit   uint64
		pinned  uint64 // by others in the process
		refused bool
		said    int
	}{
		{64 << 20, 0, false, 0}, {8 << 20, 0, false, 1}, {64 << 20, 56 << 20, false, 1},
		{64 << 10, 0, true, 0}, {8 << 20, 7 << 20, true, 0},
	} {
		m := usual(t)
		m.env = func() (uverbs.Environment, error) {
			return uverbs.Environment{NetRaw: true, Memlock: tt.limit}, nil
		}
		m.pinned = func() uint64 { return tt.pinned }
		target, err := m.locateName("mlx5_0")
		if err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		_, err = openTarget(t.Context(), Config{NIC: NIC{RxQueues: 1, TxQueues: 8},
			Logger: slog.New(slog.NewTextHandler(&log, nil))}, target)
		said := strings.Count(log.String(), "rings and buffers are smaller than usual")
		if errors.Is(err, ErrMemlock) != tt.refused || !tt.refused && !errors.Is(err, unix.ENXIO) ||
			said != tt.said {
			t.Errorf("limit %d, %d locked: %v; said %d times: %s", tt.limit, tt.pinned, err, said,
				&log)
		}
	}
}

// switchdevTree is a PF in switchdev mode with two VFs: its RDMA device has a port for each vport,
// the uplink last (linux drivers/infiniband/hw/mlx5/ib_rep.c, mlx5_esw_vports_init in eswitch.c).
func switchdevTree(t *testing.T, here ...string) *host {
	tr := tree{}.card("uverbs0", "mlx5_0", "mlx5_core", "Ethernet", here...)
	netdevs := map[uint8]string{2: "enp1s0f0_0", 3: "enp1s0f0_1", 4: "enp1s0f0np0"}
	names := map[string]string{"enp1s0f0_0": "pf0vf0\n", "enp1s0f0_1": "c1pf0vf1\n",
		"enp1s0f0np0": "p0\n"}
	m := usual(t)
	for port, name := range netdevs {
		tr[fmt.Sprintf("sys/class/infiniband/mlx5_0/ports/%d/link_layer", port)] = "Ethernet\n"
		if slices.Contains(here, name) {
			tr["sys/class/net/"+name+"/phys_port_name"] = names[name]
		} else {
			delete(netdevs, port)
		}
	}
	m.root = tr.write(t)
	m.rdma = func(string) netdev.RDMAFacts {
		return netdev.RDMAFacts{Driver: uverbs.DriverMLX5, Netdevs: netdevs}
	}
	m.iface = func(name string) (netdev.Interface, error) {
		if name == "uplink-of-the-first-card" { // an alternative name, longer than a name may be
			name = "enp1s0f0np0"
		}
		for port, n := range netdevs {
			if n == name {
				return netdev.Interface{Name: n, MTU: 1500, Up: true,
					MAC: net.HardwareAddr{2, 0, 0, 0, 0, port}}, nil
			}
		}
		return netdev.Interface{}, errors.New("Link not found")
	}
	return m
}

// The name of a device in switchdev mode is its uplink, or is refused; each port is listed.
func TestLocateSwitchdev(t *testing.T) {
	all := []string{"enp1s0f0_0", "enp1s0f0_1", "enp1s0f0np0"}
	for _, tt := range []struct {
		name, device string
		here         []string
		port         uint8
		refused      string
	}{
		{"uplink by the device", "mlx5_0", all, 4, ""},
		{"uplink by its netdev", "enp1s0f0np0", all, 4, ""},
		{"uplink by an alternative name", "uplink-of-the-first-card", all, 4, ""},
		{"representor by its netdev", "enp1s0f0_1", all, 3, ""},
		{"port by its number", "mlx5_0/2", all, 2, ""},
		{"no such port", "mlx5_0/9", all, 0, "no port 9"},
		{"no number", "mlx5_0/uplink", all, 0, "name it mlx5_0/1"},
		{"port 0", "mlx5_0/0", all, 0, "name it mlx5_0/1"},
		{"representors only", "mlx5_0", all[:2], 0,
			"only representors of functions behind its e-switch (switchdev): enp1s0f0_0 (port 2)"},
		{"nothing here", "mlx5_0", nil, 0, "no netdev in this network namespace says"},
		{"nothing here, by number", "mlx5_0/4", nil, 4, ""},
	} {
		got, err := switchdevTree(t, tt.here...).locateName(tt.device)
		switch {
		case tt.refused == "" && (err != nil || got.facts.Port != tt.port):
			t.Errorf("%s: %+v, %v, want port %d", tt.name, got, err, tt.port)
		case tt.refused != "" && (!errors.Is(err, ErrNotFound) ||
			!strings.Contains(err.Error(), tt.refused)):
			t.Errorf("%s: %+v, %v, want %q", tt.name, got, err, tt.refused)
		}
	}
	list, err := switchdevTree(t, all...).listPorts()
	var rows []string
	for _, i := range list {
		rows = append(rows, fmt.Sprint(i.Device(), " ", i.Netdev, " ", i.Representor))
	}
	want := "mlx5_0/4 enp1s0f0np0 false|mlx5_0/1  false|mlx5_0/2 enp1s0f0_0 true|" +
		"mlx5_0/3 enp1s0f0_1 true"
	if got := strings.Join(rows, "|"); err != nil || got != want {
		t.Errorf("listed %s, %v, want %s", got, err, want)
	}
	first, err := switchdevTree(t, all...).findPort(func(DeviceInfo) bool { return true })
	if err != nil || first.Netdev != "enp1s0f0np0" {
		t.Errorf("found first: %+v, %v", first, err)
	}
	one, err := switchdevTree(t, all...).describeOne("enp1s0f0_0")
	if err != nil || one.Port != 2 || one.Ports != 4 {
		t.Errorf("described: %+v, %v", one, err)
	}
}

// A card has a PCI function for each of its ports, and mlxconfig numbers the ports.
func TestLinkTypeOfSecondFunction(t *testing.T) {
	for name, tt := range map[string]struct{ device, want string }{
		"second function":        {"-> ../../../0000:65:00.1", "LINK_TYPE_P2=ETH"},
		"first function":         {"-> ../../../0000:65:00.0", "LINK_TYPE_P1=ETH"},
		"VF of the second":       {"-> ../../../0000:65:02.3", "LINK_TYPE_P2=ETH"},
		"SF on the second":       {"-> ../../../0000:65:00.1/mlx5_core.sf.4", "LINK_TYPE_P2=ETH"},
		"SF on a VF of a second": {"-> ../../../0000:65:02.3/mlx5_core.sf.5", "LINK_TYPE_P2=ETH"},
	} {
		tr := tree{}.card("uverbs0", "mlx5_0", "", "InfiniBand")
		tr["sys/class/infiniband/mlx5_0/hca_type"] = "MT4125\n"
		tr["sys/class/infiniband/mlx5_0/device"] = tt.device
		tr["sys/0000:65:00.0/numa_node"] = "0\n"
		tr["sys/0000:65:00.1/mlx5_core.sf.4/sfnum"] = "88\n"
		tr["sys/0000:65:02.3/mlx5_core.sf.5/sfnum"] = "89\n"
		tr["sys/0000:65:02.3/physfn"] = "-> ../0000:65:00.1"
		m := usual(t)
		m.root = tr.write(t)
		if _, err := m.locateName("mlx5_0"); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %s", name, err, tt.want)
		}
	}
}
