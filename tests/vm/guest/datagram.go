//go:build linux

package main

import (
	"encoding/binary"
	"net/netip"

	"github.com/rdma-netstack/rdma-netstack/dv"
)

// datagram is a received UDP frame taken apart.
type datagram struct {
	frame []byte
	l3    int // bytes of an address
	addrs int // offset of the source address
	l4    int // offset of the UDP header
	flow  dv.Flow
}

// parseDatagram takes an unfragmented UDP frame apart.
func parseDatagram(p *dv.Packet) (d datagram, ok bool) {
	d.frame = p.Data
	switch {
	case p.Flags&dv.RxUDP == 0:
		return d, false
	case p.Flags&dv.RxIPv4 != 0:
		d.l3, d.addrs, d.l4 = 4, 14+12, 14+20
	default:
		d.l3, d.addrs, d.l4 = 16, 14+8, 14+40
	}
	src, _ := netip.AddrFromSlice(d.frame[d.addrs : d.addrs+d.l3])
	dst, _ := netip.AddrFromSlice(d.frame[d.addrs+d.l3 : d.addrs+2*d.l3])
	port := func(at int) uint16 { return binary.BigEndian.Uint16(d.frame[at:]) }
	d.flow = dv.Flow{Proto: 17, Src: netip.AddrPortFrom(src, port(d.l4)),
		Dst: netip.AddrPortFrom(dst, port(d.l4+2))}
	return d, true
}

// turn swaps the frame's addresses and ports. The checksums become invalid: the NIC computes them.
func (d *datagram) turn() {
	swap(d.frame[0:6], d.frame[6:12])
	swap(d.frame[d.addrs:d.addrs+d.l3], d.frame[d.addrs+d.l3:d.addrs+2*d.l3])
	swap(d.frame[d.l4:d.l4+2], d.frame[d.l4+2:d.l4+4])
	copy(d.frame[d.l4+6:], "\xba\xad")
	if d.l3 == 4 {
		copy(d.frame[14+10:], "\xba\xad")
	}
}

func swap(a, b []byte) {
	for i := range a {
		a[i], b[i] = b[i], a[i]
	}
}

// segmentSize is the payload of each segment of a packet to be cut.
const segmentSize = 1000

// bulk is a TCP packet to the sender of the datagram, to be cut into segments by the NIC.
func (d *datagram) bulk(segments int) *dv.TxPacket {
	h := make([]byte, d.l4+20)
	copy(h, d.frame[:d.l4])
	swap(h[0:6], h[6:12])
	swap(h[d.addrs:d.addrs+d.l3], h[d.addrs+d.l3:d.addrs+2*d.l3])
	if d.l3 == 4 {
		h[14+9] = 6
	} else {
		h[14+6] = 6
	}
	tcp := h[d.l4:]
	copy(tcp[0:2], d.frame[d.l4+2:])
	copy(tcp[2:4], d.frame[d.l4:])
	tcp[12], tcp[13] = 5<<4, 0x10 // header of 5 words, ACK
	return &dv.TxPacket{Bufs: [][]byte{h, make([]byte, segments*segmentSize)},
		HdrLen: len(h), MSS: segmentSize}
}
