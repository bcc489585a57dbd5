package dv

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv/internal/netdev"
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
)

// host gives access to where devices are looked for. Tests point it at a tree of files
// and at facts of their own.
type host struct {
	root   string // of /sys and /dev
	iface  func(name string) (netdev.Interface, error)
	rdma   func(device string) netdev.RDMAFacts
	env    func() (uverbs.Environment, error)
	pinned func() uint64 // bytes this process has pinned already
	open   func(node string) (uverbs.Kernel, error)
	// addresses opens the list of what the netdev called name receives
	addresses func(name string) (AddressList, error)
}

func thisHost() *host {
	return &host{iface: netdev.ByName, rdma: netdev.RDMAFactsOf, env: uverbs.ReadEnvironment,
		pinned: netdev.PinnedBytes, open: uverbs.OpenNode,
		addresses: func(name string) (AddressList, error) { return netdev.OpenMembership(name) }}
}

// target is a port to be opened.
type target struct {
	facts  PortFacts
	driver uint32 // enum rdma_driver_id, 0 unknown
	guid   string // of the node, "" if it is not known
	// linkType gives the number that mlxconfig has for the port: N of LINK_TYPE_PN
	linkType int
	took     time.Duration // to find it
	open     func() (uverbs.Kernel, error)
	// allowed says whether this process may have what p asks for.
	allowed func(p *plan) error
	// lockable says how many bytes this process may still lock in memory, if there is a limit.
	lockable func() (bytes int, limited bool)
	// addresses opens the list of what the port's netdev receives; nil: there is none
	addresses func(log *slog.Logger) (AddressList, error)
	// watch begins to tell changes of the netdev; nil: there is none to watch
	watch func(changed func(netdev.Interface)) (*netdev.Watcher, error)
}

// checkUsable says whether the port could be used as it is.
func (t *target) checkUsable() error {
	if t.facts.Down {
		return isDown(t.facts.Netdev)
	}
	p, err := newPlan(&Config{}, t.facts.MTU, 4096)
	if err != nil {
		return err
	}
	if limit, limited := t.lockable(); limited {
		p.shrinkToBudget(&Config{}, limit)
	}
	return t.allowed(&p)
}

func isDown(netdev string) error {
	return errorOfKind(ErrDown,
		"netdev %s is down, and its port passes no frames: ip link set %s up",
		netdev, netdev)
}

// locatePort finds what cfg names.
func locatePort(cfg *Config) (*target, error) {
	if cfg.Model.Kernel != nil {
		return broughtTarget(cfg), nil
	}
	return thisHost().locateName(cfg.Device)
}

// broughtTarget returns the device that cfg brings along.
func broughtTarget(cfg *Config) *target {
	f := cfg.Model.Facts
	f.MTU = cmp.Or(f.MTU, defaultMTU)
	f.Port = max(1, f.Port)
	if f.Name == "" {
		f.Name = "device"
	}
	t := &target{facts: f, driver: uverbs.DriverMLX5, open: cfg.Model.Kernel,
		allowed:  func(*plan) error { return nil },
		lockable: func() (int, bool) { return 0, false }}
	if open := cfg.Addresses; open != nil {
		t.addresses = func(*slog.Logger) (AddressList, error) { return open() }
	}
	return t
}

// node is an RDMA device with all that is known about it.
type node struct {
	uverbs.NodeInfo
	rdma netdev.RDMAFacts
	// representors are the netdevs here that stand for functions behind an e-switch in switchdev
	// mode, each of which has a port of the device
	representors map[string]bool
}

// listNodes lists the RDMA devices.
func (m *host) listNodes() ([]node, error) {
	infos, err := uverbs.Discover(m.root)
	if err != nil {
		return nil, withKind(ErrNoRDMA, err)
	}
	nodes := make([]node, len(infos))
	for i, info := range infos {
		n := &nodes[i]
		*n = node{NodeInfo: info, rdma: m.rdma(info.IBDev), representors: map[string]bool{}}
		if len(n.rdma.Netdevs) < len(info.Ports) {
			n.ReadNetdevs(m.root)
		}
		for _, name := range append(slices.Collect(maps.Values(n.rdma.Netdevs)),
			info.Netdevs...) {
			if netdev.IsRepresentor(m.root, name) {
				n.representors[name] = true
			}
		}
	}
	return nodes, nil
}

