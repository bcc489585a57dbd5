package host

// check is one thing to look at. Most find nothing where there is no device.
type check struct {
	name string
	look func(*machine) []problem
}

// allChecks returns the list, in the order of the report.
func allChecks() []check {
	return []check{
		{"kernel", kernelRelease},                   // /proc/sys/kernel/osrelease
		{"modules", checkModules},                   // /sys/module
		{"device", checkDevice},                     // /sys/class/infiniband
		{"driver", onDevice(checkDriver)},           // device/driver
		{"link layer", onDevice(linkLayer)},         // ports/N/link_layer
		{"node", onDevice(deviceNode)},              // /dev/infiniband
		{"capabilities", onDevice(capabilities)},    // CapEff of proc_pid_status(5)
		{"host's address", hostFilters},             // SO_ATTACH_FILTER of socket(7)
		{"user namespace", onDevice(userNamespace)}, // /proc/self/uid_map
		{"locked memory", onDevice(lockedMemory)},   // /proc/self/limits
		{"cgroup rdma", onDevice(cgroupRDMA)},       // rdma.max of cgroup-v2.rst
		{"cgroup memory", onDevice(cgroupMemory)},   // memory.max
		{"cgroup cpu", onDevice(cgroupCPU)},         // cpu.max
		{"seccomp", onDevice(checkSeccomp)},         // Seccomp of proc_pid_status(5)
		{"firmware", onDevice(checkFirmware)},       // fw_ver
		{"RoCE", onDevice(checkRoCE)},               // ports/N/gid_attrs/types
		{"PCIe link", onDevice(pcieLink)},           // current_link_speed of sysfs-bus-pci
		// iommu_group/type of sysfs-kernel-iommu_groups
		{"IOMMU", onDevice(checkIOMMU)},
		{"NUMA", onDevice(checkNUMA)},           // numa_node, /sys/devices/system/node
		{"interrupts", onDevice(interrupts)},    // /proc/interrupts, /proc/irq
		{"huge pages", onDevice(hugePages)},     // /proc/meminfo
		{"netdev here", onDevice(netdevHere)},   // device/net
		{"netdev up", onNetdev(netdevUp)},       // flags, carrier of sysfs-class-net
		{"MTU", onNetdev(checkMTU)},             // mtu
		{"MTU of the port", onNetdev(mtuAbove)}, // net of the PF or the parent
		{"link speed", onNetdev(linkSpeed)},     // speed, duplex
		{"pause frames", onNetdev(pauseFrames)}, // ethtool and DCB netlink
		{"ring sizes", onNetdev(ringSizes)},     // ethtool netlink
		// statistics of sysfs-class-net-statistics
		{"link errors", onNetdev(linkErrors)},
		{"bond", onNetdev(checkBond)},                    // master
		{"representor", onDevice(onlyRepresentor)},       // phys_port_name
		{"e-switch mode", onDevice(eswitchMode)},         // devlink
		{"VF trust and spoof check", onDevice(vfPolicy)}, // IFLA_VFINFO_LIST of the PF
	}
}

// onDevice returns a check that needs a device.
func onDevice(look func(*machine) []problem) func(*machine) []problem {
	return func(m *machine) []problem {
		if m.dev == "" {
			return noProblem()
		}
		return look(m)
	}
}

// onNetdev returns a check that needs the netdev.
func onNetdev(look func(*machine) []problem) func(*machine) []problem {
	return func(m *machine) []problem {
		if m.netdev == "" {
			return noProblem()
		}
		return look(m)
	}
}
