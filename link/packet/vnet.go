package packet

import "encoding/binary"

// vnetLen gives the length of struct virtio_net_hdr (include/uapi/linux/virtio_net.h), which
// precedes each frame of a socket with PACKET_VNET_HDR. Its numbers are in the processor's byte
// order:
//
//	0 flags   1 gso_type   2 hdr_len   4 gso_size   6 csum_start   8 csum_offset
const vnetLen = 10

const (
	vnetNeedsCsum = 1 // the checksum field has the pseudo-header's sum
	vnetDataValid = 2 // the checksum was verified

	vnetTCPv4 = 1
	vnetTCPv6 = 4
	vnetUDPL4 = 5 // several datagrams with one header, linux 6.2
	vnetECN   = 0x80
)

// rxFlags returns what the header of a received frame says about its checksums.
func rxFlags(vnet []byte) RxFlags {
	switch {
	case vnet[0]&vnetNeedsCsum != 0:
		return RxChecksumOK | RxHeaderOK
	case vnet[0]&vnetDataValid != 0 && vnet[1] != 0: // GRO and LRO merge by IP headers they verify
		return RxChecksumOK | RxHeaderOK
	case vnet[0]&vnetDataValid != 0:
		return RxChecksumOK
	}
	return 0
}

func gsoSize(vnet []byte) uint16 { return binary.NativeEndian.Uint16(vnet[4:]) }

// transport says where the transport header of a frame to be sent is.
type transport struct {
	ip, at int // offsets in the frame
	proto  byte
	v6     bool
}

// findTransport parses the Ethernet and IP headers at the beginning of an untagged frame. False:
// it is not TCP or UDP, or not whole.
func findTransport(head []byte) (t transport, ok bool) {
	t.ip = ethLen
	switch {
	case len(head) < ethLen+ipv4Len:
		return t, false
	case binary.BigEndian.Uint16(head[12:]) == typeIPv4:
		const fragment = 0x3fff // more fragments, or an offset
		if binary.BigEndian.Uint16(head[ethLen+6:])&fragment != 0 {
			return t, false
		}
		if head[ethLen]&15 < ipv4Len/4 {
			return t, false
		}
		t.proto, t.at = head[ethLen+9], ethLen+int(head[ethLen]&15)*4
	case binary.BigEndian.Uint16(head[12:]) == typeIPv6 && len(head) >= ethLen+ipv6Len:
		t.v6, t.proto, t.at = true, head[ethLen+6], ethLen+ipv6Len
	default:
		return t, false
	}
	switch t.proto {
	case protoTCP:
		return t, len(head) >= t.at+tcpLen
	case protoUDP:
		return t, len(head) >= t.at+udpLen
	}
	return t, false
}

// sumOffset returns where the checksum is in the transport header.
func (t *transport) sumOffset() int {
	if t.proto == protoUDP {
		return 6
	}
	return 16
}

// headerLen returns the length of all headers.
func (t *transport) headerLen(head []byte) int {
	if t.proto == protoUDP {
		return t.at + udpLen
	}
	return t.at + int(head[t.at+12]>>4)*4
}

// completeHeader writes what the kernel leaves to the sender: the IPv4 header's checksum, and the
// sum of the pseudo-header in the transport header's. size is the frame's length.
func (t *transport) completeHeader(head []byte, size int) {
	addresses, length := head[t.ip+8:t.ip+40], size-t.at
	if !t.v6 {
		h := head[t.ip:t.at]
		h[10], h[11] = 0, 0
		binary.BigEndian.PutUint16(h[10:], ^addWords(0, h))
		addresses = h[12:20]
	}
	pseudo := addWords(uint32(t.proto)+uint32(length&0xffff)+uint32(length>>16), addresses)
	binary.BigEndian.PutUint16(head[t.at+t.sumOffset():], pseudo)
}

// addWords adds the 16-bit words of b to start in ones' complement arithmetic (RFC 1071).
func addWords(start uint32, b []byte) uint16 {
	s := start
	for ; len(b) >= 2; b = b[2:] {
		s += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		s += uint32(b[0]) << 8
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

// putVnet writes the header of a frame to be sent whose checksum is to be computed: its headers,
// and the payload of a segment or datagram if it is to be cut up.
func putVnet(vnet, head []byte, t *transport, gso int) {
	ne := binary.NativeEndian
	vnet[0], vnet[1] = vnetNeedsCsum, 0
	if gso > 0 {
		const cwr = 0x80
		switch {
		case t.proto == protoUDP:
			vnet[1] = vnetUDPL4
		case t.v6:
			vnet[1] = vnetTCPv6
		default:
			vnet[1] = vnetTCPv4
		}
		if t.proto == protoTCP && head[t.at+13]&cwr != 0 {
			vnet[1] |= vnetECN
		}
	}
	ne.PutUint16(vnet[2:], uint16(t.headerLen(head)))
	ne.PutUint16(vnet[4:], uint16(gso))
	ne.PutUint16(vnet[6:], uint16(t.at))
	ne.PutUint16(vnet[8:], uint16(t.sumOffset()))
}