// locateName finds the port called name: as an RDMA device, alone or with a port's number as in
// "mlx5_0/2", or as a netdev, by its name or an alternative one.
func (m *host) locateName(name string) (*target, error) {
	if name == "" {
		return nil, errorOfKind(ErrConfig,
			"no device named: set Config.Device to an RDMA device (ls /sys/class/infiniband) or "+
				"its netdev")
	}
	nodes, err := m.listNodes()
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	n, port, err := m.portCalled(name, nodes)
	if err != nil {
		return nil, err
	}
	return m.targetOf(n, port)
}

// portCalled returns the port among nodes that has a name, as in locateName.
func (m *host) portCalled(name string, nodes []node) (*node, uint8, error) {
	device, number, numbered := strings.Cut(name, "/")
	for i := range nodes {
		n := &nodes[i]
		if n.IBDev != device {
			continue
		}
		if !numbered {
			port, err := n.defaultPort()
			return n, port, err
		}
		port, err := strconv.ParseUint(number, 10, 8)
		if err != nil || port == 0 {
			return nil, 0, errorOfKind(ErrNotFound, "%q is no port of %s: name it %[2]s/1, or as "+
				"\"rdma link\" lists it", name, device)
		}
		return n, uint8(port), nil
	}
	called := name
	if i, err := m.iface(name); err == nil && i.Name != "" {
		called = i.Name
	}
	for i := range nodes {
		if port := nodes[i].portOf(called); port != 0 {
			return &nodes[i], port, nil
		}
	}
	return nil, 0, m.unknownName(name, nodes)
}

// unknownName says why name is none of nodes.
func (m *host) unknownName(name string, nodes []node) error {
	var have []string
	for i := range nodes {
		have = append(have, nodes[i].IBDev)
	}
	devices := strings.Join(have, ", ")
	if _, err := m.iface(name); err == nil {
		return errorOfKind(ErrNoRDMA,
			"netdev %s has no RDMA device: it is not a port of an mlx5 NIC in this network "+
				"namespace, or mlx5_ib is not loaded; RDMA devices here: %s",
			name, devices)
	}
	return errorOfKind(ErrNotFound, "no RDMA device or netdev is called %s; RDMA devices here: %s",
		name,
		devices)
}

// sysfsPort returns what sysfs says about port num, nil if there is none.
func (n *node) sysfsPort(num uint8) *uverbs.PortInfo {
	for i := range n.Ports {
		if n.Ports[i].Num == int(num) {
			return &n.Ports[i]
		}
	}
	return nil
}

// defaultPort returns the port that the name of the device alone stands for: the first one whose
// netdev is here and is no representor, which in switchdev mode is the uplink. The ports of
// functions come before that (mlx5_ib_vport_rep_load in linux
// drivers/infiniband/hw/mlx5/ib_rep.c), so that of several ports none is taken blindly.
func (n *node) defaultPort() (uint8, error) {
	if len(n.Ports) < 2 {
		return n.firstPort(), nil
	}
	var here []string
	for _, p := range n.Ports {
		name := n.netdevOf(uint8(p.Num))
		if name != "" && !n.representors[name] {
			return uint8(p.Num), nil
		}
		if name != "" {
			here = append(here, fmt.Sprintf("%s (port %d)", name, p.Num))
		}
	}
	if len(here) > 0 {
		return 0, errorOfKind(ErrNotFound, "%s has %d ports, and here are only representors of "+
			"functions behind its e-switch (switchdev): %s; the uplink's netdev is in another "+
			"network namespace: name its port, as %[1]s/N", n.IBDev, len(n.Ports),
			strings.Join(here, ", "))
	}
	return 0, errorOfKind(ErrNotFound,
		"%s has %d ports, and no netdev in this network namespace says "+
			"which is the uplink: name one as %[1]s/%[3]d (\"rdma link\" where the netdevs are "+
			"lists them)", n.IBDev, len(n.Ports), n.Ports[0].Num)
}

