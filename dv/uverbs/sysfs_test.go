package uverbs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// tree creates files and links below a new directory: "path" -> content, or "path" -> "-> target"
// for a link.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		p := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, ok := strings.CutPrefix(content, "-> "); ok {
			err = os.Symlink(target, p)
		} else {
			err = os.WriteFile(p, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// machine is a card with two functions, one of them virtual, and a software device. /dev/null (1:3)
// stands for a node.
func machine() map[string]string {
	files := map[string]string{
		"sys/class/infiniband_verbs/abi_version":         "6\n",
		"sys/class/infiniband_verbs/uverbs0/ibdev":       "mlx5_1\n",
		"sys/class/infiniband_verbs/uverbs0/abi_version": "1\n",
		"sys/class/infiniband_verbs/uverbs0/dev":         "1:3\n",
		"sys/class/infiniband_verbs/uverbs1/ibdev":       "mlx5_0\n",
		"sys/class/infiniband_verbs/uverbs1/abi_version": "1\n",
		"sys/class/infiniband_verbs/uverbs1/dev":         "1:5\n",
		"sys/class/infiniband_verbs/uverbs2/ibdev":       "rxe0\n",
		"sys/class/infiniband_verbs/uverbs2/abi_version": "2\n",
		"sys/class/infiniband_verbs/uverbs2/dev":         "231:194\n",
		"sys/class/infiniband_verbs/uverbs3/dev":         "231:195\n", // being removed
		"dev/infiniband/uverbs0":                         "-> /dev/null",
		"dev/infiniband/renamed":                         "-> /dev/zero",
		"dev/infiniband/uverbs2":                         "not a device",

		"sys/class/infiniband/mlx5_1":         "-> ../../devices/pf/infiniband/mlx5_1",
		"sys/class/infiniband/mlx5_0":         "-> ../../devices/vf/infiniband/mlx5_0",
		"sys/class/infiniband/rxe0/node_guid": "0000:0000:0000:0001\n",
		"sys/drivers/mlx5_core/bind":          "",

		"sys/class/infiniband/rxe0/ports/1/link_layer": "Ethernet\n",
	}
	for dev, dir := range map[string]string{"mlx5_1": "sys/devices/pf",
		"mlx5_0": "sys/devices/vf"} {
		ib := filepath.Join(dir, "infiniband", dev)
		for name, content := range map[string]string{
			"device": "-> ../../../" + filepath.Base(dir), "node_guid": "0002:c903:00a1:b2c3\n",
			"fw_ver": "22.31.1014\n", "hca_type": "MT4125\n", "board_id": "MT_0000000359\n",
			"ports/1/state": "4: ACTIVE\n", "ports/1/phys_state": "5: LinkUp\n",
			"ports/1/link_layer": "Ethernet\n", "ports/1/rate": "100 Gb/sec (4X EDR)\n",
			"ports/10/state": "1: DOWN\n", "ports/10/link_layer": "InfiniBand\n",
			"ports/2/state": "1: DOWN\n", "ports/2/link_layer": "Ethernet\n",
			"ports/1/gid_attrs/ndevs/0": "enp1s0f0\n", "ports/1/gid_attrs/ndevs/1": "enp1s0f0\n",
			"ports/1/gid_attrs/ndevs/2": "", "ports/1/gid_attrs/ndevs/10": "enp1s0f0.7\n",
		} {
			files[filepath.Join(ib, name)] = content
		}
		files[dir+"/driver"] = "-> ../../drivers/mlx5_core"
		files[dir+"/vendor"], files[dir+"/device"],
			files[dir+"/numa_node"] = "0x15b3\n", "0x101d\n", "1\n"
		files[dir+"/net/enp1s0f0/mtu"] = "1500\n"
	}
	files["sys/devices/vf/physfn"] = "-> ../pf"
	return files
}

func TestDiscover(t *testing.T) {
	root := tree(t, machine())
	list, err := Discover(root)
	if err != nil || len(list) != 3 {
		t.Fatalf("%d devices, %v", len(list), err)
	}
	pf := NodeInfo{IBDev: "mlx5_1", Node: filepath.Join(root, "dev/infiniband/uverbs0"),
		Present: true, Major: 1, Minor: 3, DriverABI: 1,
		NodeGUID: "0002:c903:00a1:b2c3", Firmware: "22.31.1014",
		HCAType: "MT4125", BoardID: "MT_0000000359",
		Bus: "pf", Driver: "mlx5_core", Vendor: 0x15b3, Device: 0x101d, NUMANode: 1,
		Netdevs: []string{"enp1s0f0"},
		Ports: []PortInfo{
			{Num: 1, State: "ACTIVE", PhysState: "LinkUp", LinkLayer: "Ethernet",
				Rate: "100 Gb/sec (4X EDR)", Netdevs: []string{"enp1s0f0", "enp1s0f0.7"}},
			{Num: 2, State: "DOWN", LinkLayer: "Ethernet"},
			{Num: 10, State: "DOWN", LinkLayer: "InfiniBand"}}}
	for _, p := range list[1].Ports { // reading them takes time
		if p.State != "" || p.PhysState != "" || p.Rate != "" || p.Netdevs != nil {
			t.Errorf("not asked for: %+v", p)
		}
	}
	list[1].ReadStates(root)
	list[1].ReadNetdevs(root)
	if !reflect.DeepEqual(list[1], pf) {
		t.Errorf("have %+v\nwant %+v", list[1], pf)
	}
	vf := list[0]
	if vf.IBDev != "mlx5_0" || !vf.VF || !vf.Present ||
		vf.Node != filepath.Join(root, "dev/infiniband/renamed") {
		t.Errorf("virtual function %+v", vf)
	}
	rxe := list[2]
	if rxe.IBDev != "rxe0" || rxe.Driver != "" || rxe.NUMANode != -1 || rxe.Present ||
		rxe.Netdevs != nil || rxe.Major != 231 || rxe.Minor != 194 {
		t.Errorf("software device %+v", rxe)
	}
}

// In a guest a virtual function has no physfn: its PCI id says what it is.
func TestDiscoverVFByPCIID(t *testing.T) {
	for _, tc := range []struct {
		vendor, device string
		vf             bool
	}{
		{"0x15b3", "0x1013", false}, {"0x15b3", "0x1014", true}, {"0x15b3", "0x1015", false},
		{"0x15b3", "0x1016", true},
		{"0x15b3", "0x1017", false}, {"0x15b3", "0x1018", true}, {"0x15b3", "0x1019", false},
		{"0x15b3", "0x101a", true},
		{"0x15b3", "0x101b", false}, {"0x15b3", "0x101c", true}, {"0x15b3", "0x101d", false},
		{"0x15b3", "0x101e", true},
		{"0x15b3", "0x1021", false}, {"0x15b3", "0xa2d2", false}, {"0x15b3", "0xa2d3", true},
		{"0x8086", "0x1018", false},
	} {
		files := machine()
		files["sys/devices/pf/vendor"], files["sys/devices/pf/device"] = tc.vendor+"\n",
			tc.device+"\n"
		list, err := Discover(tree(t, files))
		if err != nil || len(list) != 3 {
			t.Fatalf("%d devices, %v", len(list), err)
		}
		if list[1].VF != tc.vf {
			t.Errorf("%s:%s without physfn: virtual function %v, want %v", tc.vendor,
				tc.device, list[1].VF, tc.vf)
		}
	}
}

func TestNodeCheck(t *testing.T) {
	list, err := Discover(tree(t, machine()))
	if err != nil {
		t.Fatal(err)
	}
	gone := list[1]
	gone.Present = false
	for _, tc := range []struct {
		name string
		node NodeInfo
		port int
		want error
		says string
	}{
		{"good", list[1], 1, nil, ""},
		{"software", list[2], 1, ErrUnsupported, "rxe0 is a software or other RDMA device"},
		{"other driver", NodeInfo{IBDev: "irdma0", Driver: "irdma", HCAType: "X"}, 1,
			ErrUnsupported, "mlx5 NIC"},
		{"sub-function", NodeInfo{Driver: "mlx5_core.sf", Present: true,
			Ports: []PortInfo{{Num: 1, LinkLayer: "Ethernet"}}}, 1, nil, ""},
		{"infiniband", list[1], 10, ErrUnsupported,
			"port 10 of mlx5_1 is InfiniBand: set LINK_TYPE_P10=ETH"},
		{"no port", list[1], 3, fs.ErrNotExist, "no port 3"},
		{"no node", gone, 1, fs.ErrNotExist, "device 1:3"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := tc.node.Check(tc.port)
			if !errors.Is(err, tc.want) || err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%v lacks %q", err, tc.says)
			}
		})
	}
}

