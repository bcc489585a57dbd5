package frame

import "encoding/binary"

// VnetHdrLen gives the size in bytes of the header that TAP devices and packet
// sockets put before a frame when asked to (struct virtio_net_hdr in linux
// include/uapi/linux/virtio_net.h). Its fields are in host byte order there.
const VnetHdrLen = 10

const (
	vnetNeedsCsum = 1 // flags

	vnetGSONone  = 0 // gso_type
	vnetGSOTCPv4 = 1
	vnetGSOTCPv6 = 4
	vnetGSOUDP   = 5
	vnetGSOECN   = 0x80 // or-ed in: the first segment keeps CWR, the others lose it
)

var vnetToGSO = map[uint8]GSO{vnetGSOTCPv4: GSOTCPv4, vnetGSOTCPv6: GSOTCPv6, vnetGSOUDP: GSOUDP}

var gsoToVnet = [...]uint8{GSONone: vnetGSONone, GSOTCPv4: vnetGSOTCPv4,
	GSOTCPv6: vnetGSOTCPv6, GSOUDP: vnetGSOUDP}

// FromVnet makes a Frame of data and the virtio-net header hdr, of VnetHdrLen
// bytes. shift is how many bytes, such as a VLAN tag, were inserted before the L3
// header since the kernel wrote hdr. ok is false when hdr does not fit data.
func FromVnet(hdr, data []byte, shift int) (f Frame, ok bool) {
	f = Frame{Data: data}
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
		f.HdrLen = uint16(min(int(ne.Uint16(hdr[2:]))+shift, len(data), 0xffff)) // a hint
		return f, f.GSO != GSONone && f.NeedsCsum && f.MSS != 0
	}
	return f, true
}

// PutVnet encodes the header of f.
func PutVnet(hdr *[VnetHdrLen]byte, f Frame) {
	*hdr = [VnetHdrLen]byte{}
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
