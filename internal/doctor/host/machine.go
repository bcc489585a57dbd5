package host

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// machine is the machine, and the port to be judged.
type machine struct {
	tree
	cfg    Config
	rdma   string // "mlx5_0"; what was asked for if there is no such device
	dev    string // its directory in sysfs, "" if there is none
	bus    string // directory of the PCI or auxiliary device, below dev
	pci    string // directory of the PCI function that is, or that the auxiliary device is on
	portN  int    // number of the port, from 1
	netdev string // its netdev, "" if there is none here
	node   string // "uverbs0", "" if there is none
}

const class = "sys/class/infiniband"

func newMachine(cfg Config) *machine {
	m := &machine{tree: tree{cfg.Root, cfg.Seen}, cfg: cfg, rdma: cfg.Device, portN: 1}
	m.findPort()
	if m.dev != "" {
		m.bus = path.Join(m.dev, "device")
		m.pci = m.functionDir(m.bus)
	}
	for _, name := range m.listNames("sys/class/infiniband_verbs") {
		if m.dev != "" && m.readText("sys/class/infiniband_verbs", name, "ibdev") == m.rdma {
			m.node = name
		}
	}
	return m
}

// findPort finds the port that was asked for: as the driver does where it can be asked, else by
// files.
func (m *machine) findPort() {
	if locate := m.cfg.Locate; locate != nil && m.cfg.Device != "" {
		if at, err := locate(m.cfg.Device); err == nil && m.exists(class, at.RDMA) {
			m.rdma, m.dev = at.RDMA, path.Join(class, at.RDMA)
			m.netdev, m.portN = at.Netdev, at.Port
			return
		}
	}
	device, number, _ := strings.Cut(m.cfg.Device, "/")
	called := device
	if m.cfg.NetdevName != nil && device != "" {
		called = m.cfg.NetdevName(device)
	}
	for _, name := range m.listNames(class) {
		net := m.netdevOf(name)
		port := m.portOf(name, called)
		if device != "" && device != name && (called != net || net == "") && port == 0 {
			continue
		}
		m.rdma, m.dev, m.netdev = name, path.Join(class, name), net
		if port == 0 {
			port = max(1, m.portOf(name, net))
		} else {
			m.netdev = called
		}
		if n, err := strconv.Atoi(number); err == nil && n > 0 {
			port = n
		}
		m.portN = port
		return
	}
}

// netdevOf returns the netdev of an RDMA device: the one on the same bus device that is no
// representor.
func (m *machine) netdevOf(rdma string) string {
	names := m.listNames(class, rdma, "device/net")
	for _, name := range names {
		if !representor(m.readText("sys/class/net", name, "phys_port_name")) {
			return name
		}
	}
	return ""
}

// portOf returns the number of the port of an RDMA device that has a netdev in its table of
// addresses, 0 if there is none.
func (m *machine) portOf(rdma, netdev string) int {
	for _, number := range m.portNumbers(rdma) {
		dir := path.Join(class, rdma, "ports", strconv.Itoa(number), "gid_attrs/ndevs")
		for _, slot := range m.listNames(dir) {
			if netdev != "" && m.readText(dir, slot) == netdev {
				return number
			}
		}
	}
	return 0
}

// portNumbers returns the numbers of the ports of an RDMA device.
func (m *machine) portNumbers(rdma string) (all []int) {
	for _, name := range m.listNames(class, rdma, "ports") {
		if n, err := strconv.Atoi(name); err == nil {
			all = append(all, n)
		}
	}
	slices.Sort(all)
	return all
}

// functionDir returns the directory of the PCI function of a device: itself, or what its auxiliary
// device, of a scalable function, is on (mlx5_core.sf.N; linux
// drivers/net/ethernet/mellanox/mlx5/core/sf). What sysfs tells of NUMA node, IOMMU and PCIe link
// is there.
func (m *machine) functionDir(bus string) string {
	own, err := filepath.EvalSymlinks(m.joinPath(bus))
	root, rootErr := filepath.EvalSymlinks(m.root)
	if err != nil || rootErr != nil || isPCI(filepath.Base(own)) ||
		!isPCI(filepath.Base(filepath.Dir(own))) {
		return bus
	}
	parent, err := filepath.Rel(root, filepath.Dir(own))
	if err != nil {
		return bus
	}
	return filepath.ToSlash(parent)
}

