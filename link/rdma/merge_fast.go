package rdma

import (
	"encoding/binary"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// Most frames of a bulk transfer differ from the one before only in fields that do not prevent
// merging. Such a frame is added to its run by a comparison of headers, in words, with the run's
// first frame: all else, from its destination to its flow, is known of that one. All others are
// parsed, with the same result.

// isRegular reports whether next may add frames to the run that begins with p: the NIC vouches for
// them, and they have no option that flows.received would change.
func (r *run) isRegular(p *dv.Packet) bool {
	const vouched = dv.RxL3OK | dv.RxL4OK
	if p.Flags&vouched != vouched || r.L3 != hdr.EthLen {
		return false
	}
	return r.headers == r.L4+hdr.TCPLen || hdr.StampOnly(p.Data[r.L4:r.headers])
}

// next adds frame i to its flow's open run, if that is regular and obviously goes on. False:
// nothing is known of the frame.
func (m *merger) next(i int) bool {
	const told = dv.RxL3OK | dv.RxL4OK | dv.RxVLAN
	p := &m.batch[i]
	frame := p.Data
	r := m.openRun(frame)
	if r == nil {
		return false
	}
	first := &m.batch[r.first]
	if !r.regular || (p.Flags^first.Flags)&told != 0 || p.VLAN != first.VLAN {
		return false
	}
	payload, id := r.lengthAndID(frame)
	if payload <= 0 || payload > r.mss || r.headers+payload > len(frame) ||
		r.headers-r.L3+r.payload+payload > maxPacket {
		return false
	}
	if r.headersDiffer(frame, first.Data, id) {
		return false
	}
	m.chain[r.last], m.chain[i], r.last = int16(i), none, int16(i)
	if r.grow(payload, id, frame[r.L4+13]) {
		m.flows[m.slot] = none
	}
	return true
}

// openRun finds the run that frame may go on with, most often that of the frame before, and leaves
// its slot in m.slot. Nil: there is none.
func (m *merger) openRun(frame []byte) *run {
	if !m.used || len(frame) < hdr.EthLen+hdr.IPv6Len+hdr.TCPLen {
		return nil
	}
	if at := m.flows[m.slot]; at != none {
		r := &m.runs[at]
		if differ4(frame[r.L4:], m.batch[r.first].Data[r.L4:]) == 0 {
			return r
		}
	}
	l := hdr.Packet{EtherType: hdr.TypeIPv4, L3: hdr.EthLen, L4: hdr.EthLen + hdr.IPv4Len}
	if frame[12] == hdr.TypeIPv6>>8 {
		l.EtherType, l.L4 = hdr.TypeIPv6, hdr.EthLen+hdr.IPv6Len
	}
	m.slot = l.FlowHash(frame) % flowSlots
	if at := m.flows[m.slot]; at != none {
		return &m.runs[at]
	}
	return nil
}

// lengthAndID is the length of the TCP payload by frame's IP header and its IPv4 identification
// (IPv6: something else), given that it has the headers of r.
func (r *run) lengthAndID(frame []byte) (payload int, id uint16) {
	h := (*[hdr.IPv4Len]byte)(frame[hdr.EthLen:])
	if r.EtherType == hdr.TypeIPv6 {
		return hdr.EthLen + hdr.IPv6Len + int(binary.BigEndian.Uint16(h[4:])) - r.headers,
			binary.BigEndian.Uint16(h[4:])
	}
	return hdr.EthLen + int(binary.BigEndian.Uint16(h[2:])) - r.headers,
		binary.BigEndian.Uint16(h[4:])
}

// headersDiffer compares frame's headers with those of the first frame of r, which is regular, by
// the rules of sameIP and sameTCP. Neither is shorter than r.headers.
func (r *run) headersDiffer(frame, first []byte, id uint16) bool {
	a, b := (*[hdr.EthLen + hdr.IPv4Len]byte)(frame), (*[hdr.EthLen + hdr.IPv4Len]byte)(first)
	d := differ8(a[:], b[:]) | differ8(a[8:], b[8:]) // Ethernet; IP version, length, TOS
	if r.EtherType == hdr.TypeIPv6 {
		d |= differIPv6((*[hdr.EthLen + hdr.IPv6Len]byte)(frame),
			(*[hdr.EthLen + hdr.IPv6Len]byte)(first))
	} else {
		const dontFragment = 0x40
		d |= differ4(a[20:], b[20:]) | differ8(a[26:], b[26:]) // flags, TTL, protocol; addresses
		if a[20]&dontFragment == 0 && id != r.id {
			return true
		}
	}
	const last = hdr.FlagsLast << 40 // in bytes 8 to 15 of a TCP header
	t, u := (*[hdr.TCPLen]byte)(frame[r.L4:]), (*[hdr.TCPLen]byte)(first[r.L4:])
	d |= differ4(t[:], u[:]) | uint64(binary.BigEndian.Uint32(t[4:])^r.seq) // ports
	// ACK number, header length, flags, window
	d |= differ8(t[8:], u[8:]) &^ last
	if r.headers > r.L4+hdr.TCPLen {
		t, u := (*[12]byte)(frame[r.L4+hdr.TCPLen:]), (*[12]byte)(first[r.L4+hdr.TCPLen:])
		d |= differ8(t[:], u[:]) | differ4(t[8:], u[8:])
	}
	return d != 0
}

// differIPv6 compares what is behind the first two bytes of two IPv6 headers, but for the payload
// length.
func differIPv6(a, b *[hdr.EthLen + hdr.IPv6Len]byte) uint64 {
	d := uint64(binary.LittleEndian.Uint16(a[16:]) ^ binary.LittleEndian.Uint16(b[16:]))
	return d | differ8(a[20:], b[20:]) | differ8(a[28:], b[28:]) |
		differ8(a[36:], b[36:]) | differ8(a[44:], b[44:]) | differ8(a[46:], b[46:])
}

// differ8 and differ4 are not 0 if the first eight or four bytes differ, in those bits of a
// little-endian word.
func differ8(a, b []byte) uint64 {
	return binary.LittleEndian.Uint64(a) ^ binary.LittleEndian.Uint64(b)
}
func differ4(a, b []byte) uint64 {
	return uint64(binary.LittleEndian.Uint32(a) ^ binary.LittleEndian.Uint32(b))
}
