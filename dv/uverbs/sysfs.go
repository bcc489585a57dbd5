package uverbs

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
)

// Discover wraps ErrNoRDMA when the system has no RDMA devices at all.
var ErrNoRDMA = errors.New(
	"no RDMA stack: load mlx5_ib and ib_uverbs (modprobe), or mount /sys in the container")

// NodeInfo holds the information of sysfs about one RDMA device and its uverbs node. Fields that
// the driver does not publish are empty.
type NodeInfo struct {
	IBDev     string // RDMA device name, "mlx5_0"; not stable across boots
	Node      string // path of the device node to open
	Present   bool   // the node exists and is the right device
	Major     uint32 // of the node
	Minor     uint32
	DriverABI int // 1 for mlx5

	NodeGUID string // "xxxx:xxxx:xxxx:xxxx"; stable
	Firmware string // "22.31.1014"
	HCAType  string // "MT4125": the PCI device id in decimal
	BoardID  string

	// device on its bus: PCI address "0000:65:00.0", or auxiliary device "mlx5_core.sf.4"
	Bus string
	// Function is the PCI address of the function that the card itself has: of a virtual function
	// or an auxiliary device (a scalable function) that of its parent; "" if it is not known.
	Function string
	Driver   string // kernel driver bound to it: "mlx5_core"; empty for software devices
	Vendor   uint32 // PCI vendor, 0x15b3; 0 without
	Device   uint32 // PCI device
	NUMANode int    // -1 unknown
	// a virtual function, detected by its link to the physical one or, as in a guest, by its PCI id
	VF bool

	Ports []PortInfo
	// netdevs of the same bus device, sorted; with one port and no representors, the port's
	Netdevs []string
}

// PortInfo holds the information of sysfs about one port.
type PortInfo struct {
	Num       int    // from 1
	LinkLayer string // "Ethernet" is needed

	// State, PhysState and Rate are set by NodeInfo.ReadStates.
	State, PhysState, Rate string
	// Netdevs are those behind the port's addresses, in table order; empty with RoCE off. They are
	// set by NodeInfo.ReadNetdevs.
	Netdevs []string
}

// ReadStates adds the states and rates of all ports. For each of the three the kernel asks the
// firmware.
func (n *NodeInfo) ReadStates(root string) {
	s := sysfs{cmp.Or(root, "/")}
	for i := range n.Ports {
		p, port := &n.Ports[i], n.portDir(i)
		p.State, p.PhysState = afterColon(s.readText(port, "state")),
			afterColon(s.readText(port, "phys_state"))
		p.Rate = s.readText(port, "rate")
	}
}

// ReadNetdevs adds the netdevs of all ports, for a kernel whose netlink does not tell them: a file
// is read for each place in the table of addresses, of which an mlx5 port has up to 256.
func (n *NodeInfo) ReadNetdevs(root string) {
	s := sysfs{cmp.Or(root, "/")}
	for i := range n.Ports {
		n.Ports[i].Netdevs = s.portNetdevs(n.portDir(i))
	}
}

// portDir returns the directory of port i of the list.
func (n *NodeInfo) portDir(i int) string {
	return filepath.Join("sys/class/infiniband", n.IBDev, "ports", strconv.Itoa(n.Ports[i].Num))
}