// firstPort returns the number of the first port.
func (n *node) firstPort() uint8 {
	if len(n.Ports) == 0 {
		return 1
	}
	return uint8(n.Ports[0].Num)
}

// portNumbers returns the numbers of all ports, the default one first.
func (n *node) portNumbers() []uint8 {
	first, err := n.defaultPort()
	if err != nil {
		first = 0
	}
	var all []uint8
	if first != 0 {
		all = append(all, first)
	}
	for _, p := range n.Ports {
		if uint8(p.Num) != first {
			all = append(all, uint8(p.Num))
		}
	}
	return all
}

// netdevOf returns the name of the port's interface. Netlink knows best. Sysfs knows
// the interfaces behind the port's addresses, VLANs included, of which those of
// the same bus device count; and a card with one port has one interface.
func (n *node) netdevOf(port uint8) string {
	if name := n.rdma.Netdevs[port]; name != "" {
		return name
	}
	if p := n.sysfsPort(port); p != nil {
		for _, name := range p.Netdevs {
			if slices.Contains(n.Netdevs, name) {
				return name
			}
		}
	}
	if own := n.ownNetdevs(); len(n.Ports) == 1 && len(own) == 1 {
		return own[0]
	}
	return ""
}

// ownNetdevs returns the netdevs of the same bus device, without representors if there are others.
func (n *node) ownNetdevs() []string {
	var own []string
	for _, name := range n.Netdevs {
		if !n.representors[name] {
			own = append(own, name)
		}
	}
	if len(own) == 0 {
		return n.Netdevs
	}
	return own
}

// portOf returns the port whose netdev is called name, 0 if there is none.
func (n *node) portOf(name string) uint8 {
	for _, p := range n.Ports {
		if n.netdevOf(uint8(p.Num)) == name {
			return uint8(p.Num)
		}
	}
	return 0
}

// targetOf makes port of n something to open, or says why it cannot be.
func (m *host) targetOf(n *node, port uint8) (*target, error) {
	if n.rdma.Driver != 0 && n.rdma.Driver != uverbs.DriverMLX5 {
		return nil, errorOfKind(ErrNotMlx5,
			"%s is a software or other RDMA device and has no raw packet queues: an mlx5 NIC "+
				"(ConnectX-4 or later) is needed", n.IBDev)
	}
	if p := n.sysfsPort(port); p != nil && p.LinkLayer == "InfiniBand" {
		return nil, inInfiniBand(n.IBDev, port, n.LinkTypePort(int(port)))
	}
	switch err := n.Check(int(port)); {
	case errors.Is(err, uverbs.ErrUnsupported):
		return nil, withKind(ErrNotMlx5, err)
	case err != nil:
		return nil, withKind(ErrNotFound, err)
	}
	t := &target{driver: n.rdma.Driver, guid: n.NodeGUID, linkType: n.LinkTypePort(int(port)),
		open: func() (uverbs.Kernel, error) { return m.open(n.Node) }}
	t.allowed = func(p *plan) error { return m.checkPrivileges(n.IBDev, p) }
	t.lockable = m.lockableBytes
	t.facts = PortFacts{Name: n.IBDev, Netdev: n.netdevOf(port), Port: port,
		MTU: defaultMTU, Virtual: n.VF}
	if t.facts.Netdev == "" { // in another network namespace, which hides it
		t.addresses = func(log *slog.Logger) (AddressList, error) {
			return commandList{log.With("device", n.IBDev), m.registrationUrgency(n)}, nil
		}
		return t, nil
	}
	t.addresses = func(*slog.Logger) (AddressList, error) { return m.addresses(t.facts.Netdev) }
	i, err := m.iface(t.facts.Netdev)
	if err != nil {
		return nil, fmt.Errorf("ask about %s, the netdev of %s: %w", t.facts.Netdev, n.IBDev, err)
	}
	t.facts.MAC, t.facts.MTU, t.facts.Down = i.MAC, i.MTU, !i.Up
	t.watch = func(changed func(netdev.Interface)) (*netdev.Watcher, error) {
		return netdev.Watch(t.facts.Netdev, changed)
	}
	t.facts.Representor = n.representors[t.facts.Netdev] ||
		netdev.IsRepresentor(m.root, t.facts.Netdev)
	t.facts.Netvsc = netdev.NetvscOf(m.root, t.facts.Netdev)
	return t, nil
}

