package simnic

import "encoding/binary"

// The header that TAP devices and packet sockets put before a frame when asked
// to (struct virtio_net_hdr, include/uapi/linux/virtio_net.h). In this use its
// fields are in host byte order.
const vnetHdrLen = 10

const (
	vnetNeedsCsum = 1 // flags

	vnetGSONone  = 0 // gso_type
	vnetGSOTCPv4 = 1
	vnetGSOTCPv6 = 4
	vnetGSOUDP   = 5
	vnetGSOECN   = 0x80 // or-ed in: the first piece keeps CWR, the others lose it
)

var vnetToGSO = map[uint8]GSO{vnetGSOTCPv4: GSOTCPv4, vnetGSOTCPv6: GSOTCPv6, vnetGSOUDP: GSOUDP}

var gsoToVnet = [...]uint8{GSONone: vnetGSONone, GSOTCPv4: vnetGSOTCPv4, GSOTCPv6: vnetGSOTCPv6, GSOUDP: vnetGSOUDP}

// frameFromVnet makes a Frame of a header and the frame after it. shift is how
// many bytes were put in front of the L3 header since the kernel counted. It
// reports false when the header does not fit the frame.
func frameFromVnet(hdr, data []byte, shift int) (Frame, bool) {
	f := Frame{Data: data}
	ne := binary.NativeEndian
	if hdr[0]&vnetNeedsCsum != 0 {
		start, offset := int(ne.Uint16(hdr[6:]))+shift, int(ne.Uint16(hdr[8:]))
		if start > 0xffff || start+offset+2 > len(data) {
			return f, false
		}
		f.NeedsCsum, f.CsumStart, f.CsumOffset = true, uint16(start), uint16(offset)
	}
	if kind := hdr[1] &^ vnetGSOECN; kind != vnetGSONone {
		f.GSO, f.MSS = vnetToGSO[kind], ne.Uint16(hdr[4:])
		f.HdrLen = uint16(min(int(ne.Uint16(hdr[2:]))+shift, len(data), 0xffff)) // a hint: all that lies in one piece
		return f, f.GSO != GSONone && f.NeedsCsum && f.MSS != 0
	}
	return f, true
}

// putVnet encodes the header of f.
func putVnet(hdr *[vnetHdrLen]byte, f Frame) {
	*hdr = [vnetHdrLen]byte{}
	ne := binary.NativeEndian
	if f.NeedsCsum {
		hdr[0] = vnetNeedsCsum
		ne.PutUint16(hdr[6:], f.CsumStart)
		ne.PutUint16(hdr[8:], f.CsumOffset)
	}
	if f.GSO != GSONone {
		hdr[1] = gsoToVnet[f.GSO]
		if f.GSO != GSOUDP && hasCWR(f) {
			hdr[1] |= vnetGSOECN
		}
		ne.PutUint16(hdr[2:], f.HdrLen)
		ne.PutUint16(hdr[4:], f.MSS)
	}
}

// hasCWR reports whether the TCP header of an unsegmented frame has the CWR flag.
func hasCWR(f Frame) bool {
	at := int(f.CsumStart) + 13
	return at < len(f.Data) && f.Data[at]&0x80 != 0
}
