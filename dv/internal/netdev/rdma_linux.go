package netdev

import (
	"encoding/binary"
	"fmt"

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

// rdmaDriver asks for the uverbs node of RDMA device index ("uverbs0") and the id of its driver.
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

// attrSet holds the attributes of one message, by id. What is absent or too short reads as zero.
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

// RDMAFactsOf asks netlink about an RDMA device. What cannot be had is left
// out: sysfs has most of it too.
func RDMAFactsOf(device string) RDMAFacts {
	var f RDMAFacts
	byName, err := rdmaIndices()
	index, ok := byName[device]
	if err != nil || !ok {
		return f
	}
	if netdevs, err := rdmaNetdevs(index); err == nil {
		f.Netdevs = netdevs
	}
	if _, driver, err := rdmaDriver(index); err == nil {
		f.Driver = driver
	}
	return f
}