// registrationUrgency returns how loudly to say that addresses are to be registered by hand: an
// e-switch needs it, and is in front of virtual functions and of physical ones that have some.
func (m *host) registrationUrgency(n *node) slog.Level {
	functions, err := os.ReadFile(filepath.Join("/", m.root, "sys/class/infiniband", n.IBDev,
		"device/sriov_numvfs"))
	if n.VF || err == nil && strings.TrimSpace(string(functions)) != "0" {
		return slog.LevelWarn
	}
	return slog.LevelInfo
}

// lockableBytes returns how many bytes this process may still lock in memory, if there is a limit.
func (m *host) lockableBytes() (bytes int, limited bool) {
	env, err := m.env()
	already := m.pinned()
	if err != nil || env.IPCLock || env.Memlock > math.MaxInt {
		return 0, false
	}
	return int(env.Memlock - min(already, env.Memlock)), true
}

// checkPrivileges checks privileges and limits before the kernel is asked for anything.
func (m *host) checkPrivileges(device string, p *plan) error {
	env, err := m.env()
	if err != nil {
		return err
	}
	if !env.NetRaw {
		return errorOfKind(ErrPermission,
			"raw queues on %s need CAP_NET_RAW: setcap cap_net_raw+ep on the program, docker "+
				"--cap-add NET_RAW, or be root", device)
	}
	already := m.pinned()
	if env.IPCLock || env.Memlock >= uint64(p.pinnedBytes())+already {
		return nil
	}
	const mib = 1 << 20
	return errorOfKind(ErrMemlock,
		"%s needs %.1f MiB of locked memory (this process has locked %.1f already), the limit is "+
			"%.1f: raise it (ulimit -l, systemd LimitMEMLOCK=, docker --ulimit memlock=-1), "+
			"grant CAP_IPC_LOCK, or use fewer or smaller queues",
		device, float64(p.pinnedBytes())/mib, float64(already)/mib, float64(env.Memlock)/mib)
}

// DeviceInfo describes one port of an RDMA device of this machine.
type DeviceInfo struct {
	// Name holds the RDMA device ("mlx5_0"), Netdev its port's interface, Node the
	// device node ("/dev/infiniband/uverbs0").
	Name, Netdev, Node string
	// Firmware holds its version, Type the hca_type ("MT4125"), GUID the node GUID.
	Firmware, Type, GUID string
	// Port gives the number of the port that Netdev is at, and Ports how many the device has: 1,
	// but for a card with several ports on one device, and in switchdev mode, where the functions'
	// representors are ports as well.
	Port, Ports int
	// LinkLayer says "Ethernet" or "InfiniBand".
	LinkLayer string
	// State says "ACTIVE" or "DOWN", Rate as sysfs has it ("100 Gb/sec (4X EDR)"). Find leaves them
	// out.
	State, Rate string
	// MAC and MTU are the netdev's.
	MAC net.HardwareAddr
	MTU int
	// Representor: the netdev stands for a function behind the e-switch (switchdev).
	Representor bool
	// Why stays nil if Open would be tried, else the error it would return.
	Why error
}

// Usable reports whether Open would be tried.
func (i DeviceInfo) Usable() bool { return i.Why == nil }

