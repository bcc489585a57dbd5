package host

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	generic "github.com/rdma-netstack/rdma-netstack/internal/netlink"
)

// attributes are those of one netlink message, by type.
type attributes map[uint16][]byte

func parseAttributes(b []byte) (attributes, error) {
	all, err := nl.ParseRouteAttr(b)
	if err != nil {
		return nil, fmt.Errorf("read netlink attributes: %w", err)
	}
	found := attributes{}
	for _, a := range all {
		found[a.Attr.Type&nl.NLA_TYPE_MASK] = a.Value
	}
	return found, nil
}

// readUint reads an attribute of 4 or 8 bytes; 0 if it is not there.
func (a attributes) readUint(kind uint16) uint64 {
	switch b := a[kind]; len(b) {
	case 4:
		return uint64(binary.NativeEndian.Uint32(b))
	case 8:
		return binary.NativeEndian.Uint64(b)
	}
	return 0
}

// askEthtool asks generic netlink for what askEthtool(8) shows of a netdev
// (Documentation/networking/ethtool-netlink.rst). Requests have the header as attribute 1.
func askEthtool(netdev string, command uint8, flags uint32) (attributes, error) {
	family, err := netlink.GenlFamilyGet(unix.ETHTOOL_GENL_NAME)
	if err != nil {
		return nil, fmt.Errorf("ask ethtool about %s: %w", netdev, err)
	}
	req := nl.NewNetlinkRequest(int(family.ID), 0)
	req.AddData(generic.GenericHeader{Command: command, Version: unix.ETHTOOL_GENL_VERSION})
	header := nl.NewRtAttr(1|unix.NLA_F_NESTED, nil)
	header.AddRtAttr(unix.ETHTOOL_A_HEADER_DEV_NAME, nl.ZeroTerminated(netdev))
	header.AddRtAttr(unix.ETHTOOL_A_HEADER_FLAGS, nl.Uint32Attr(flags))
	req.AddData(header)
	answers, err := req.Execute(unix.NETLINK_GENERIC, 0)
	if err == nil && (len(answers) == 0 || len(answers[0]) < generic.GenericSize) {
		err = errors.New("no answer")
	}
	if err != nil {
		return nil, fmt.Errorf("ask ethtool about %s: %w", netdev, err)
	}
	return parseAttributes(answers[0][generic.GenericSize:])
}

func rxRingOf(netdev string) (size, most int, err error) {
	a, err := askEthtool(netdev, unix.ETHTOOL_MSG_RINGS_GET, 0)
	return int(a.readUint(unix.ETHTOOL_A_RINGS_RX)), int(a.readUint(unix.ETHTOOL_A_RINGS_RX_MAX)),
		err
}

// pauseOf adds up both kinds of pause. A netdev that knows only one of them is no error.
func pauseOf(netdev string) (p Pause, err error) {
	a, err := askEthtool(netdev, unix.ETHTOOL_MSG_PAUSE_GET, unix.ETHTOOL_FLAG_STATS)
	if err == nil {
		stats, _ := parseAttributes(a[unix.ETHTOOL_A_PAUSE_STATS])
		p.Received = knownOrZero(stats.readUint(unix.ETHTOOL_A_PAUSE_STAT_RX_FRAMES))
		p.Sent = knownOrZero(stats.readUint(unix.ETHTOOL_A_PAUSE_STAT_TX_FRAMES))
	}
	pfc, without := pfcOf(netdev)
	if without != nil {
		return p, err
	}
	p.PFC, p.Received, p.Sent = pfc.PFC, p.Received+pfc.Received, p.Sent+pfc.Sent
	return p, nil
}

// knownOrZero returns 0 of a counter that the driver does not have, which is all ones.
func knownOrZero(n uint64) uint64 {
	if n == ^uint64(0) {
		return 0
	}
	return n
}

// Of linux include/uapi/linux/dcbnl.h: the command and attributes that tell of PFC.
const (
	dcbIEEEGet    = 21 // DCB_CMD_IEEE_GET
	dcbIfname     = 1
	dcbIEEE       = 13
	dcbIEEEPFC    = 2
	pfcRequests   = 8 // offset in struct ieee_pfc, of eight numbers: sent
	pfcIndicators = pfcRequests + 8*8
	pfcSize       = pfcIndicators + 8*8
)

// dcbMessage mirrors struct dcbmsg: family, command, padding.
type dcbMessage struct{}

func (dcbMessage) Len() int          { return 4 }
func (dcbMessage) Serialize() []byte { return []byte{0, dcbIEEEGet, 0, 0} }

// pfcOf returns the netdev's priority flow control.
func pfcOf(netdev string) (p Pause, err error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETDCB, 0)
	req.AddData(dcbMessage{})
	req.AddData(nl.NewRtAttr(dcbIfname, nl.ZeroTerminated(netdev)))
	answers, err := req.Execute(unix.NETLINK_ROUTE, 0)
	if err != nil || len(answers) == 0 || len(answers[0]) < 4 {
		return p, fmt.Errorf("ask DCB about %s: %w", netdev,
			errors.Join(err, errors.ErrUnsupported))
	}
	return parsePFC(answers[0][4:])
}

// parsePFC finds struct ieee_pfc among the attributes of an answer.
func parsePFC(b []byte) (p Pause, err error) {
	all, err := parseAttributes(b)
	if err != nil {
		return p, err
	}
	ieee, err := parseAttributes(all[dcbIEEE])
	if err != nil {
		return p, err
	}
	pfc := ieee[dcbIEEEPFC]
	if len(pfc) < pfcSize {
		return p, errors.ErrUnsupported
	}
	p.PFC = pfc[1]
	for i := range 8 {
		p.Sent += binary.NativeEndian.Uint64(pfc[pfcRequests+8*i:])
		p.Received += binary.NativeEndian.Uint64(pfc[pfcIndicators+8*i:])
	}
	return p, nil
}
