package stack

import (
	"encoding/binary"
	"syscall"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// Control messages in Linux's form (linux 6.12 include/linux/socket.h, include/uapi/linux/in.h and
// ipv6.h): struct cmsghdr {size_t len; int level, type;} and then
// in_pktinfo {int ifindex; in_addr spec_dst, addr;} or in6_pktinfo {in6_addr addr; int ifindex;}.
const (
	levelIP, typePacketInfo4 = 0, 8
	levelV6, typePacketInfo6 = 41, 50

	controlHeader = 16
	packetInfo4   = 12
	packetInfo6   = 20
	controlAlign  = 8
)

// SetControl says whether ReadMsgUDP and ReadBatch report each datagram's destination address, as
// an IP_PKTINFO or IPV6_PKTINFO control message of Linux's form. It stands for the socket options
// of that name, for which a program has no descriptor here. Default false.
func (c *UDPConn) SetControl(on bool) error {
	return c.set(func() { c.control.Store(on) })
}

// putPacketInfo writes the control message for a datagram that was sent to the address a, and
// returns its length, or false if oob is too short.
func putPacketInfo(oob []byte, a tcpip.Address) (int, bool) {
	level, kind, size := levelV6, typePacketInfo6, packetInfo6
	if a.Len() == 4 {
		level, kind, size = levelIP, typePacketInfo4, packetInfo4
	}
	total := controlHeader + (size+controlAlign-1)&^(controlAlign-1)
	if len(oob) < total {
		return 0, false
	}
	clear(oob[:total])
	native := binary.NativeEndian
	native.PutUint64(oob, uint64(controlHeader+size))
	native.PutUint32(oob[8:], uint32(level))
	native.PutUint32(oob[12:], uint32(kind))
	body := oob[controlHeader:]
	if a.Len() == 4 {
		native.PutUint32(body, nicID)
		copy(body[4:], a.AsSlice())
		copy(body[8:], a.AsSlice())
	} else {
		copy(body, a.AsSlice())
		native.PutUint32(body[16:], nicID)
	}
	return total, true
}

// parsePacketInfo finds the source address in control messages given to a send. Messages of other
// types are ignored; a malformed one is EINVAL.
func parsePacketInfo(oob []byte) (tcpip.Address, error) {
	var from tcpip.Address
	native := binary.NativeEndian
	for len(oob) >= controlHeader {
		n := native.Uint64(oob)
		if n < controlHeader || n > uint64(len(oob)) {
			return from, syscall.EINVAL
		}
		level, kind := native.Uint32(oob[8:]), native.Uint32(oob[12:])
		body := oob[controlHeader:n]
		switch {
		case level == levelIP && kind == typePacketInfo4 && len(body) >= packetInfo4:
			from = given(tcpip.AddrFrom4Slice(body[4:8]))
		case level == levelV6 && kind == typePacketInfo6 && len(body) >= packetInfo6:
			from = given(tcpip.AddrFrom16Slice(body[:16]))
		}
		next := (n + controlAlign - 1) &^ (controlAlign - 1)
		if next >= uint64(len(oob)) {
			break
		}
		oob = oob[next:]
	}
	return from, nil
}

// given is "any" for the unspecified address.
func given(a tcpip.Address) tcpip.Address {
	if a.Unspecified() {
		return tcpip.Address{}
	}
	return a
}
