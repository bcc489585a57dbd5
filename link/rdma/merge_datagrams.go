package rdma

import (
	"bytes"
	"encoding/binary"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// Datagrams of one flow that arrived in one batch are delivered as one to a sink that asks for it,
// by the rules of Linux's GRO for a socket with UDP_GRO (linux net/ipv4/udp_offload.c
// udp_gro_receive_segment): the headers are equal but for length, checksum and IPv4 identification,
// as of TCP's segments, and so are the sizes but for the last's, which may be less. Finding the
// sink, and a place with it, then takes once for all what it takes for each otherwise. What the
// sink refuses is made single datagrams again, so that netstack never sees a run of them.

// vouchedFor holds what a NIC says of a frame whose checksums are right.
const vouchedFor = dv.RxL3OK | dv.RxL4OK

// maxDatagrams bounds the datagrams of a run: linux net/ipv4/udp_offload.c UDP_GRO_CNT_MAX.
const maxDatagrams = 64

// SegmentSink takes datagrams of one flow as one.
type SegmentSink interface {
	DatagramSink
	// Segments says whether the sink has use for that now. What it says of one batch holds for
	// that batch only; DeliverSegments may be called a moment after it has changed.
	Segments() bool
	// DeliverSegments does what Deliver does for at least two datagrams, whose payloads are given
	// in the order of their arrival: ip and udp are of the first of them, at is when it came. The
	// others have the same addresses, ports, class, time to live and "don't fragment" flag, and
	// the same size but for the last, which may be shorter. None is empty. The caller keeps all.
	// False: none of them is taken, and netstack decides about each.
	DeliverSegments(ip, udp []byte, payloads [][]byte, at time.Time) bool
}

// JoinDatagrams says that some sink may ask for datagrams of one flow as one. Until then no worker
// looks for any. It cannot be taken back: a look costs no more than that for a sink.
func (e *Endpoint) JoinDatagrams() { e.joining.Store(true) }

// joiningSinks returns the sinks, nil if none of them can ask for datagrams as one.
func (w *worker) joiningSinks() *sinkFinder {
	if !w.e.joining.Load() {
		return nil
	}
	return w.e.sinks.Load()
}

// wantsSegments reports whether the sink of a datagram asks for those of a flow as one.
func (m *merger) wantsSegments(frame []byte, l *hdr.Packet) bool {
	port := binary.BigEndian.Uint16(frame[l.L4+2:])
	sink, can := m.sinks.find(m.queue, l.EtherType == hdr.TypeIPv6, port).(SegmentSink)
	return can && sink.Segments()
}

// addDatagram puts frame i, whose checksums are verified, into the run of datagrams that it
// continues or into a new one.
func (m *merger) addDatagram(i int, l *hdr.Packet) {
	frame := m.batch[i].Data
	if l.L4 == 0 || !l.Plain || l.End-l.L4 < hdr.UDPLen { // nothing behind it may overtake it
		m.endDatagrams()
		m.addSingle(i, l)
		return
	}
	slot, payload := l.FlowHash(frame)%flowSlots, l.End-l.L4-hdr.UDPLen
	if m.joinDatagram(i, l, slot, payload) {
		return
	}
	m.flows[slot] = none
	m.addSingle(i, l)
	whole := int(binary.BigEndian.Uint16(frame[l.L4+4:])) == hdr.UDPLen+payload
	if payload == 0 || !whole || !m.wantsSegments(frame, l) {
		return
	}
	r := m.latest()
	r.headers, r.mss = l.L4+hdr.UDPLen, payload
	r.growDatagrams(payload, binary.BigEndian.Uint16(frame[l.L3+4:]))
	m.flows[slot], m.used = int16(len(m.runs)-1), true
	m.joined, m.datagrams = true, slot
}

// joinDatagram adds frame i, a datagram with so much payload, to the run of its slot, if it may.
func (m *merger) joinDatagram(i int, l *hdr.Packet, slot uint32, payload int) bool {
	at := m.flows[slot]
	if at == none || !m.joins(&m.runs[at], i, l, payload) {
		return false
	}
	r := &m.runs[at]
	m.chain[r.last], m.chain[i], r.last = int16(i), none, int16(i)
	if r.growDatagrams(payload, binary.BigEndian.Uint16(m.batch[i].Data[l.L3+4:])) {
		m.flows[slot] = none
	}
	return true
}

// nextDatagram does for a datagram what next does for a segment: it adds frame i to the run of
// datagrams that began last, if that is open and obviously goes on with it and the NIC vouches for
// the frame. False: nothing is known of the frame.
func (m *merger) nextDatagram(i int) bool {
	at := m.flows[m.datagrams]
	if !m.joined || at == none || m.batch[i].Flags&vouchedFor != vouchedFor {
		return false
	}
	r, frame := &m.runs[at], m.batch[i].Data
	if r.datagrams == 0 || len(frame) <= r.headers {
		return false
	}
	l, ip := r.Packet, frame[r.L3:]
	if l.EtherType == hdr.TypeIPv6 {
		l.End = l.L4 + int(binary.BigEndian.Uint16(ip[4:]))
	} else {
		l.End = l.L3 + int(binary.BigEndian.Uint16(ip[2:]))
		if ip[7] != 0 || ip[9] != hdr.ProtoUDP { // a fragment's offset; sameIP compares the flags
			return false
		}
	}
	return l.End > r.headers && l.End <= len(frame) && !l.LacksChecksum(frame) &&
		m.joinDatagram(i, &l, m.datagrams, l.End-r.headers)
}

// growDatagrams takes note that a datagram with so much payload was added, and reports whether that
// is the run's last.
func (r *run) growDatagrams(payload int, id uint16) bool {
	r.payload += payload
	r.id = id + 1
	r.datagrams++
	return payload < r.mss || r.datagrams == maxDatagrams
}

// joins reports whether frame i, a datagram with so much payload, may be added to r.
func (m *merger) joins(r *run, i int, l *hdr.Packet, payload int) bool {
	if r.datagrams == 0 || l.EtherType != r.EtherType || l.L3 != r.L3 || l.L4 != r.L4 ||
		payload == 0 || payload > r.mss || r.headers-r.L3+r.payload+payload > maxPacket {
		return false
	}
	p, q := &m.batch[i], &m.batch[r.first]
	frame, first := p.Data, q.Data
	return (p.Flags^q.Flags)&dv.RxVLAN == 0 && p.VLAN == q.VLAN &&
		bytes.Equal(frame[:l.L3], first[:l.L3]) && r.sameIP(frame[l.L3:], first[l.L3:]) &&
		bytes.Equal(frame[l.L4:l.L4+4], first[l.L4:l.L4+4]) && // ports
		int(binary.BigEndian.Uint16(frame[l.L4+4:])) == hdr.UDPLen+payload
}

// endDatagrams lets nothing be added to the runs of datagrams so far.
func (m *merger) endDatagrams() {
	if !m.joined {
		return
	}
	for i, at := range m.flows {
		if at != none && m.runs[at].datagrams > 0 {
			m.flows[i] = none
		}
	}
	m.joined = false
}

// splitDatagrams makes run i, of several datagrams, a run of each.
func (m *merger) splitDatagrams(i int) {
	r, n, end := m.runs[i], m.runs[i].datagrams, len(m.runs)
	m.runs = m.runs[:end+n-1] // there are no more runs than frames
	copy(m.runs[i+n:], m.runs[i+1:end])
	for at, left := r.first, r.payload; at != none; i, left = i+1, left-r.mss {
		single := run{Packet: r.Packet, first: at, last: at, fastPath: r.fastPath}
		single.End = r.headers + min(r.mss, left)
		m.runs[i] = single
		at, m.chain[at] = m.chain[at], none
	}
}

// deliverSegments offers a run of several datagrams, which may take the fast path, to a sink, and
// reports whether the sink took it.
func (w *worker) deliverSegments(r *run, sink DatagramSink, at time.Time) bool {
	segments, can := sink.(SegmentSink)
	if !can {
		return false
	}
	w.payloads = w.payloads[:0]
	for i, left := r.first, r.payload; i != none; i, left = w.merge.chain[i], left-r.mss {
		w.payloads = append(w.payloads, w.frames[i].Data[r.headers:][:min(r.mss, left)])
	}
	first := w.frames[r.first].Data
	taken := segments.DeliverSegments(first[r.L3:r.L4], first[r.L4:r.End], w.payloads, at)
	clear(w.payloads)
	if taken {
		w.count.merged.Add(uint64(r.datagrams))
	}
	return taken
}
