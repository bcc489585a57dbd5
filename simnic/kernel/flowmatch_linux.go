package kernel

import (
	"encoding/binary"
	"slices"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"golang.org/x/sys/unix"
)

// enotsupp is ENOTSUPP of include/linux/errno.h, which older drivers return to user space.
const enotsupp unix.Errno = 524

// translate turns the specifications into the hardware's match (is_valid_attr, parse_flow_attr in
// drivers/infiniband/hw/mlx5/fs.c).
func (r *rule) translate(a *simnic.FlowAttr) unix.Errno {
	if !r.typesAgree() || !r.protocolsAgree() {
		return unix.EINVAL
	}
	for i := range r.specs {
		if errno := r.specs[i].translate(a); errno != 0 {
			if errno == unix.EOPNOTSUPP && r.node.linux.isRelease(Linux54) {
				return enotsupp
			}
			return errno
		}
	}
	if a.Type != simnic.FlowNormal {
		a.HasTag, a.Tag = false, 0
		return 0 // created without these conditions
	}
	for i := range r.specs {
		if r.specs[i].outsideMask(r.hasTransport()) {
			return unix.EINVAL
		}
	}
	return 0
}

// typesAgree reports whether an Ethernet type fits the IP specification after it: it is that of the
// IP version, with a full mask.
func (r *rule) typesAgree() bool {
	mask, etherType := uint16(0), uint16(0)
	agree := func(want uint16) bool { return mask == 0 || mask == 0xffff && etherType == want }
	for _, s := range r.specs {
		switch {
		case s.kind == uverbs.FlowSpecTypeEth:
			mask, etherType = binary.BigEndian.Uint16(s.mask[12:]),
				binary.BigEndian.Uint16(s.value[12:])
		case s.kind == uverbs.FlowSpecTypeIPv4 && !agree(frame.EtherIPv4),
			s.kind == uverbs.FlowSpecTypeIPv6 && !agree(frame.EtherIPv6):
			return false
		}
	}
	return true
}

// protocolsAgree reports whether the IP protocol, if matched, is that of the transport
// specification after it (set_proto in fs.c).
func (r *rule) protocolsAgree() bool {
	mask, proto := uint8(0), uint8(0)
	agree := func(want uint8) bool { return mask == 0 || mask == 0xff && proto == want }
	for _, s := range r.specs {
		switch {
		case s.kind == uverbs.FlowSpecTypeIPv4:
			mask, proto = s.mask[8], s.value[8]
		case s.kind == uverbs.FlowSpecTypeIPv6:
			mask, proto = s.mask[36], s.value[36]
		case s.kind == uverbs.FlowSpecTypeTCP && !agree(frame.ProtoTCP),
			s.kind == uverbs.FlowSpecTypeUDP && !agree(frame.ProtoUDP):
			return false
		}
	}
	return true
}

// outsideMask reports whether the value has bits outside the mask, which the steering code refuses.
// It ignores a tag whose mask is zero, and fields that cannot be matched. A transport specification
// sets the IP protocol.
func (s *flowSpec) outsideMask(transport bool) bool {
	for i, v := range s.value {
		var ignored bool
		switch s.kind {
		case uverbs.FlowSpecTypeEth:
			ignored = i >= 14 && s.mask[14]|s.mask[15] == 0
		case uverbs.FlowSpecTypeIPv4:
			ignored = i >= 10 || i == 8 && transport
		case uverbs.FlowSpecTypeIPv6:
			ignored = i >= 38 || i == 36 && transport
		}
		if v&^s.mask[i] != 0 && !ignored {
			return true
		}
	}
	return false
}

func (r *rule) hasTransport() bool {
	return slices.ContainsFunc(r.specs, func(s flowSpec) bool {
		return s.kind == uverbs.FlowSpecTypeTCP || s.kind == uverbs.FlowSpecTypeUDP
	})
}

func (s *flowSpec) translate(a *simnic.FlowAttr) unix.Errno {
	switch s.kind {
	case uverbs.FlowSpecTypeEth:
		s.ethMatch(&a.Match)
	case uverbs.FlowSpecTypeIPv4:
		if s.mask[10]|s.mask[11] != 0 {
			return unix.EOPNOTSUPP // TTL, flags
		}
		s.ipv4(&a.Match)
	case uverbs.FlowSpecTypeIPv6:
		if s.mask[38] != 0 {
			return unix.EOPNOTSUPP // hop limit
		}
		s.ipv6(&a.Match)
	case uverbs.FlowSpecTypeTCP:
		a.Match.SetTCP(s.portMasks())
	case uverbs.FlowSpecTypeUDP:
		a.Match.SetUDP(s.portMasks())
	case uverbs.FlowSpecTypeActionTag:
		if s.tag >= 1<<24 {
			return unix.EINVAL
		}
		a.HasTag, a.Tag = true, s.tag
	case uverbs.FlowSpecTypeActionDrop:
		a.Drop = true
	case uverbs.FlowSpecTypeActionCount:
	default:
		return unix.EOPNOTSUPP // tunnels and inner headers
	}
	return 0
}

func (s *flowSpec) ethMatch(m *simnic.Match) {
	be := binary.BigEndian
	m.SetDstMAC([6]byte(s.value), [6]byte(s.mask))
	m.SetSrcMAC([6]byte(s.value[6:]), [6]byte(s.mask[6:]))
	m.SetEtherType(be.Uint16(s.value[12:]), be.Uint16(s.mask[12:]))
	m.SetVLAN(be.Uint16(s.value[14:]), be.Uint16(s.mask[14:]))
}

func (s *flowSpec) ipv4(m *simnic.Match) {
	m.SetIPVersion(4)
	m.SetIPv4([4]byte(s.value), [4]byte(s.mask), [4]byte(s.value[4:]), [4]byte(s.mask[4:]))
	m.SetProto(s.value[8], s.mask[8])
	m.SetTOS(s.value[9], s.mask[9])
}

func (s *flowSpec) ipv6(m *simnic.Match) {
	be := binary.BigEndian
	m.SetIPVersion(6)
	m.SetIPv6([16]byte(s.value), [16]byte(s.mask), [16]byte(s.value[16:]), [16]byte(s.mask[16:]))
	m.SetFlowLabel(be.Uint32(s.value[32:]), be.Uint32(s.mask[32:]))
	m.SetProto(s.value[36], s.mask[36])
	m.SetTOS(s.value[37], s.mask[37])
}

// portMasks returns the source and destination port with their masks.
func (s *flowSpec) portMasks() (src, srcMask, dst, dstMask uint16) {
	be := binary.BigEndian
	return be.Uint16(s.value[2:]), be.Uint16(s.mask[2:]), be.Uint16(s.value), be.Uint16(s.mask)
}
