package simnic

import (
	"encoding/binary"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

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