// Discover lists the RDMA devices found in sysfs under root ("" or "/" for the system's), sorted by
// name, but for what ReadStates and ReadNetdevs add. Node paths are under root too. It wraps
// ErrNoRDMA, and the errno, if there is no RDMA stack; a device that is removed while it is read is
// omitted.
func Discover(root string) ([]NodeInfo, error) {
	if root == "" {
		root = "/"
	}
	s := sysfs{root}
	if abi := s.readNumber(0,
		"sys/class/infiniband_verbs/abi_version"); abi != 0 && abi != ABIVersion {
		return nil, fmt.Errorf("discover RDMA devices: uverbs interface version %d, want %d: %w",
			abi, ABIVersion, ErrUnsupported)
	}
	nodes, err := os.ReadDir(s.joinPath("sys/class/infiniband_verbs"))
	if err != nil {
		return nil, fmt.Errorf("discover RDMA devices: %w: %w", ErrNoRDMA, err)
	}
	var list []NodeInfo
	for _, n := range nodes {
		if info, ok := s.readNode(n.Name()); ok {
			list = append(list, info)
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("discover RDMA devices: %w: %w", ErrNoRDMA, fs.ErrNotExist)
	}
	sort.Slice(list, func(i, j int) bool { return list[i].IBDev < list[j].IBDev })
	return list, nil
}

// Check returns nil if, according to sysfs, port (counted from 1) supports raw packet queues, and
// else an error with the fix.
func (n NodeInfo) Check(port int) error {
	if n.Driver != "" && !strings.HasPrefix(n.Driver, "mlx5_core") ||
		n.Driver == "" && n.HCAType == "" {
		return fmt.Errorf(
			"%s is a software or other RDMA device: an mlx5 NIC (ConnectX-4 or later) is "+
				"needed: %w",
			n.IBDev, ErrUnsupported)
	}
	if !n.Present {
		return fmt.Errorf("%s has no node %s (device %d:%d): give the container --device %s: %w",
			n.IBDev, n.Node, n.Major, n.Minor, n.Node, fs.ErrNotExist)
	}
	for _, p := range n.Ports {
		if p.Num != port {
			continue
		}
		if p.LinkLayer != "Ethernet" {
			return fmt.Errorf(
				"port %d of %s is %s: set LINK_TYPE_P%d=ETH with mlxconfig and reboot: %w",
				port, n.IBDev, p.LinkLayer, n.LinkTypePort(port), ErrUnsupported)
		}
		return nil
	}
	return fmt.Errorf("%s has no port %d: %w", n.IBDev, port, fs.ErrNotExist)
}

// sysfs reads files below a root directory.
type sysfs struct{ root string }

func (s sysfs) joinPath(parts ...string) string {
	return filepath.Join(append([]string{s.root}, parts...)...)
}

// readText returns a file's content without surrounding space; "" if it cannot be read, as for
// attributes the driver does not have and for empty slots of tables, which answer EINVAL.
func (s sysfs) readText(parts ...string) string {
	b, err := os.ReadFile(s.joinPath(parts...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// readNumber reads a decimal or 0x number.
func (s sysfs) readNumber(otherwise int, parts ...string) int {
	v, err := strconv.ParseInt(s.readText(parts...), 0, 64)
	if err != nil {
		return otherwise
	}
	return int(v)
}

// readCount reads a decimal counter.
func (s sysfs) readCount(parts ...string) (uint64, error) {
	b, err := os.ReadFile(s.joinPath(parts...))
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
}

// listNames lists a directory, sorted.
func (s sysfs) listNames(parts ...string) []string {
	entries, err := os.ReadDir(s.joinPath(parts...))
	if err != nil {
		return nil
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names
}

// linkTarget returns the last element of the path in a symbolic link.
func (s sysfs) linkTarget(parts ...string) string {
	to, err := os.Readlink(s.joinPath(parts...))
	if err != nil {
		return ""
	}
	return filepath.Base(to)
}

// readNode reads one uverbsN; false if it is not a uverbs node or is being removed.
func (s sysfs) readNode(uverbs string) (NodeInfo, bool) {
	verbs := filepath.Join("sys/class/infiniband_verbs", uverbs)
	n := NodeInfo{IBDev: s.readText(verbs, "ibdev"),
		DriverABI: s.readNumber(0, verbs, "abi_version")}
	if n.IBDev == "" {
		return n, false
	}
	fmt.Sscanf(s.readText(verbs, "dev"), "%d:%d", &n.Major, &n.Minor)
	n.Node, n.Present = s.deviceNode(uverbs, n.Major, n.Minor)

	dev := filepath.Join("sys/class/infiniband", n.IBDev)
	n.NodeGUID, n.Firmware = s.readText(dev, "node_guid"), s.readText(dev, "fw_ver")
	n.HCAType, n.BoardID = s.readText(dev, "hca_type"), s.readText(dev, "board_id")
	n.Bus, n.Driver = s.linkTarget(dev, "device"), s.linkTarget(dev, "device/driver")
	n.Vendor, n.Device = uint32(s.readNumber(0, dev, "device/vendor")),
		uint32(s.readNumber(0, dev, "device/device"))
	n.Function = s.pciFunction(dev)
	n.NUMANode = s.readNumber(-1, dev, "device/numa_node")
	if parent := s.parentPCI(dev); parent != "" && n.NUMANode < 0 {
		n.NUMANode = s.readNumber(-1, parent, "numa_node")
	}
	n.VF = s.linkTarget(dev, "device/physfn") != "" || isVF(n.Vendor, n.Device)
	n.Netdevs = s.listNames(dev, "device/net")
	n.Ports = s.readPorts(filepath.Join(dev, "ports"))
	return n, true
}

// parentPCI returns the directory, below the root, of the PCI device that a device's auxiliary one
// is on; "" if the device is on the PCI bus itself.
func (s sysfs) parentPCI(dev string) string {
	own, err := filepath.EvalSymlinks(s.joinPath(dev, "device"))
	if err != nil || isPCI(filepath.Base(own)) || !isPCI(filepath.Base(filepath.Dir(own))) {
		return ""
	}
	root, err := filepath.EvalSymlinks(s.root)
	if err != nil {
		return ""
	}
	dir, err := filepath.Rel(root, filepath.Dir(own))
	if err != nil {
		return ""
	}
	return dir
}

// pciFunction returns NodeInfo.Function of a device.
func (s sysfs) pciFunction(dev string) string {
	if pf := s.linkTarget(dev, "device/physfn"); pf != "" {
		return pf
	}
	if parent := s.parentPCI(dev); parent != "" {
		if pf := s.linkTarget(parent, "physfn"); pf != "" {
			return pf
		}
		return filepath.Base(parent)
	}
	if bus := s.linkTarget(dev, "device"); isPCI(bus) {
		return bus
	}
	return ""
}

// isPCI reports whether a name is a PCI address: "0000:65:00.1".
func isPCI(name string) bool {
	var domain, bus, device, function uint
	n, err := fmt.Sscanf(name, "%x:%x:%x.%x", &domain, &bus, &device, &function)
	return err == nil && n == 4
}

// LinkTypePort returns the number that mlxconfig has for a port: N of LINK_TYPE_PN. A card gives
// each of its ports a PCI function of its own, in their order, unless a device has several ports.
func (n NodeInfo) LinkTypePort(port int) int {
	_, function, _ := strings.Cut(n.Function, ".")
	number, err := strconv.ParseUint(function, 16, 8)
	if err != nil || len(n.Ports) > 1 {
		return port
	}
	return max(port, int(number)+1)
}

// isVF reports whether a PCI id is that of a virtual function (MLX5_PCI_DEV_IS_VF in
// mlx5_core_pci_table of linux 6.12 drivers/net/ethernet/mellanox/mlx5/core/main.c). A guest sees
// no physical function that physfn could name.
func isVF(vendor, device uint32) bool {
	if vendor != 0x15b3 {
		return false
	}
	switch device {
	// CX-4, CX-4 Lx, CX-5, CX-5 Ex, CX-6, CX-6 Dx and later, BlueField
	case 0x1014, 0x1016, 0x1018, 0x101a, 0x101c, 0x101e, 0xa2d3:
		return true
	}
	return false
}

// readPorts reads all ports below dir, in numerical order.
func (s sysfs) readPorts(dir string) []PortInfo {
	var list []PortInfo
	for _, name := range s.listNames(dir) {
		num, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		list = append(list, PortInfo{Num: num, LinkLayer: s.readText(dir, name, "link_layer")})
	}
	sort.Slice(list, func(i, j int) bool { return list[i].Num < list[j].Num })
	return list
}

// portNetdevs lists the distinct netdevs of a port's address table in numerical order of the table.
func (s sysfs) portNetdevs(port string) []string {
	slots := s.listNames(port, "gid_attrs/ndevs")
	sort.Slice(slots, func(i, j int) bool {
		a, _ := strconv.Atoi(slots[i])
		b, _ := strconv.Atoi(slots[j])
		return a < b
	})
	var names []string
	seen := map[string]bool{}
	for _, slot := range slots {
		if name := s.readText(port, "gid_attrs/ndevs", slot); name != "" && !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
	}
	return names
}

// afterColon turns "4: ACTIVE" into "ACTIVE".
func afterColon(s string) string {
	if _, name, ok := strings.Cut(s, ": "); ok {
		return name
	}
	return s
}
