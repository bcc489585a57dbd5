package host

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// machine is the machine, and the device to be judged.
type machine struct {
	tree
	cfg    Config
	rdma   string // "mlx5_0"; what was asked for if there is no such device
	dev    string // its directory in sysfs, "" if there is none
	bus    string // directory of the PCI or auxiliary device, below dev
	netdev string // its netdev, "" if there is none here
	node   string // "uverbs0", "" if there is none
}

const class = "sys/class/infiniband"

func newMachine(cfg Config) *machine {
	m := &machine{tree: tree{cfg.Root}, cfg: cfg, rdma: cfg.Device}
	for _, name := range m.names(class) {
		net := m.netdevOf(name)
		if cfg.Device == name || cfg.Device == net && net != "" || cfg.Device == "" {
			m.rdma, m.dev, m.netdev = name, path.Join(class, name), net
			m.bus = path.Join(m.dev, "device")
			break
		}
	}
	for _, name := range m.names("sys/class/infiniband_verbs") {
		if m.dev != "" && m.text("sys/class/infiniband_verbs", name, "ibdev") == m.rdma {
			m.node = name
		}
	}
	return m
}

// netdevOf is the netdev of an RDMA device: the one on the same bus device that is no representor.
func (m *machine) netdevOf(rdma string) string {
	names := m.names(class, rdma, "device/net")
	for _, name := range names {
		if !representor(m.text("sys/class/net", name, "phys_port_name")) {
			return name
		}
	}
	return ""
}

// net is a path of the netdev's in sysfs.
func (m *machine) net(parts ...string) string {
	return path.Join(append([]string{"sys/class/net", m.netdev}, parts...)...)
}

// port is a path of port 1 of the device.
func (m *machine) port(parts ...string) string {
	return path.Join(append([]string{m.dev, "ports/1"}, parts...)...)
}

// status is a field of this process' status (proc_pid_status(5)).
func (m *machine) status(name string) string { return m.field(name+":", "proc/self/status") }

// capability reports whether this process has it (linux include/uapi/linux/capability.h).
func (m *machine) capability(n int) bool {
	set, _ := strconv.ParseUint(m.status("CapEff"), 16, 64)
	return set&(1<<n) != 0
}

const (
	capDACOverride = 1
	capNetRaw      = 13
	capIPCLock     = 14
)

// release is the kernel's, as major and minor.
func (m *machine) release() (major, minor int) {
	fmt.Sscanf(m.text("proc/sys/kernel/osrelease"), "%d.%d", &major, &minor)
	return major, minor
}

// older reports whether the kernel is known and older than that.
func (m *machine) older(major, minor int) bool {
	have, sub := m.release()
	return have > 0 && (have < major || have == major && sub < minor)
}

// cpus reads a list such as 0-3,8.
func cpus(list string) (all []int) {
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

// near are the CPUs of the card's NUMA node; nil: it has none, or that is not known.
func (m *machine) near() []int {
	node, ok := m.number(m.bus, "numa_node")
	if !ok || node < 0 {
		return nil
	}
	return cpus(m.text("sys/devices/system/node", fmt.Sprintf("node%d", node), "cpulist"))
}

func share(a, b []int) bool {
	return slices.ContainsFunc(a, func(c int) bool { return slices.Contains(b, c) })
}
