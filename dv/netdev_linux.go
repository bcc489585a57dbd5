package dv

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Requests of RDMA netlink that the netlink library lacks, and the attributes
// of their answers (include/uapi/rdma/rdma_netlink.h).
const (
	nldevPortGet    = 5
	nldevGetChardev = 15

	attrDevIndex    = 1
	attrPortIndex   = 3
	attrNdevName    = 51
	attrChardevType = 69
	attrChardevName = 70
	attrDriverID    = 73
)

// interfaceByName asks the kernel about the netdev called name.
func interfaceByName(name string) (iface, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return iface{}, err
	}
	a := link.Attrs()
	return iface{Name: a.Name, MAC: a.HardwareAddr, MTU: a.MTU, Up: a.Flags&net.FlagUp != 0}, nil
}

// networkOf reads the main routing table and the addresses of the netdev called name.
func networkOf(name string) (Network, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return Network{}, err
	}
	routes, err := netlink.RouteList(link, netlink.FAMILY_ALL)
	if err != nil {
		return Network{}, err
	}
	addrs, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return Network{}, err
	}
	n := Network{Netdev: name}
	for _, a := range addrs {
		if own, ok := netip.AddrFromSlice(a.IP); ok {
			n.Addresses = append(n.Addresses, own.Unmap())
		}
		// One may be there without a route to its subnet.
		routes = append(routes, netlink.Route{Type: unix.RTN_UNICAST, Dst: a.IPNet})
	}
	n.Subnets, n.Gateways = subnets(routes), gateways(routes)
	return n, nil
}

// vlanOn finds the interface of VLAN id on top of the netdev called name.
func vlanOn(name string, id int) (string, error) {
	under, err := netlink.LinkByName(name)
	if err != nil {
		return "", err
	}
	links, err := netlink.LinkList()
	if err != nil {
		return "", fmt.Errorf("list netdevs: %w", err)
	}
	if v := vlanAmong(links, under.Attrs().Index, id); v != "" {
		return v, nil
	}
	return "", fmt.Errorf("no interface of VLAN %d on %s", id, name)
}

// vlanAmong is the name of the interface of VLAN id on top of the one with an index, "" if there is none.
func vlanAmong(links []netlink.Link, index, id int) string {
	for _, l := range links {
		if v, ok := l.(*netlink.Vlan); ok && v.VlanId == id && v.ParentIndex == index {
			return v.Name
		}
	}
	return ""
}

// subnets are the destinations of routes that have no next hop.
func subnets(routes []netlink.Route) (list []netip.Prefix) {
	for _, r := range routes {
		if r.Type != unix.RTN_UNICAST || r.Gw != nil || r.Via != nil || r.Dst == nil {
			continue
		}
		a, ok := netip.AddrFromSlice(r.Dst.IP)
		ones, _ := r.Dst.Mask.Size()
		p := netip.PrefixFrom(a.Unmap(), ones).Masked()
		if ok && ones > 0 && !p.IsSingleIP() && !p.Addr().IsLinkLocalUnicast() && !p.Addr().IsMulticast() && !slices.Contains(list, p) {
			list = append(list, p)
		}
	}
	slices.SortStableFunc(list, func(a, b netip.Prefix) int { return b.Bits() - a.Bits() })
	return list
}

// gateways are the next hops of the default routes with the lowest metrics.
func gateways(routes []netlink.Route) (list []netip.Addr) {
	routes = slices.Clone(routes)
	slices.SortStableFunc(routes, func(a, b netlink.Route) int { return a.Priority - b.Priority })
	have := map[bool]bool{}
	for _, r := range routes {
		a, ok := netip.AddrFromSlice(r.Gw)
		a = a.Unmap()
		if !ok || r.Type != unix.RTN_UNICAST || !isDefault(r.Dst) || have[a.Is4()] {
			continue
		}
		have[a.Is4()] = true
		list = append(list, a)
	}
	return list
}

func isDefault(dst *net.IPNet) bool {
	if dst == nil {
		return true
	}
	ones, _ := dst.Mask.Size()
	return ones == 0
}

// rdmaIndices asks for the RDMA devices there are, by name.
func rdmaIndices() (map[string]uint32, error) {
	links, err := netlink.RdmaLinkList()
	if err != nil {
		return nil, fmt.Errorf("list RDMA devices: %w", err)
	}
	byName := make(map[string]uint32, len(links))
	for _, l := range links {
		byName[l.Attrs.Name] = l.Attrs.Index
	}
	return byName, nil
}

