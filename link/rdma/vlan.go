package rdma

import (
	"encoding/binary"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

const (
	typeVLAN = 0x8100
	typeQinQ = 0x88a8
	vlanLen  = 4
	vlanID   = 0x0fff // of the tag control information
)

// stripVLAN reads the frame's Ethernet type behind its tag, which it takes out. It reports whether
// the frame is of our VLAN; if we are in none, a tag of VLAN 0, a mere priority, is as good as no
// tag (IEEE 802.1Q-2018 6.9).
func (w *worker) stripVLAN(p *dv.Packet, l *hdr.Packet) bool {
	frame := p.Data
	l.EtherType, l.L3 = binary.BigEndian.Uint16(frame[12:]), hdr.EthLen
	stripped := p.Flags&dv.RxVLAN != 0
	switch {
	case l.EtherType == typeQinQ:
		return false
	case l.EtherType != typeVLAN:
		return w.vlan == 0 && !stripped || stripped && p.VLAN&vlanID == w.vlan
	case stripped || len(frame) < hdr.EthLen+vlanLen ||
		binary.BigEndian.Uint16(frame[14:])&vlanID != w.vlan:
		return false
	}
	copy(frame[vlanLen:], frame[:12])
	p.Data = frame[vlanLen:]
	l.EtherType = binary.BigEndian.Uint16(p.Data[12:])
	return true
}

// addVLAN gives the packet about to be posted the tag of our VLAN, if we are in one. Its priority
// (PCP) is the class selector of the packet's DSCP, its upper three bits, as the NIC itself maps
// DSCP where it is told to trust it.
func (s *sender) addVLAN() {
	p := &s.packet
	if s.vlan == 0 || len(p.Bufs) == 0 {
		return
	}
	p.Flags |= dv.TxVLAN
	p.VLAN = dv.VLANTag(hdr.ClassSelector(p.Bufs[0]), s.vlan)
}
