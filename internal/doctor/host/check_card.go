package host

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// leastFirmware is the oldest firmware of each family that DPDK's mlx5 driver, which uses the same
// features, supports (doc/guides/platform/mlx5.rst). The first number of a version is the family's.
var leastFirmware = map[int][2]int{
	12: {21, 1000}, 14: {21, 1000}, 16: {21, 1000}, 18: {25, 1010}, 20: {27, 90}, 22: {27, 90},
	24: {28, 1002}, 26: {27, 90}, 28: {33, 2028}, 32: {36, 3126},
}

func checkFirmware(m *machine) []problem {
	var family, major, minor int
	text := m.readText(m.dev, "fw_ver")
	if n, _ := fmt.Sscanf(text, "%d.%d.%d", &family, &major, &minor); n < 3 {
		return noProblem()
	}
	least, known := leastFirmware[family]
	switch {
	case !known:
		return noteFound("firmware "+text+" is of a family that is not known here",
			"run doctor --first-contact and report what it says")
	case major < least[0] || major == least[0] && minor < least[1]:
		return faultFound(fmt.Sprintf("firmware %s is older than %d.%d.%04d", text, family,
			least[0],
			least[1]), "update it: mlxfwmanager --online -u, or the vendor's own")
	}
	return knownBugs(text, family, [2]int{major, minor})
}

// firmwareBug describes a fault of releases from one version up to the one that mends it.
type firmwareBug struct {
	family      int
	from, fixed [2]int
	what        string
}

// firmwareBugs returns those of the vendor's release notes that take a port away from those who
// serve on it: docs.nvidia.com, ConnectX-6 Dx Firmware 22.32.1010 "Bug Fixes History" (internal
// references 2687283, 2598906), ConnectX-5 Firmware 16.35.2000 "Bug Fixes History" (3048162).
func firmwareBugs() []firmwareBug {
	return []firmwareBug{
		{16, [2]int{34, 1002}, [2]int{35, 1012},
			"too large a number of VFs and SFs ends the firmware (assert 0x888E)"},
		{22, [2]int{30, 1004}, [2]int{31, 1014},
			"the state of a virtual port, badly asked for, ends the firmware (assert 0x8274), " +
				"and one port that goes down may take the other's link"},
	}
}

// knownBugs returns what the release notes say of a version.
func knownBugs(text string, family int, version [2]int) []problem {
	for _, b := range firmwareBugs() {
		if b.family == family && slices.Compare(version[:], b.from[:]) >= 0 &&
			slices.Compare(version[:], b.fixed[:]) < 0 {
			return faultFound(fmt.Sprintf("firmware %s: %s", text, b.what),
				fmt.Sprintf("update it to %d.%d.%04d or later: mlxfwmanager --online -u, or the "+
					"vendor's own", b.family, b.fixed[0], b.fixed[1]))
		}
	}
	return noProblem()
}

// checkRoCE: with RoCE on, frames to UDP port 4791 are the card's own business (RoCE v2).
func checkRoCE(m *machine) []problem {
	types := map[string]int{}
	for _, slot := range m.listNames(m.portPath("gid_attrs/types")) {
		if kind := m.readText(m.portPath("gid_attrs/types"), slot); kind != "" {
			types[kind]++
		}
	}
	if types["RoCE v2"] == 0 {
		return noProblem()
	}
	var table []string
	for _, kind := range slices.Sorted(maps.Keys(types)) {
		table = append(table, fmt.Sprintf("%d of %s", types[kind], kind))
	}
	return noteFound(fmt.Sprintf(
		"RoCE is on: UDP port 4791 is the card's, no server gets its frames "+
			"(GIDs: %s)", strings.Join(table, ", ")),
		"if a server needs that port: devlink dev param set "+m.devlinkName()+
			" name enable_roce value false cmode driverinit, devlink dev reload")
}

// devlinkName returns the name of the device for devlink(8).
func (m *machine) devlinkName() string {
	if m.isScalable() {
		return "auxiliary/" + m.linkTarget(m.bus)
	}
	return "pci/" + m.pciAddress()
}

func pcieLink(m *machine) []problem {
	card := m.physicalDir()
	speed, most := m.readText(card, "current_link_speed"), m.readText(card, "max_link_speed")
	width, widest := m.readText(card, "current_link_width"), m.readText(card, "max_link_width")
	if speed == most && width == widest || speed == "" || strings.Contains(speed+most, "Unknown") {
		return noProblem()
	}
	return noteFound(fmt.Sprintf("the PCIe link runs at %s x%s, the card can do %s x%s", speed,
		width,
		most, widest),
		"move the card to another slot, or look at its bifurcation in the firmware set-up")
}

// checkIOMMU: types as in Documentation/ABI/testing/sysfs-kernel-iommu_groups.
func checkIOMMU(m *machine) []problem {
	if m.readText(m.pci, "iommu_group/type") != "DMA" {
		return noProblem()
	}
	return noteFound("the IOMMU translates in strict mode: each miss of its cache delays frames",
		"iommu=pt on the kernel's command line where the devices are trusted, or iommu.strict=0")
}

func checkNUMA(m *machine) []problem {
	node, ok := m.readNumber(m.pci, "numa_node")
	allowed := parseCPUs(m.statusField("Cpus_allowed_list"))
	near := m.readText("sys/devices/system/node", fmt.Sprintf("node%d", node), "cpulist")
	if !ok || node < 0 || near == "" || len(allowed) == 0 || haveCommon(m.cpusNearCard(), allowed) {
		return noProblem()
	}
	return faultFound(fmt.Sprintf(
		"the card is on NUMA node %d, and none of its CPUs (%s) is allowed",
		node, near), fmt.Sprintf("taskset -c %s, CPUAffinity=%s, or AllowedCPUs=%s", near, near,
		near))
}
