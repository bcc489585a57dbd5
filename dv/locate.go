package dv

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
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
