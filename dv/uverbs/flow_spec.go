package uverbs

import "fmt"

// FlowSpec is one condition or action of a flow rule, in the kernel's bytes. Make it with the Spec
// methods of the match types, or with Tag, Drop and Count.
type FlowSpec struct {
	raw      []byte
	wrong    string // error that prevents sending it
	counters *Counters
}

// EthMatch matches the Ethernet header. Bits outside a mask must be zero in the value. A zero
// VLANMask matches tagged and untagged frames; "untagged only" cannot be expressed. EtherType is
// the one after the last tag.
type EthMatch struct {
	Dst, DstMask   [6]byte
	Src, SrcMask   [6]byte
	EtherType      uint16 // 0 matches any
	VLAN, VLANMask uint16 // tag control information of a customer tag; 0x0fff masks the id
	EtherTypeMask  uint16 // mask of EtherType; default 0xffff when EtherType is not 0
}

// Spec encodes the condition.
func (m EthMatch) Spec() FlowSpec {
	if m.EtherType != 0 && m.EtherTypeMask == 0 {
		m.EtherTypeMask = 0xffff
	}
	return newSpec(FlowSpecTypeEth,
		FlowEthFilter{DstMAC: m.Dst, SrcMAC: m.Src,
			EtherType: ToBE16(m.EtherType), VLANTag: ToBE16(m.VLAN)},
		FlowEthFilter{DstMAC: m.DstMask, SrcMAC: m.SrcMask, EtherType: ToBE16(m.EtherTypeMask),
			VLANTag: ToBE16(m.VLANMask)})
}

// ExactMAC gives the mask of a MAC address of which all bits must match.
var ExactMAC = [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// IPv4Match matches the IPv4 header; the zero value matches any. (TTL and flags cannot be matched
// on mlx5.)
type IPv4Match struct {
	Src, SrcMask     [4]byte
	Dst, DstMask     [4]byte
	Proto, ProtoMask uint8
	TOS, TOSMask     uint8
}

// Spec encodes the condition.
func (m IPv4Match) Spec() FlowSpec {
	return newSpec(FlowSpecTypeIPv4,
		FlowIPv4Filter{SrcIP: m.Src, DstIP: m.Dst, Proto: m.Proto, TOS: m.TOS},
		FlowIPv4Filter{SrcIP: m.SrcMask, DstIP: m.DstMask, Proto: m.ProtoMask, TOS: m.TOSMask})
}

// IPv6Match matches the IPv6 header; the zero value matches any. (The hop limit cannot be matched
// on mlx5.)
type IPv6Match struct {
	Src, SrcMask                   [16]byte
	Dst, DstMask                   [16]byte
	FlowLabel, FlowLabelMask       uint32
	NextHeader, NextHeaderMask     uint8
	TrafficClass, TrafficClassMask uint8
}

// Spec encodes the condition.
func (m IPv6Match) Spec() FlowSpec {
	return newSpec(FlowSpecTypeIPv6,
		FlowIPv6Filter{SrcIP: m.Src, DstIP: m.Dst, FlowLabel: ToBE32(m.FlowLabel),
			NextHdr: m.NextHeader, TrafficClass: m.TrafficClass},
		FlowIPv6Filter{SrcIP: m.SrcMask, DstIP: m.DstMask, FlowLabel: ToBE32(m.FlowLabelMask),
			NextHdr: m.NextHeaderMask, TrafficClass: m.TrafficClassMask})
}

// PortMatch matches the ports of a TCP or UDP header; the zero value matches any ports, so the
// condition is then just "is TCP" or "is UDP". Fragments other than the first have no ports and do
// not match.
type PortMatch struct {
	Dst, DstMask uint16
	Src, SrcMask uint16
}

// TCP encodes the condition that the frame is TCP with these ports.
func (m PortMatch) TCP() FlowSpec { return m.flowSpec(FlowSpecTypeTCP) }

// UDP encodes the condition that the frame is UDP with these ports.
func (m PortMatch) UDP() FlowSpec { return m.flowSpec(FlowSpecTypeUDP) }

func (m PortMatch) flowSpec(kind uint32) FlowSpec {
	return newSpec(kind,
		FlowTCPUDPFilter{DstPort: ToBE16(m.Dst), SrcPort: ToBE16(m.Src)},
		FlowTCPUDPFilter{DstPort: ToBE16(m.DstMask), SrcPort: ToBE16(m.SrcMask)})
}

// Tag makes completions of matching frames carry id, which has 24 bits.
func Tag(id uint32) FlowSpec {
	const n = 16
	s := FlowSpec{raw: bytesOf(FlowSpecActionTag{Hdr: FlowSpecHdr{Type: FlowSpecTypeActionTag,
		Size: n}, TagID: id})}
	if id >= 1<<24 {
		s.wrong = fmt.Sprintf("tag %#x has more than 24 bits", id)
	}
	return s
}

// Drop makes the device drop matching frames. The rule's queue pair gets none of them.
func Drop() FlowSpec {
	const n = 8
	return FlowSpec{raw: bytesOf(FlowSpecActionDrop{Hdr: FlowSpecHdr{Type: FlowSpecTypeActionDrop,
		Size: n}})}
}

// Count makes c count the matching frames and their bytes.
func Count(c *Counters) FlowSpec {
	const n = 16
	return FlowSpec{counters: c,
		raw: bytesOf(FlowSpecActionCount{Hdr: FlowSpecHdr{Type: FlowSpecTypeActionCount, Size: n},
			Handle: c.handle})}
}

// Inner returns the condition applied to the header inside a tunnel.
func (s FlowSpec) Inner() FlowSpec {
	var h FlowSpecHdr
	GetStruct(s.raw, &h)
	h.Type |= FlowSpecTypeInner
	s.raw = append([]byte(nil), s.raw...)
	PutStruct(s.raw, h)
	return s
}

// newSpec encodes header, value and mask.
func newSpec(kind uint32, value, mask any) FlowSpec {
	v, m := bytesOf(value), bytesOf(mask)
	head := bytesOf(FlowSpecHdr{Type: kind, Size: uint16(8 + len(v) + len(m))})
	s := FlowSpec{raw: append(append(head, v...), m...)}
	for i := range v {
		if v[i]&^m[i] != 0 {
			s.wrong = fmt.Sprintf("byte %d of the value, %#x, has bits outside the mask, %#x", i,
				v[i], m[i])
		}
	}
	return s
}
