package host_test

import (
	"cmp"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/internal/doctor"
	"github.com/rdma-netstack/rdma-netstack/internal/doctor/host"
)

// Directories of the ConnectX-6 Dx.
const (
	pci    = "sys/devices/pci0000:60/0000:65:00.0/"
	ib     = pci + "infiniband/mlx5_0/"
	ifc    = pci + "net/enp101s0f0np0/"
	cgroup = "sys/fs/cgroup/system.slice/rdma-netstack.service/"
	status = `proc/self/status = Uid:	998	998	998	998\n` +
		`Gid:	998	998	998	998\nGroups:	 \n`
)

// planted is a fault on the ConnectX-6 Dx, or on another card, and the line that tells of it.
type planted struct {
	name, check, saw string
	state            doctor.State
	lines            []string // that replace or add to those of the fixture
	gone             []string // paths that are not there
	card, device     string
	netlink          func(*host.Config)
}

func plantedFaults() []planted {
	return []planted{
		{name: "old kernel", check: "kernel", saw: "linux 4.19.0-27-amd64 lacks",
			lines: []string{"proc/sys/kernel/osrelease = 4.19.0-27-amd64"}},
		{name: "module not loaded", check: "modules", saw: "not loaded: mlx5_ib",
			gone: []string{"sys/module/mlx5_ib/", "sys/class/infiniband/"}},
		{name: "node module not loaded", check: "modules", saw: "not loaded: ib_uverbs",
			gone: []string{"sys/module/ib_uverbs/", "sys/class/infiniband_verbs/"}},
		{name: "no card", check: "device", saw: "no RDMA device on this machine",
			gone: []string{"sys/class/infiniband/"}},
		{name: "wrong name", check: "device", saw: "is called eth7", device: "eth7"},
		{name: "device in another namespace", check: "device", saw: "exclusive",
			lines: []string{"sys/module/ib_core/parameters/netns_mode = N"},
			gone:  []string{"sys/class/infiniband/"}},
		{name: "another make", check: "driver", saw: `driven by "irdma"`,
			lines: []string{pci + "driver -> ../../../bus/pci/drivers/irdma"}},
		{name: "InfiniBand", check: "link layer", saw: "is InfiniBand",
			lines: []string{ib + "ports/1/link_layer = InfiniBand"}},
		{name: "InfiniBand of a second port", check: "link layer", state: doctor.Note,
			saw:   "the link layer of port 2 of mlx5_0 is InfiniBand",
			lines: []string{ib + "ports/2/link_layer = InfiniBand"}},
		{name: "no node in the container", check: "node",
			saw:  "/dev/infiniband/uverbs0 is not there",
			gone: []string{"dev/infiniband/"}},
		{name: "node not for us", check: "node", saw: "may not read and write",
			lines: []string{"dev/infiniband/uverbs0 @0600 ="}},
		{name: "no CAP_NET_RAW", check: "capabilities", saw: "CAP_NET_RAW is missing",
			lines: []string{status + `CapEff:	0000000000000000\nCpus_allowed_list:	0-15`}},
		{name: "no CAP_NET_ADMIN", check: "host's address", state: doctor.Note,
			saw: "--address host is refused: this kernel wants CAP_NET_ADMIN",
			netlink: func(c *host.Config) {
				c.Filter = func() error { return os.NewSyscallError("setsockopt", syscall.EPERM) }
			}},
		{name: "user namespace", check: "user namespace", saw: "wants CAP_NET_RAW outside",
			lines: []string{"proc/self/uid_map =          0     100000      65536"}},
		{name: "memlock", check: "locked memory", saw: "may lock 0.1 MiB",
			lines: []string{"proc/self/limits = Max locked memory         65536 65536 bytes"}},
		{name: "memlock for one queue", check: "locked memory", saw: "may lock 8.0 MiB",
			state: doctor.Note,
			lines: []string{"proc/self/limits = Max locked memory         8388608 8388608 bytes"}},
		{name: "cgroup rdma", check: "cgroup rdma", saw: "allows hca_object=8",
			lines: []string{cgroup + "rdma.max = mlx5_0 hca_handle=2 hca_object=8"}},
		{name: "cgroup rdma of a parent", check: "cgroup rdma",
			saw: "the cgroup /system.slice allows hca_object=8", lines: []string{
				"sys/fs/cgroup/system.slice/rdma.max = mlx5_0 hca_handle=2 hca_object=8"}},
		{name: "cgroup rdma of a parent, handles", check: "cgroup rdma",
			saw: "the cgroup /system.slice allows hca_handle=0", lines: []string{
				"sys/fs/cgroup/system.slice/rdma.max = mlx5_0 hca_handle=0 hca_object=max"}},
		{name: "cgroup rdma of version 1", check: "cgroup rdma",
			saw: "the cgroup /docker/abc allows hca_object=8", lines: []string{
				`proc/self/cgroup = 13:rdma:/docker/abc\n0::/`,
				"sys/fs/cgroup/rdma/docker/abc/rdma.max = mlx5_0 hca_handle=2 hca_object=8"}},
		{name: "cgroup rdma for the default queues", check: "cgroup rdma",
			saw:   "with 4 receive and 8 send queues needs 45",
			lines: []string{cgroup + "rdma.max = mlx5_0 hca_handle=2 hca_object=41"}},
		{name: "cgroup rdma for the queues asked for", check: "cgroup rdma",
			saw:     "with 16 receive and 16 send queues needs 85",
			netlink: func(c *host.Config) { c.RxQueues, c.TxQueues = 16, 16 },
			lines:   []string{cgroup + "rdma.max = mlx5_0 hca_handle=2 hca_object=84"}},
		{name: "cgroup rdma without room to rebalance", check: "cgroup rdma", state: doctor.Note,
			saw:   "needs 45, and 58 to spread load anew",
			lines: []string{cgroup + "rdma.max = mlx5_0 hca_handle=2 hca_object=57"}},
		{name: "cgroup rdma in use", check: "cgroup rdma",
			saw: "allows hca_handle=1 of mlx5_0, 1 of them in use", lines: []string{
				cgroup + "rdma.max = mlx5_0 hca_handle=1 hca_object=max",
				cgroup + "rdma.current = mlx5_0 hca_handle=1 hca_object=30"}},
		{name: "cgroup memory of a parent", check: "cgroup memory",
			saw:   "/system.slice allows 32 MiB",
			lines: []string{"sys/fs/cgroup/system.slice/memory.max = 33554432"}},
		{name: "cgroup memory of version 1", check: "cgroup memory", saw: "/a allows 32 MiB",
			lines: []string{`proc/self/cgroup = 4:memory:/a/b\n0::/`,
				"sys/fs/cgroup/memory/a/memory.limit_in_bytes = 33554432"}},
		{name: "cgroup cpu of a parent", check: "cgroup cpu", saw: "/system.slice allows 50%",
			state: doctor.Note, lines: []string{
				"sys/fs/cgroup/system.slice/cpu.max = 50000 100000"}},
		{name: "cgroup cpu of version 1", check: "cgroup cpu", saw: "/a/b allows 50%",
			state: doctor.Note, lines: []string{`proc/self/cgroup = 4:cpu,cpuacct:/a/b\n0::/`,
				"sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us = 50000",
				"sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_period_us = 100000"}},
		{name: "cgroup memory", check: "cgroup memory", saw: "allows 32 MiB",
			lines: []string{cgroup + "memory.max = 33554432"}},
		{name: "cgroup cpu", check: "cgroup cpu", saw: "50% of one processor",
			state: doctor.Note, lines: []string{cgroup + "cpu.max = 50000 100000"}},
		{name: "seccomp", check: "seccomp", saw: "filter is in force", state: doctor.Note,
			lines: []string{status +
				`CapEff:	0000000000002000\nSeccomp:	2\nCpus_allowed_list:	0-15`}},
		{name: "old firmware", check: "firmware", saw: "22.24.1500 is older than 22.27.0090",
			lines: []string{ib + "fw_ver = 22.24.1500"}},
		{name: "firmware with a known bug", check: "firmware", saw: "assert 0x888E",
			lines: []string{ib + "fw_ver = 16.34.1002"}},
		{name: "firmware with two", check: "firmware", saw: "may take the other's link",
			lines: []string{ib + "fw_ver = 22.31.1013"}},
		{name: "unknown firmware", check: "firmware", saw: "not known here", state: doctor.Note,
			lines: []string{ib + "fw_ver = 40.48.1000"}},
		{name: "RoCE", check: "RoCE", state: doctor.Note,
			saw: "UDP port 4791 is the card's, no server gets its frames " +
				"(GIDs: 1 of IB/RoCE v1, 1 of RoCE v2)",
			lines: []string{ib + "ports/1/gid_attrs/types/0 = IB/RoCE v1",
				ib + "ports/1/gid_attrs/types/1 = RoCE v2"}},
		{name: "narrow slot", check: "PCIe link",
			saw:   "8.0 GT/s PCIe x4, the card can do 16.0 GT/s PCIe x16",
			state: doctor.Note, lines: []string{pci + "current_link_speed = 8.0 GT/s PCIe",
				pci + "current_link_width = 4"}},
		{name: "IOMMU", check: "IOMMU", saw: "strict", state: doctor.Note,
			lines: []string{pci + "iommu_group/type = DMA"}},
		{name: "far processors", check: "NUMA",
			saw: "NUMA node 1, and none of its CPUs (8-15,24-31)",
			lines: []string{pci + "numa_node = 1",
				"proc/irq/132/effective_affinity_list = 8",
				"proc/irq/133/effective_affinity_list = 9",
				status + `CapEff:	0000000000002000\nCpus_allowed_list:	0-7,16`}},
		{name: "netdev elsewhere", check: "netdev here", saw: "another network namespace",
			state: doctor.Note, gone: []string{pci + "net/", "sys/class/net/"}},
		{name: "netdev down", check: "netdev up", saw: "enp101s0f0np0 is down",
			lines: []string{ifc + "flags = 0x1002"}},
		{name: "no carrier", check: "netdev up", saw: "has no carrier",
			lines: []string{ifc + "carrier = 0"}},
		{name: "small MTU", check: "MTU", saw: "is 1000: IPv6 needs 1280",
			lines: []string{ifc + "mtu = 1000"}},
		{name: "PCIe link of an SF", check: "PCIe link", card: "connectx6dx_sf", device: "mlx5_4",
			saw: "8.0 GT/s PCIe x4", state: doctor.Note,
			lines: []string{pci + "current_link_speed = 8.0 GT/s PCIe",
				pci + "current_link_width = 4"}},
		{name: "PCIe link of a VF", check: "PCIe link", card: "connectx5_vf", device: "mlx5_2",
			saw: "8.0 GT/s PCIe x4", state: doctor.Note, lines: []string{
				"sys/devices/pci0000:80/0000:81:00.0/current_link_speed = 8.0 GT/s PCIe",
				"sys/devices/pci0000:80/0000:81:00.0/max_link_speed = 8.0 GT/s PCIe",
				"sys/devices/pci0000:80/0000:81:00.0/current_link_width = 4",
				"sys/devices/pci0000:80/0000:81:00.0/max_link_width = 8"}},
		{name: "IOMMU of an SF", check: "IOMMU", saw: "strict", state: doctor.Note,
			card: "connectx6dx_sf", device: "mlx5_4",
			lines: []string{pci + "iommu_group/type = DMA"}},
		{name: "processors far from an SF", check: "NUMA", card: "connectx6dx_sf",
			device: "mlx5_4", saw: "NUMA node 1, and none of its CPUs (8-15,24-31)",
			lines: []string{pci + "numa_node = 1",
				"proc/irq/132/effective_affinity_list = 8",
				"proc/irq/133/effective_affinity_list = 9",
				status + `CapEff:	0000000000002000\nCpus_allowed_list:	0-7,16`}},
		{name: "RoCE of an SF", check: "RoCE", state: doctor.Note, saw: "UDP port 4791",
			card: "connectx6dx_sf", device: "mlx5_4", lines: []string{
				pci + "mlx5_core.sf.4/infiniband/mlx5_4/ports/1/gid_attrs/types/0 = RoCE v2"}},
		{name: "small MTU of an SF's port", check: "MTU of the port",
			saw:  "the MTU of enp101s0f0s88 is 9000, that of its port enp101s0f0np0 is 1500",
			card: "connectx6dx_sf", device: "mlx5_4",
			lines: []string{pci + "mlx5_core.sf.4/net/enp101s0f0s88/mtu = 9000"}},
		{name: "small MTU of the port", check: "MTU of the port",
			saw:  "that of its port enp129s0f0 is 1500",
			card: "connectx5_vf", device: "mlx5_2", lines: []string{
				"sys/devices/pci0000:80/0000:81:00.0/net/enp129s0f0/mtu = 1500",
				"sys/devices/pci0000:80/0000:81:00.2/net/enp129s0f0v0/mtu = 9000"}},
		{name: "slow link", check: "link speed", saw: "runs at 1000 Mbit/s, full duplex",
			state: doctor.Note, lines: []string{ifc + "speed = 1000"}},
		{name: "half duplex", check: "link speed", saw: "half duplex",
			state: doctor.Note, lines: []string{ifc + "duplex = half"}},
		{name: "pause frames", check: "pause frames", state: doctor.Note,
			saw: "global pause is on; 4711 pause frames received, 12 sent",
			netlink: func(c *host.Config) {
				c.Pause = func(string) (host.Pause, error) {
					return host.Pause{Received: 4711, Sent: 12}, nil
				}
			}},
		{name: "PFC", check: "pause frames", saw: "PFC for priorities 3, 4 is on",
			state: doctor.Note,
			netlink: func(c *host.Config) {
				c.Pause = func(string) (host.Pause, error) { return host.Pause{PFC: 0x18}, nil }
			}},
		{name: "small rings", check: "ring sizes", saw: "have 128 of up to 8192 slots",
			state: doctor.Note,
			netlink: func(c *host.Config) {
				c.RxRing = func(string) (int, int, error) { return 128, 8192, nil }
			}},
		{name: "all interrupts to one CPU", check: "interrupts",
			saw: "all 2 completion interrupts of the card go to CPU 0", state: doctor.Note,
			lines: []string{"proc/irq/133/effective_affinity_list = 0"}},
		{name: "interrupts far away", check: "interrupts", saw: "CPUs of another NUMA node",
			state: doctor.Note, lines: []string{"proc/irq/132/effective_affinity_list = 8",
				"proc/irq/133/effective_affinity_list = 9"}},
		{name: "huge pages", check: "huge pages", saw: "2048 MiB are set aside", state: doctor.Note,
			lines: []string{`proc/meminfo = HugePages_Total:    1024
` +
				`HugePages_Free:     1024
Hugepagesize:       2048 kB`}},
		{name: "damaged frames", check: "link errors",
			saw:   "rx_crc_errors of enp101s0f0np0 is 1842",
			state: doctor.Note, lines: []string{ifc + "statistics/rx_crc_errors = 1842"}},
		{name: "bond", check: "bond", saw: "is in bond bond0", lines: []string{
			ifc + "master -> ../../../../virtual/net/bond0",
			"sys/class/net/bond0/bonding/mode = 802.3ad 4"}},
		{name: "netvsc", check: "bond", saw: "is the accelerated half of eth0",
			card: "connectx4lx_guest", device: "rocep0s5", lines: []string{
				"sys/devices/pci0000:00/0000:00:05.0/net/ens5/master -> ../../../vmbus/net/eth0",
				"sys/class/net/eth0/device/driver -> ../../../../bus/vmbus/drivers/hv_netvsc"}},
		{name: "bridge", check: "bond", saw: "is a port of br0", state: doctor.Note,
			lines: []string{ifc + "master -> ../../../../virtual/net/br0"}},
		{name: "representors only", check: "representor", saw: "en3f0pf0, en3f0pf0vf0",
			card: "bluefield2", device: "mlx5_0",
			gone: []string{"sys/devices/pci0000:00/0000:03:00.0/net/p0/", "sys/class/net/p0"}},
		{name: "switchdev", check: "e-switch mode", saw: "in switchdev mode",
			netlink: func(c *host.Config) {
				c.ESwitchMode = func(pci string) (string, error) {
					if pci != "0000:65:00.0" {
						return "", errors.New("no such device")
					}
					return "switchdev", nil
				}
			}},
		{name: "untrusted VF", check: "VF trust and spoof check",
			saw:  "VF 0 of enp129s0f0: trust false, spoof check true",
			card: "connectx5_vf", device: "mlx5_2", state: doctor.Note,
			netlink: func(c *host.Config) {
				c.VF = func(string, int) (host.VF, error) { return host.VF{SpoofCheck: true}, nil }
			}},
	}
}

