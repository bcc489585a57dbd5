package xdp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/internal/netlink"
)

// asker asks the kernel, in the network namespace of the thread that made it.
type asker struct {
	mu     sync.Mutex
	route  *nl.NetlinkSocket // guarded by mu, as is what follows
	common *nl.NetlinkSocket // generic netlink
	family map[string]uint16
	closed bool
}

func newAsker() (*asker, error) {
	route, err := nl.Subscribe(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("ask the kernel about interfaces: %w", err)
	}
	common, err := nl.Subscribe(unix.NETLINK_GENERIC)
	if err != nil {
		route.Close()
		return nil, fmt.Errorf("ask the kernel about interfaces: %w", err)
	}
	return &asker{route: route, common: common, family: map[string]uint16{}}, nil
}

func (a *asker) closeSockets() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.closed {
		a.closed = true
		a.route.Close()
		a.common.Close()
	}
	return nil
}

// sendRequest sends one request and returns the answers.
func (a *asker) sendRequest(kind, flags int, by *nl.NetlinkSocket, protocol int,
	what ...nl.NetlinkRequestData) ([][]byte, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil, net.ErrClosed
	}
	req := nl.NewNetlinkRequest(kind, flags)
	req.Sockets = map[int]*nl.SocketHandle{protocol: {Socket: by}}
	for _, w := range what {
		req.AddData(w)
	}
	return req.Execute(protocol, 0)
}

// factsOf asks about the interface called name. What an old kernel or a driver does not tell is
// left out.
func (a *asker) factsOf(name string) (f facts, index int, err error) {
	message := nl.NewIfInfomsg(unix.AF_UNSPEC)
	by := nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name))
	if len(name) >= unix.IFNAMSIZ {
		by = nl.NewRtAttr(unix.IFLA_ALT_IFNAME, nl.ZeroTerminated(name))
	}
	answers, err := a.sendRequest(unix.RTM_GETLINK, 0, a.route, unix.NETLINK_ROUTE, message, by)
	if errors.Is(err, unix.ENODEV) {
		return f, 0, fmt.Errorf("there is no interface %s here: \"ip link\" lists those there "+
			"are: %w", name, err)
	}
	if err == nil && (len(answers) == 0 || len(answers[0]) < unix.SizeofIfInfomsg) {
		err = unix.EPROTO
	}
	var at attributes
	if err == nil {
		at, err = parseAttributes(answers[0][unix.SizeofIfInfomsg:])
	}
	if err != nil {
		return f, 0, fmt.Errorf("ask about interface %s: %w", name, err)
	}
	index = int(nl.DeserializeIfInfomsg(answers[0]).Index)
	f = facts{name: unix.ByteSliceToString(at.all[unix.IFLA_IFNAME]), queues: 1}
	mtu, _ := at.numberOf(unix.IFLA_MTU)
	f.mtu = int(mtu)
	if xdp, err := parseAttributes(at.all[unix.IFLA_XDP]); err == nil {
		const programID = 4 // IFLA_XDP_PROG_ID
		id, _ := xdp.numberOf(programID)
		if f.program = uint32(id); id != 0 {
			f.programName = nameOfProgram(f.program)
		}
	}
	f.driver = driverOf(f.name)
	if n, err := a.queuesOf(f.name); err == nil {
		f.queues = n
	}
	if on, err := a.offloadsOf(f.name); err == nil {
		f.stripsVLAN = on["rx-vlan-hw-parse"]
		f.softwareSums = !on["tx-checksum-ip-generic"]
	}
	f.askNetdev(a, index)
	return f, index, nil
}

// driverOf returns the name of an interface's driver, "" if it has none.
func driverOf(name string) string {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	info, err := unix.IoctlGetEthtoolDrvinfo(fd, name)
	if err != nil {
		return ""
	}
	return unix.ByteSliceToString(info.Driver[:])
}

// askNetdev asks the netdev family for XDP features.
func (f *facts) askNetdev(by *asker, index int) {
	const ( // Documentation/netlink/specs/netdev.yaml
		commandGet                     = 1
		ifindex, features, xskFeatures = 1, 3, 6
		txChecksum                     = 1 << 1
	)
	a, err := by.askFamily("netdev", commandGet,
		nl.NewRtAttr(ifindex, nl.Uint32Attr(uint32(index))))
	if err != nil {
		return // before linux 6.3
	}
	f.features, f.featuresKnown = a.numberOf(features)
	of, _ := a.numberOf(xskFeatures)
	f.metadata = of&txChecksum != 0
}

