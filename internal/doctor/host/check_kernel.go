package host

import (
	"fmt"
	"strconv"
	"strings"
)

// kernelRelease: package dv/uverbs speaks to linux 5.4 and later.
func kernelRelease(m *machine) []problem {
	if !m.kernelOlder(5, 4) {
		return noProblem()
	}
	return faultFound("linux "+m.readText("proc/sys/kernel/osrelease")+" lacks calls that are used",
		"run linux 5.4 or later; 5.10 and later are tested")
}

// checkModules looks for the three that make the device node. A kernel may have them built in; only
// parameters of those are in sysfs, so that they are missed only where there is no device either.
func checkModules(m *machine) []problem {
	if m.dev != "" && m.node != "" {
		return noProblem()
	}
	var missing []string
	for _, name := range []string{"mlx5_core", "mlx5_ib", "ib_uverbs"} {
		if !m.exists("sys/module", name) {
			missing = append(missing, name)
		}
	}
	if len(missing) == 0 {
		return noProblem()
	}
	return faultFound("not loaded: "+strings.Join(missing, ", "),
		"modprobe "+strings.Join(missing, " && modprobe "))
}

func checkDevice(m *machine) []problem {
	switch {
	case m.dev != "":
		return noProblem()
	// netns_mode of ib_core: Y shares devices between network namespaces, N does not
	case m.readText("sys/module/ib_core/parameters/netns_mode") == "N":
		return faultFound("no RDMA device "+m.rdma+
			" in this network namespace, and devices are in one namespace each (exclusive)",
			"rdma dev set DEVICE netns NAME, or rdma system set netns shared, where the device is")
	case len(m.listNames(class)) == 0:
		return faultFound("no RDMA device on this machine",
			"look for the card with lspci -d 15b3: and for mlx5_core lines in dmesg; "+
				"--device sim needs none")
	}
	return faultFound("no RDMA device or netdev of one is called "+m.rdma,
		"choose one of "+strings.Join(m.listNames(class), ", "))
}

func checkDriver(m *machine) []problem {
	if d := m.linkTarget(m.bus, "driver"); !strings.HasPrefix(d, "mlx5_core") {
		return faultFound(fmt.Sprintf("%s is driven by %q", m.rdma, d),
			"take a port of an mlx5 card, ConnectX-4 or later")
	}
	return noProblem()
}

// linkLayer looks at the port that was asked for, and notes others in InfiniBand mode.
func linkLayer(m *machine) (found []problem) {
	for _, number := range m.portNumbers(m.rdma) {
		l := m.readText(m.portAt(number, "link_layer"))
		said := fmt.Sprintf("the link layer of port %d of %s is %s", number, m.rdma, l)
		do := fmt.Sprintf("mlxconfig -d %s set LINK_TYPE_P%d=2, and reboot",
			m.physicalFunction(), m.linkTypePort(number))
		switch {
		case l == "Ethernet":
		case number == m.portN:
			found = append(found, faultFound(said, do)...)
		case l == "InfiniBand":
			found = append(found, noteFound(said, "if it is to carry a slice: "+do)...)
		}
	}
	if len(m.portNumbers(m.rdma)) == 0 {
		return faultFound("sysfs tells of no port of "+m.rdma,
			"look for mlx5_core and mlx5_ib in dmesg")
	}
	return found
}

// physicalFunction returns the PCI address of the physical function.
func (m *machine) physicalFunction() string {
	if pf := m.linkTarget(m.pci, "physfn"); pf != "" {
		return pf
	}
	return m.pciAddress()
}

// linkTypePort returns the number that mlxconfig has for a port of the device: a card has a PCI
// function for each of its ports, in their order, unless one device has several ports.
func (m *machine) linkTypePort(number int) int {
	_, function, _ := strings.Cut(m.physicalFunction(), ".")
	n, err := strconv.ParseUint(function, 16, 8)
	if err != nil || len(m.portNumbers(m.rdma)) > 1 {
		return number
	}
	return max(number, int(n)+1)
}

// checkSeccomp: mode 2 is a filter (proc_pid_status(5)). What it refuses cannot be read.
func checkSeccomp(m *machine) []problem {
	if m.statusField("Seccomp") != "2" {
		return noProblem()
	}
	return noteFound("a seccomp filter is in force",
		"if a server fails with EPERM or ENOSYS: allow ioctl and mmap on the node, "+
			"socket(AF_PACKET) and process_vm_readv")
}