// TestPlanted plants one fault at a time, and wants its line and what to do. What else is said must
// follow from it.
func TestPlanted(t *testing.T) {
	// what a missing device or node leads to
	follows := map[string]string{"modules": "device node", "device": ""}
	for _, tt := range plantedFaults() {
		t.Run(tt.name, func(t *testing.T) {
			if tt.card == "" {
				tt.card, tt.device = "connectx6dx", cmp.Or(tt.device, "mlx5_0")
			}
			f := card(t, tt.card)
			for _, line := range tt.lines {
				f.set(line)
			}
			for path := range f {
				for _, gone := range tt.gone {
					if path == gone || strings.HasSuffix(gone, "/") &&
						strings.HasPrefix(path, gone) {
						delete(f, path)
					}
				}
			}
			cfg := config(f.build(t), tt.device)
			if tt.netlink != nil {
				tt.netlink(&cfg)
			}
			r := host.Run(cfg)
			state, found := doctor.State(cmp.Or(string(tt.state), string(doctor.Failed))), false
			for _, p := range r.Results {
				switch {
				case p.State == doctor.OK:
				case p.Check == tt.check:
					found = p.State == state && strings.Contains(p.Saw, tt.saw) && p.Do != ""
				case !strings.Contains(follows[tt.check], p.Check):
					t.Errorf("said besides: %+v", p)
				}
			}
			if !found {
				t.Errorf("not found in\n%s", text(t, r))
			}
		})
	}
}

// TestEveryCheckFinds wants a fault above for every check, and at least 20 in all.
func TestEveryCheckFinds(t *testing.T) {
	found := map[string]bool{}
	for _, p := range plantedFaults() {
		found[p.check] = true
	}
	if n := len(plantedFaults()); n < 20 {
		t.Errorf("%d faults", n)
	}
	for _, r := range host.Run(config(card(t, "connectx6dx").build(t), "")).Results {
		if !found[r.Check] {
			t.Errorf("no fault is planted for %q", r.Check)
		}
	}
}

// TestReadsOnly wants the tree to be afterwards what it was.
func TestReadsOnly(t *testing.T) {
	root := card(t, "connectx6dx").build(t)
	if err := os.Chmod(root, 0o555); err != nil {
		t.Fatal(err)
	}
	before := listing(t, root)
	host.Run(config(root, ""))
	if after := listing(t, root); after != before {
		t.Errorf("before\n%s\nafter\n%s", before, after)
	}
}

// listing is names, modes and times of all files below root.
func listing(t *testing.T, root string) string {
	t.Helper()
	var b strings.Builder
	err := walk(root, func(name string, st os.FileInfo) {
		b.WriteString(name + " " + st.Mode().String() + " " + st.ModTime().String() + "\n")
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}
