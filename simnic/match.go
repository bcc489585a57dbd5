package simnic

import (
	"encoding/binary"
	"fmt"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

// MatchKey holds the fields of a frame that a flow rule can match: the words, most significant byte
// first, of the device's layer 2 to 4 match set (fte_match_set_lyr_2_4 in linux
// include/linux/mlx5/mlx5_ifc.h), and one word with the IPv6 flow label.
type MatchKey [9]uint64

// Match is a value under a mask. The zero Match matches every frame.
type Match struct{ Value, Mask MatchKey }

// field describes a run of bits of one word of a MatchKey.
type field struct{ word, shift, width uint }

// Fields of a MatchKey.
var (
	fieldSrcMAC    = field{0, 16, 48}
	fieldEtherType = field{0, 0, 16} // behind the last VLAN tag
	fieldDstMAC    = field{1, 16, 48}
	fieldVLAN      = field{1, 0, 16} // TCI of the first tag
	fieldProto     = field{2, 56, 8}
	fieldTOS       = field{2, 48, 8} // DSCP and ECN, or traffic class
	fieldCVLAN     = field{2, 47, 1} // first tag is a C-tag
	fieldSVLAN     = field{2, 46, 1}
	fieldFrag      = field{2, 45, 1}
	fieldIPVersion = field{2, 41, 4}
	fieldTCPFlags  = field{2, 32, 9}
	fieldTCPSrc    = field{2, 16, 16}
	fieldTCPDst    = field{2, 0, 16}
	fieldUDPSrc    = field{3, 16, 16}
	fieldUDPDst    = field{3, 0, 16}
	fieldSrcIPv4   = field{5, 0, 32}
	fieldDstIPv4   = field{7, 0, 32}
	fieldFlowLabel = field{8, 0, 20}
)

func (f field) putField(k *MatchKey, v uint64) {
	mask := uint64(1)<<f.width - 1
	k[f.word] = k[f.word]&^(mask<<f.shift) | v&mask<<f.shift
}

func (f field) getField(k *MatchKey) uint64 { return k[f.word] >> f.shift & (1<<f.width - 1) }

func (m *Match) setField(f field, value, mask uint64) {
	if mask != 0 {
		f.putField(&m.Value, value)
		f.putField(&m.Mask, f.getField(&m.Mask)|mask)
	}
}

// SetDstMAC matches a destination address; bits outside the mask do not matter.
func (m *Match) SetDstMAC(value, mask [6]byte) {
	m.setField(fieldDstMAC, macBits(value[:]), macBits(mask[:]))
}

// SetSrcMAC matches a source address.
func (m *Match) SetSrcMAC(value, mask [6]byte) {
	m.setField(fieldSrcMAC, macBits(value[:]), macBits(mask[:]))
}

// SetEtherType matches the type after the last VLAN tag.
func (m *Match) SetEtherType(value, mask uint16) {
	m.setField(fieldEtherType, uint64(value), uint64(mask))
}

// SetVLAN matches a C-tag with this TCI. With a zero mask it adds no condition.
func (m *Match) SetVLAN(value, mask uint16) {
	if mask != 0 {
		m.setField(fieldVLAN, uint64(value), uint64(mask))
		m.setField(fieldCVLAN, 1, 1)
	}
}

// SetIPVersion matches IPv4 (4) or IPv6 (6).
func (m *Match) SetIPVersion(v uint8) { m.setField(fieldIPVersion, uint64(v), 0xf) }

// SetProto matches an IP protocol; fragments match too.
func (m *Match) SetProto(value, mask uint8) { m.setField(fieldProto, uint64(value), uint64(mask)) }

// SetTOS matches the IPv4 TOS or IPv6 traffic class byte.
func (m *Match) SetTOS(value, mask uint8) { m.setField(fieldTOS, uint64(value), uint64(mask)) }

// SetFlowLabel matches an IPv6 flow label.
func (m *Match) SetFlowLabel(value, mask uint32) {
	m.setField(fieldFlowLabel, uint64(value), uint64(mask))
}

// SetIPv4 matches source and destination addresses.
func (m *Match) SetIPv4(src, srcMask, dst, dstMask [4]byte) {
	m.setField(fieldSrcIPv4, uint64(binary.BigEndian.Uint32(src[:])),
		uint64(binary.BigEndian.Uint32(srcMask[:])))
	m.setField(fieldDstIPv4, uint64(binary.BigEndian.Uint32(dst[:])),
		uint64(binary.BigEndian.Uint32(dstMask[:])))
}

// SetIPv6 matches source and destination addresses.
func (m *Match) SetIPv6(src, srcMask, dst, dstMask [16]byte) {
	for i := range uint(2) {
		m.setField(field{4 + i, 0, 64}, binary.BigEndian.Uint64(src[8*i:]),
			binary.BigEndian.Uint64(srcMask[8*i:]))
		m.setField(field{6 + i, 0, 64}, binary.BigEndian.Uint64(dst[8*i:]),
			binary.BigEndian.Uint64(dstMask[8*i:]))
	}
}

// SetTCP matches TCP, not a fragment, and ports.
func (m *Match) SetTCP(src, srcMask, dst, dstMask uint16) {
	m.setL4(frame.ProtoTCP)
	m.setField(fieldTCPSrc, uint64(src), uint64(srcMask))
	m.setField(fieldTCPDst, uint64(dst), uint64(dstMask))
}

// SetUDP matches UDP, not a fragment, and ports.
func (m *Match) SetUDP(src, srcMask, dst, dstMask uint16) {
	m.setL4(frame.ProtoUDP)
	m.setField(fieldUDPSrc, uint64(src), uint64(srcMask))
	m.setField(fieldUDPDst, uint64(dst), uint64(dstMask))
}

func (m *Match) setL4(proto uint8) {
	m.setField(fieldProto, uint64(proto), 0xff)
	m.setField(fieldFrag, 0, 1)
}

// checkMatch refuses value bits outside the mask.
func (m *Match) checkMatch() error {
	for i, v := range m.Value {
		if v&^m.Mask[i] != 0 {
			return statusErrorf(StatusBadParam, "match value %#x outside mask %#x in word %d", v,
				m.Mask[i], i)
		}
	}
	return nil
}

// Takes reports whether the frame with this key matches.
func (m *Match) Takes(k *MatchKey) bool {
	for i := range m.Mask {
		if k[i]&m.Mask[i] != m.Value[i] {
			return false
		}
	}
	return true
}

// exactDst returns the unicast destination that the match requires, if any.
func (m *Match) exactDst() (mac uint64, ok bool) {
	mac = fieldDstMAC.getField(&m.Value)
	return mac, fieldDstMAC.getField(&m.Mask) == 1<<48-1 && mac>>40&1 == 0
}

// multicast reports whether the match requires a multicast destination.
func (m *Match) multicast() bool {
	const group = uint64(1) << 40
	if fieldDstMAC.getField(&m.Mask)&fieldDstMAC.getField(&m.Value)&group != 0 {
		return true
	}
	return fieldIPVersion.getField(&m.Value) == 4 && fieldDstIPv4.getField(&m.Mask) >= 0xf0000000 &&
		fieldDstIPv4.getField(&m.Value)>>28 == 0xe
}

func (m Match) String() string { return fmt.Sprintf("%016x/%016x", m.Value[:], m.Mask[:]) }

// matchKey fills k with the fields that flow rules can match.
func matchKey(p *frame.Headers, b []byte, k *MatchKey) {
	*k = MatchKey{}
	k[0] = macBits(b[6:])<<16 | uint64(p.EtherType)
	k[1] = macBits(b) << 16
	if p.Tags > 0 {
		k[1] |= uint64(p.TCI)
		if p.TPID == frame.EtherVLAN {
			fieldCVLAN.putField(k, 1)
		} else {
			fieldSVLAN.putField(k, 1)
		}
	}
	h := b[p.L3At:]
	switch p.L3 {
	case mlx5.L3IPv4:
		fieldIPVersion.putField(k, 4)
		fieldTOS.putField(k, uint64(h[1]))
		fieldSrcIPv4.putField(k, uint64(binary.BigEndian.Uint32(h[12:])))
		fieldDstIPv4.putField(k, uint64(binary.BigEndian.Uint32(h[16:])))
	case mlx5.L3IPv6:
		fieldIPVersion.putField(k, 6)
		fieldTOS.putField(k, uint64(binary.BigEndian.Uint16(h)>>4&0xff))
		fieldFlowLabel.putField(k, uint64(binary.BigEndian.Uint32(h)))
		for i := range 4 {
			k[4+i] = binary.BigEndian.Uint64(h[8+8*i:])
		}
	default:
		return
	}
	fieldProto.putField(k, uint64(p.Proto))
	if p.Fragment {
		fieldFrag.putField(k, 1)
	}
	matchPorts(p, b, k)
}

func matchPorts(p *frame.Headers, b []byte, k *MatchKey) {
	if p.L4At == 0 {
		return
	}
	ports := uint64(binary.BigEndian.Uint32(b[p.L4At:]))
	if p.Proto == frame.ProtoUDP {
		k[3] |= ports
		return
	}
	k[2] |= ports
	fieldTCPFlags.putField(k, uint64(binary.BigEndian.Uint16(b[p.L4At+12:])&0x1ff))
}

// l4Type returns how a completion names the L4 header.
func l4Type(p *frame.Headers, b []byte) uint16 {
	switch {
	case p.L4At == 0:
		return mlx5.L4Other
	case p.Proto == frame.ProtoUDP:
		return mlx5.L4UDP
	case b[p.L4At+13]&frame.TCPACK == 0:
		return mlx5.L4TCP
	case p.L4At+p.L4Len == p.End:
		return mlx5.L4TCPAck
	}
	return mlx5.L4TCPData
}
