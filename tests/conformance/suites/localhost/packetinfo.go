//go:build linux

package localhost

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// eachPacketInfo calls f with the addresses of IP_PKTINFO (struct in_pktinfo: int index, source
// address, destination address) and IPV6_PKTINFO (struct in6_pktinfo: address, int index) among
// control messages, whose layout is struct cmsghdr's: u64 length, int level, int type, data aligned
// to 8 bytes.
func eachPacketInfo(oob []byte, f func(address []byte)) {
	const header, align = 16, 8
	for len(oob) >= header {
		n := binary.NativeEndian.Uint64(oob)
		if n < header || n > uint64(len(oob)) {
			return
		}
		data := oob[header:n]
		switch level, kind := binary.NativeEndian.Uint32(oob[8:]),
			binary.NativeEndian.Uint32(oob[12:]); {
		case level == unix.IPPROTO_IP && kind == unix.IP_PKTINFO && len(data) >= 12:
			f(data[4:8])
			f(data[8:12])
		case level == unix.IPPROTO_IPV6 && kind == unix.IPV6_PKTINFO && len(data) >= 16:
			f(data[:16])
		}
		oob = oob[min((n+align-1)&^(align-1), uint64(len(oob))):]
	}
}

// showPacketInfo replaces addresses of slices by those of loopback.
func showPacketInfo(oob []byte) {
	eachPacketInfo(oob, func(address []byte) {
		a, _ := netip.AddrFromSlice(address)
		copy(address, shown(a).AsSlice())
	})
}

// namePacketInfo returns control messages with the slice's addresses in the place of those of
// loopback.
func (s *slice) namePacketInfo(oob []byte) []byte {
	oob = slices.Clone(oob)
	eachPacketInfo(oob, func(address []byte) {
		if a, _ := netip.AddrFromSlice(address); a.IsLoopback() {
			copy(address, replaceAddr(a, s.address(a.Unmap().Is6())).AsSlice())
		}
	})
	return oob
}