// isPCI reports whether a name is a PCI address: "0000:65:00.1".
func isPCI(name string) bool {
	var domain, bus, device, function uint
	n, err := fmt.Sscanf(name, "%x:%x:%x.%x", &domain, &bus, &device, &function)
	return err == nil && n == 4
}

// isScalable reports whether the device is a scalable function.
func (m *machine) isScalable() bool { return m.pci != m.bus }

// pciAddress returns the PCI address of the function that the device is, or is on.
func (m *machine) pciAddress() string {
	if m.isScalable() {
		return path.Base(m.pci)
	}
	return m.linkTarget(m.bus)
}

// physicalDir returns the directory of the physical function behind which the device is a virtual
// one, and pci if it is none.
func (m *machine) physicalDir() string {
	if m.exists(m.pci, "physfn") {
		return path.Join(m.pci, "physfn")
	}
	return m.pci
}

// uplinkNetdevs returns the netdevs, below the directory, of the port that a virtual or a scalable
// function is behind; none of one that is its own.
func (m *machine) uplinkNetdevs() (dir string, names []string) {
	if !m.isScalable() && !m.exists(m.pci, "physfn") {
		return "", nil
	}
	dir = path.Join(m.physicalDir(), "net")
	for _, name := range m.listNames(dir) {
		if !representor(m.readText(dir, name, "phys_port_name")) {
			names = append(names, name)
		}
	}
	return dir, names
}

// netdevPath returns a path of the netdev's in sysfs.
func (m *machine) netdevPath(parts ...string) string {
	return path.Join(append([]string{"sys/class/net", m.netdev}, parts...)...)
}

// portPath returns a path of the port.
func (m *machine) portPath(parts ...string) string { return m.portAt(m.portN, parts...) }

// portAt returns a path of a port of the device.
func (m *machine) portAt(number int, parts ...string) string {
	return path.Join(append([]string{m.dev, "ports", strconv.Itoa(number)}, parts...)...)
}

// statusField returns a field of this process' status (proc_pid_status(5)).
func (m *machine) statusField(name string) string { return m.fieldOf(name+":", "proc/self/status") }

// capability reports whether this process has it (linux include/uapi/linux/capability.h).
func (m *machine) capability(n int) bool {
	set, _ := strconv.ParseUint(m.statusField("CapEff"), 16, 64)
	return set&(1<<n) != 0
}

const (
	capDACOverride = 1
	capNetRaw      = 13
	capIPCLock     = 14
)

// kernelRelease returns the kernel's, as major and minor.
func (m *machine) kernelRelease() (major, minor int) {
	fmt.Sscanf(m.readText("proc/sys/kernel/osrelease"), "%d.%d", &major, &minor)
	return major, minor
}

// kernelOlder reports whether the kernel is known and older than that.
func (m *machine) kernelOlder(major, minor int) bool {
	have, sub := m.kernelRelease()
	return have > 0 && (have < major || have == major && sub < minor)
}

// parseCPUs reads a list such as 0-3,8.
func parseCPUs(list string) (all []int) {
	for part := range strings.SplitSeq(list, ",") {
		var first, last int
		switch n, _ := fmt.Sscanf(part, "%d-%d", &first, &last); n {
		case 1:
			last = first
		case 0:
			continue
		}
		for c := first; c <= last; c++ {
			all = append(all, c)
		}
	}
	return all
}

// cpusNearCard returns the CPUs of the card's NUMA node; nil: it has none, or that is not known.
func (m *machine) cpusNearCard() []int {
	node, ok := m.readNumber(m.pci, "numa_node")
	if !ok || node < 0 {
		return nil
	}
	return parseCPUs(m.readText("sys/devices/system/node", fmt.Sprintf("node%d", node), "cpulist"))
}

func haveCommon(a, b []int) bool {
	return slices.ContainsFunc(a, func(c int) bool { return slices.Contains(b, c) })
}