func TestDiscoverNothing(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"no modules": {"sys/class/net/lo/mtu": "65536"},
		"no devices": {"sys/class/infiniband_verbs/abi_version": "6"},
	} {
		_, err := Discover(tree(t, files))
		if !errors.Is(err, ErrNoRDMA) || !errors.Is(err, fs.ErrNotExist) ||
			!strings.Contains(err.Error(), "modprobe") {
			t.Errorf("%s: %v", name, err)
		}
	}
	files := machine()
	files["sys/class/infiniband_verbs/abi_version"] = "7"
	if _, err := Discover(tree(t, files)); !errors.Is(err, ErrUnsupported) {
		t.Errorf("another interface: %v", err)
	}
}

// TestDiscoverHere runs on the machine's own sysfs, with any devices.
func TestDiscoverHere(t *testing.T) {
	list, err := Discover("")
	if err != nil && !errors.Is(err, ErrNoRDMA) {
		t.Error(err)
	}
	for _, n := range list {
		if n.IBDev == "" || n.Node == "" {
			t.Errorf("%+v", n)
		}
	}
}

// TestPortCounter: a counter is found by the node's device number.
func TestPortCounter(t *testing.T) {
	const ports = "sys/class/infiniband/mlx5_1/ports/"
	s := sysfs{tree(t, map[string]string{
		"sys/dev/char/231:192":                     "-> ../../class/infiniband_verbs/uverbs0",
		"sys/class/infiniband_verbs/uverbs0/ibdev": "mlx5_1\n",
		ports + "2/hw_counters/out_of_buffer":      "4294967295\n",
		ports + "1/hw_counters/out_of_buffer":      "none\n",
	})}
	if n, err := s.portCounter(231, 192, 2, "out_of_buffer"); n != 1<<32-1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	for _, c := range []struct {
		name         string
		minor        uint32
		port         uint8
		counter      string
		doesNotExist bool
	}{
		{"no such device", 193, 2, "out_of_buffer", true},
		{"no such port", 192, 3, "out_of_buffer", true},
		{"no such counter", 192, 2, "rx_out_of_buffer", true},
		{"not a number", 192, 1, "out_of_buffer", false},
	} {
		_, err := s.portCounter(231, c.minor, c.port, c.counter)
		if err == nil || errors.Is(err, fs.ErrNotExist) != c.doesNotExist {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