// Device names the port as [Config.Device] takes it: "mlx5_0", or "mlx5_0/2" where the device has
// several.
func (i DeviceInfo) Device() string {
	if i.Ports > 1 {
		return fmt.Sprintf("%s/%d", i.Name, i.Port)
	}
	return i.Name
}

// List returns the ports of the RDMA devices of this machine, by name, of each device the one first
// that its name alone stands for. A machine without any gives an error that is ErrNoRDMA.
func List() ([]DeviceInfo, error) { return thisHost().listPorts() }

func (m *host) listPorts() ([]DeviceInfo, error) {
	nodes, err := m.listNodes()
	if err != nil {
		return nil, err
	}
	var infos []DeviceInfo
	for i := range nodes {
		nodes[i].ReadStates(m.root)
		infos = append(infos, m.describePorts(&nodes[i])...)
	}
	return infos, nil
}

// Find returns the first port that is wanted and usable, in the order of List; of those that are
// wanted but not usable, the last one's reason. If none is wanted the error is ErrNotFound. It asks
// the firmware nothing.
func Find(wanted func(DeviceInfo) bool) (DeviceInfo, error) { return thisHost().findPort(wanted) }

func (m *host) findPort(wanted func(DeviceInfo) bool) (DeviceInfo, error) {
	nodes, err := m.listNodes()
	if err != nil {
		return DeviceInfo{}, err
	}
	err = ErrNotFound
	for i := range nodes {
		for _, d := range m.describePorts(&nodes[i]) {
			switch {
			case !wanted(d):
			case d.Usable():
				return d, nil
			default:
				err = d.Why
			}
		}
	}
	return DeviceInfo{}, err
}

// Describe returns the port that device names as [Config.Device] does. It asks the firmware
// nothing, and leaves out State and Rate. Where there is no such port the error is that of Open.
func Describe(device string) (DeviceInfo, error) { return thisHost().describeOne(device) }

func (m *host) describeOne(device string) (DeviceInfo, error) {
	nodes, err := m.listNodes()
	if err != nil {
		return DeviceInfo{}, err
	}
	n, port, err := m.portCalled(device, nodes)
	if err != nil {
		return DeviceInfo{}, err
	}
	return m.describePort(n, port), nil
}

// describePorts puts together what sysfs, netlink and our own checks say of each port.
func (m *host) describePorts(n *node) (all []DeviceInfo) {
	for _, port := range n.portNumbers() {
		all = append(all, m.describePort(n, port))
	}
	if len(all) == 0 { // one that is going or coming
		all = append(all, m.describePort(n, 1))
	}
	return all
}

func (m *host) describePort(n *node, port uint8) DeviceInfo {
	name := n.netdevOf(port)
	info := DeviceInfo{
		Name: n.IBDev, Node: n.Node, Firmware: n.Firmware, Type: n.HCAType, GUID: n.NodeGUID,
		Netdev: name, Port: int(port), Ports: len(n.Ports), Representor: n.representors[name],
	}
	if p := n.sysfsPort(port); p != nil {
		info.LinkLayer, info.State, info.Rate = p.LinkLayer, p.State, p.Rate
	}
	t, err := m.targetOf(n, port)
	if err == nil {
		info.MAC, info.MTU = t.facts.MAC, t.facts.MTU
		err = t.checkUsable()
	}
	info.Why = err
	return info
}

// Network tells how Linux uses the netdev of a port: what a second host on the same
// link needs to know besides its own address.
type Network struct {
	// Netdev gives the name of the port's interface.
	Netdev string
	// Addresses holds Linux's own there.
	Addresses []netip.Addr
	// Subnets lists the prefixes on the link, without the link-local ones, longest first.
	Subnets []netip.Prefix
	// Gateways gives the default routers, at most one per IP version.
	Gateways []netip.Addr
}