// rdmaNetdevs asks which netdev each port of RDMA device index has. Ports
// without one, or with one in another network namespace, are left out.
func rdmaNetdevs(index uint32) (map[uint8]string, error) {
	msgs, err := rdmaRequest(nldevPortGet, unix.NLM_F_DUMP, attribute32(attrDevIndex, index))
	if err != nil {
		return nil, fmt.Errorf("list ports of RDMA device %d: %w", index, err)
	}
	return parsePorts(msgs), nil
}

// rdmaDriver asks for the uverbs node of RDMA device index ("uverbs0") and the
// id of its driver.
func rdmaDriver(index uint32) (node string, driver uint32, err error) {
	msgs, err := rdmaRequest(nldevGetChardev, 0, attribute32(attrDevIndex, index),
		nl.NewRtAttr(attrChardevType, nl.ZeroTerminated("uverbs")))
	if err != nil {
		return "", 0, fmt.Errorf("look up the node of RDMA device %d: %w", index, err)
	}
	node, driver = parseChardev(msgs)
	return node, driver, nil
}

func rdmaRequest(op, flags int, attrs ...*nl.RtAttr) ([][]byte, error) {
	req := nl.NewNetlinkRequest(nl.RDMA_NL_NLDEV<<nl.RDMA_NL_GET_CLIENT_SHIFT|op, flags)
	for _, a := range attrs {
		req.AddData(a)
	}
	return req.Execute(unix.NETLINK_RDMA, 0)
}

func attribute32(id int, v uint32) *nl.RtAttr { return nl.NewRtAttr(id, nl.Uint32Attr(v)) }

// parsePorts reads answers to nldevPortGet, one port each.
func parsePorts(msgs [][]byte) map[uint8]string {
	ports := make(map[uint8]string)
	for _, m := range msgs {
		a := attributes(m)
		port, name := a.uint32(attrPortIndex), a.string(attrNdevName)
		if port > 0 && port < 256 && name != "" {
			ports[uint8(port)] = name
		}
	}
	return ports
}

// parseChardev reads the answer to nldevGetChardev.
func parseChardev(msgs [][]byte) (node string, driver uint32) {
	for _, m := range msgs {
		a := attributes(m)
		node, driver = a.string(attrChardevName), a.uint32(attrDriverID)
	}
	return node, driver
}

// attrSet is the attributes of one message, by id. What is absent or too short
// reads as zero.
type attrSet map[uint16][]byte

func attributes(msg []byte) attrSet {
	set := make(attrSet)
	for len(msg) >= unix.SizeofRtAttr {
		n := int(binary.NativeEndian.Uint16(msg))
		if n < unix.SizeofRtAttr || n > len(msg) {
			break
		}
		set[binary.NativeEndian.Uint16(msg[2:])&attrTypeMask] = msg[unix.SizeofRtAttr:n]
		msg = msg[min((n+3)&^3, len(msg)):]
	}
	return set
}

// attrTypeMask leaves out the flags "nested" and "network byte order".
const attrTypeMask = 0x3fff

func (s attrSet) uint32(id uint16) uint32 {
	if len(s[id]) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(s[id])
}

func (s attrSet) string(id uint16) string { return unix.ByteSliceToString(s[id]) }

// rdmaFactsOf asks netlink about an RDMA device. What cannot be had is left
// out: sysfs has most of it too.
func rdmaFactsOf(device string) rdmaFacts {
	var f rdmaFacts
	byName, err := rdmaIndices()
	index, ok := byName[device]
	if err != nil || !ok {
		return f
	}
	if netdevs, err := rdmaNetdevs(index); err == nil {
		f.netdevs = netdevs
	}
	if _, driver, err := rdmaDriver(index); err == nil {
		f.driver = driver
	}
	return f
}

// pinnedBytes is the memory this process has pinned, as the kernel counts it
// against RLIMIT_MEMLOCK.
func pinnedBytes() uint64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	return parsePinned(string(status))
}

// parsePinned finds "VmPin:   1234 kB".
func parsePinned(status string) uint64 {
	_, rest, ok := strings.Cut(status, "\nVmPin:")
	if !ok {
		return 0
	}
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0
	}
	kib, err := strconv.ParseUint(fields[0], 10, 64)
	if err != nil {
		return 0
	}
	return kib << 10
}