// queuesOf returns how many queues an interface receives by (ethtool -l). It needs linux 5.6.
func (a *asker) queuesOf(name string) (int, error) {
	of, err := a.askFamily(unix.ETHTOOL_GENL_NAME, unix.ETHTOOL_MSG_CHANNELS_GET,
		ethtoolHeader(name))
	if err != nil {
		return 0, err
	}
	rx, _ := of.numberOf(unix.ETHTOOL_A_CHANNELS_RX_COUNT)
	combined, _ := of.numberOf(unix.ETHTOOL_A_CHANNELS_COMBINED_COUNT)
	if rx+combined == 0 {
		return 0, fmt.Errorf("%s names no queues: %w", name, errors.ErrUnsupported)
	}
	return int(rx + combined), nil
}

// offloadsOf returns the names of what is switched on (ethtool -k), as the kernel calls it.
func (a *asker) offloadsOf(name string) (map[string]bool, error) {
	of, err := a.askFamily(unix.ETHTOOL_GENL_NAME, unix.ETHTOOL_MSG_FEATURES_GET,
		ethtoolHeader(name))
	if err != nil {
		return nil, err
	}
	const bits, bitName = 3, 2 // ETHTOOL_A_BITSET_BITS, ETHTOOL_A_BITSET_BIT_NAME
	active, err := parseAttributes(of.all[unix.ETHTOOL_A_FEATURES_ACTIVE])
	if err != nil {
		return nil, err
	}
	list, err := nl.ParseRouteAttr(active.all[bits])
	if err != nil {
		return nil, fmt.Errorf("read the offloads of %s: %w", name, err)
	}
	on := map[string]bool{}
	for _, bit := range list {
		if fields, err := parseAttributes(bit.Value); err == nil {
			on[unix.ByteSliceToString(fields.all[bitName])] = true
		}
	}
	return on, nil
}

func ethtoolHeader(name string) *nl.RtAttr {
	header := nl.NewRtAttr(1|unix.NLA_F_NESTED, nil)
	header.AddRtAttr(unix.ETHTOOL_A_HEADER_DEV_NAME, nl.ZeroTerminated(name))
	return header
}

// attributes holds those of one netlink message, by type.
type attributes struct{ all map[uint16][]byte }

func parseAttributes(b []byte) (a attributes, err error) {
	list, err := nl.ParseRouteAttr(b)
	if err != nil {
		return a, fmt.Errorf("read netlink attributes: %w", err)
	}
	a.all = map[uint16][]byte{}
	for _, at := range list {
		a.all[at.Attr.Type&nl.NLA_TYPE_MASK] = at.Value
	}
	return a, nil
}

// numberOf returns an attribute of 4 or 8 bytes, and whether it is there.
func (a attributes) numberOf(kind uint16) (uint64, bool) {
	switch b := a.all[kind]; len(b) {
	case 4:
		return uint64(binary.NativeEndian.Uint32(b)), true
	case 8:
		return binary.NativeEndian.Uint64(b), true
	}
	return 0, false
}

// askFamily sends one request to a family of generic netlink and returns the answer's attributes.
func (a *asker) askFamily(family string, command uint8, what *nl.RtAttr) (of attributes,
	err error) {
	id, err := a.familyOf(family)
	if err != nil {
		return of, err
	}
	answers, err := a.sendRequest(int(id), 0, a.common, unix.NETLINK_GENERIC,
		netlink.GenericHeader{Command: command, Version: 1}, what)
	if err == nil && (len(answers) == 0 || len(answers[0]) < netlink.GenericSize) {
		err = unix.EPROTO
	}
	if err != nil {
		return of, fmt.Errorf("ask %s: %w", family, err)
	}
	return parseAttributes(answers[0][netlink.GenericSize:])
}

// familyOf returns the number of a family of generic netlink.
func (a *asker) familyOf(name string) (uint16, error) {
	a.mu.Lock()
	id := a.family[name]
	a.mu.Unlock()
	if id != 0 {
		return id, nil
	}
	answers, err := a.sendRequest(unix.GENL_ID_CTRL, 0, a.common, unix.NETLINK_GENERIC,
		netlink.GenericHeader{Command: unix.CTRL_CMD_GETFAMILY, Version: 1},
		nl.NewRtAttr(unix.CTRL_ATTR_FAMILY_NAME, nl.ZeroTerminated(name)))
	if err == nil && (len(answers) == 0 || len(answers[0]) < netlink.GenericSize) {
		err = unix.EPROTO
	}
	var at attributes
	if err == nil {
		at, err = parseAttributes(answers[0][netlink.GenericSize:])
	}
	b := at.all[unix.CTRL_ATTR_FAMILY_ID]
	if err == nil && len(b) < 2 {
		err = unix.EPROTO
	}
	if err != nil {
		return 0, fmt.Errorf("ask for the family %s of generic netlink: %w", name, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.family[name] = binary.NativeEndian.Uint16(b)
	return a.family[name], nil
}