// NetworkOf asks the kernel, by netlink, about the netdev of the port that nic names, in the
// network namespace of the calling thread: about the VLAN interface on top of it if nic says VLAN.
// A netdev that is no port of an RDMA device is asked about, too. Nothing is opened. A port without
// that interface there gives an error that is ErrNotFound.
func NetworkOf(nic NIC) (Network, error) {
	t, err := locatePort(&Config{NIC: nic})
	if nic.Model.Kernel == nil && (errors.Is(err, ErrNoRDMA) || errors.Is(err, ErrNotMlx5)) {
		t, err = &target{facts: PortFacts{Name: nic.Device, Netdev: nic.Device}}, nil
	}
	if err != nil {
		return Network{}, err
	}
	name := t.facts.Netdev
	if name == "" {
		return Network{}, errorOfKind(ErrNotFound, "%s has no netdev in this network namespace",
			t.facts.Name)
	}
	i, err := netdev.ByName(name)
	if err != nil {
		return Network{}, withKind(ErrNotFound,
			fmt.Errorf("netdev %s of %s: %w", name, t.facts.Name, err))
	}
	name = i.Name // which an alternative name was resolved to
	if nic.VLAN != 0 {
		if name, err = netdev.VLANOn(name, int(nic.VLAN)); err != nil {
			return Network{}, withKind(ErrNotFound, err)
		}
	}
	n, err := netdev.NetworkOf(name)
	if err != nil {
		return Network{}, fmt.Errorf("read addresses and routes of %s: %w", name, err)
	}
	return Network(n), nil
}

// Errors of Open. Each message says what to do; these are for errors.Is.
var (
	// ErrConfig: a Config field has a value out of its range.
	ErrConfig = errors.New("bad configuration")
	// ErrNotFound: no RDMA device or netdev has this name.
	ErrNotFound = errors.New("no such device")
	// ErrNoRDMA: the netdev exists and has no RDMA device, or the machine has none.
	ErrNoRDMA = errors.New("no RDMA device")
	// ErrNotMlx5: an RDMA device of another make.
	ErrNotMlx5 = errors.New("not an mlx5 device")
	// ErrInfiniBand: the port runs InfiniBand.
	ErrInfiniBand = errors.New("port is InfiniBand")
	// ErrPermission: the node or a privilege is missing. errors.Is(err, os.ErrPermission) too.
	ErrPermission = fmt.Errorf("no permission: %w", os.ErrPermission)
	// ErrMemlock: RLIMIT_MEMLOCK is too low.
	ErrMemlock = errors.New("locked memory limit is too low")
	// ErrDown: the port's netdev is down.
	ErrDown = errors.New("netdev is down")
	// ErrMAC: the MAC address may not be taken, or another device has it: then
	// errors.Is(err, unix.EEXIST) too.
	ErrMAC = errors.New("MAC address refused")
)

// refusal wraps an error with a text of its own that errors.Is also finds to be kind and cause.
type refusal struct {
	kind, cause error
	text        string
}

func (r *refusal) Error() string { return r.text }

func (r *refusal) Unwrap() []error { return []error{r.kind, r.cause} }

// withKind makes err be kind as well, and leaves its text alone.
func withKind(kind, err error) error {
	if errors.Is(err, kind) {
		return err
	}
	return &refusal{kind, err, err.Error()}
}

// errorOfKind returns a new error of a kind.
func errorOfKind(kind error, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	return &refusal{kind, err, err.Error()}
}

// inInfiniBand returns the refusal of a port that runs the other protocol. linkType is its number
// for mlxconfig.
func inInfiniBand(device string, port uint8, linkType int) error {
	return errorOfKind(ErrInfiniBand,
		"port %d of %s is InfiniBand: set LINK_TYPE_P%d=ETH with mlxconfig and reboot", port,
		device, linkType)
}

// asPermission makes an EPERM or EACCES of the kernel an ErrPermission, unless
// it was about the limit of locked memory.
func asPermission(err error) error {
	if errors.Is(err, os.ErrPermission) && !errors.Is(err, ErrMemlock) {
		return withKind(ErrPermission, err)
	}
	return err
}
