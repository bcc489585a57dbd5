package rdma

import (
	"bytes"
	"encoding/binary"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// Merging joins consecutive segments of a TCP flow that arrived in one batch, as Linux's GRO does
// and by its rules (linux net/ipv4/af_inet.c, net/ipv6/ip6_offload.c, net/ipv4/tcp_offload.c), for
// a packet costs the stack 2.2 us whatever its size. All headers must be equal but for the IP
// length, identification and checksum and the TCP sequence number and checksum: a changed ACK
// number, window, option (a timestamp's value included), ECN mark or TTL begins anew. A segment
// that is shorter than the first or has PSH or FIN is the last of its run; the merged segment then
// has these flags.

// maxPacket is the longest IP packet, in bytes.
const maxPacket = 65535

// flowSlots is the size of the table of open runs, a power of two. Of two flows in one slot each
// ends the other's runs.
const flowSlots = 256

// none ends a chain of frames; also the number of no run.
const none = -1

// run is one packet to deliver: frames of a batch, chained by their numbers in it.
type run struct {
	hdr.Packet
	first, last int16
	id          uint16 // IPv4 identification to go on with
	seq         uint32 // TCP sequence number to go on with
	headers     int    // bytes before the TCP payload
	mss         int    // payload of the first frame
	payload     int    // of all frames
	regular     bool   // next may add to it
	fastPath    bool   // may take the fast path
	ackFirst    bool   // an ACK without the payload is delivered first
}

// merged is true when the run has more than one frame.
func (r *run) merged() bool { return r.first != r.last }

// merger turns a batch of frames into runs, in the order of their first frames. One worker owns it.
type merger struct {
	batch []dv.Packet
	runs  []run
	chain []int16          // by frame: the next of its run, or none
	flows [flowSlots]int16 // open runs by hash of the flow, or none
	slot  uint32           // of the frame before, in flows
	used  bool             // some of flows is not none
	off   bool
}

func newMerger(batch int) *merger {
	return &merger{runs: make([]run, 0, batch), chain: make([]int16, batch), used: true}
}

// begin starts on a batch.
func (m *merger) begin(batch []dv.Packet) {
	m.batch, m.runs = batch, m.runs[:0]
	if m.used {
		for i := range m.flows {
			m.flows[i] = none
		}
		m.used = false
	}
}

// add puts frame i, whose checksums are verified, into the run it continues or into a new one.
func (m *merger) add(i int, l *hdr.Packet) {
	if m.off || l.Proto != hdr.ProtoTCP || l.L4 == 0 || !l.Plain || l.End-l.L4 < hdr.TCPLen {
		m.addSingle(i, l)
		return
	}
	frame := m.batch[i].Data
	tcp := frame[l.L4:l.End]
	header, flags, slot := int(tcp[12]>>4)*4, tcp[13], l.FlowHash(frame)%flowSlots
	payload := len(tcp) - header
	if header < hdr.TCPLen || payload <= 0 || flags&hdr.FlagACK == 0 ||
		flags&hdr.FlagsSpecial != 0 {
		m.flows[slot] = none // nothing that comes later may overtake it
		m.addSingle(i, l)
		return
	}
	at := m.flows[slot]
	if at == none || !m.continues(&m.runs[at], frame, l, header, payload) {
		at = int16(len(m.runs))
		m.addSingle(i, l)
		r := &m.runs[at]
		r.headers, r.mss, r.seq = l.L4+header, payload, binary.BigEndian.Uint32(tcp[4:])
		r.regular = r.isRegular(&m.batch[i])
	} else {
		r := &m.runs[at]
		m.chain[r.last], m.chain[i], r.last = int16(i), none, int16(i)
	}
	id := binary.BigEndian.Uint16(frame[l.L3+4:]) // means nothing in IPv6
	if m.runs[at].grow(payload, id, flags) {
		at = none
	}
	m.flows[slot], m.slot, m.used = at, slot, true
}

// grow takes note that a frame with so much payload was added, and reports whether that is the
// run's last.
func (r *run) grow(payload int, id uint16, flags byte) bool {
	r.payload += payload
	r.seq += uint32(payload)
	r.id = id + 1
	return payload < r.mss || flags&hdr.FlagsLast != 0
}

// latest is the run that began last. There is one after add.
func (m *merger) latest() *run { return &m.runs[len(m.runs)-1] }

// addSingle adds frame i as a run of its own.
func (m *merger) addSingle(i int, l *hdr.Packet) {
	m.chain[i] = none
	m.runs = append(m.runs, run{Packet: *l, first: int16(i), last: int16(i)})
}

// continues reports whether frame is the next segment of r's flow and its headers permit joining
// it.
func (m *merger) continues(r *run, frame []byte, l *hdr.Packet, header, payload int) bool {
	first := m.batch[r.first].Data
	if l.EtherType != r.EtherType || l.L3 != r.L3 || l.L4+header != r.headers ||
		payload > r.mss || r.headers-r.L3+r.payload+payload > maxPacket {
		return false
	}
	return bytes.Equal(frame[:l.L3], first[:l.L3]) && r.sameIP(frame[l.L3:], first[l.L3:]) &&
		r.sameTCP(frame[l.L4:r.headers], first[l.L4:r.headers])
}

func (r *run) sameIP(h, first []byte) bool {
	if r.EtherType == hdr.TypeIPv6 { // all but the payload length
		return bytes.Equal(h[:4], first[:4]) && bytes.Equal(h[6:hdr.IPv6Len], first[6:hdr.IPv6Len])
	}
	const dontFragment = 0x40
	return h[0] == first[0] && h[1] == first[1] && // version and length, TOS
		h[6] == first[6] && h[8] == first[8] && // flags (fragments do not come here), TTL
		// Without DF the identification must count (RFC 6864).
		(h[6]&dontFragment != 0 || binary.BigEndian.Uint16(h[4:]) == r.id) &&
		bytes.Equal(h[12:hdr.IPv4Len], first[12:hdr.IPv4Len])
}

func (r *run) sameTCP(h, first []byte) bool {
	return binary.BigEndian.Uint32(h[4:]) == r.seq &&
		bytes.Equal(h[:4], first[:4]) && // ports
		bytes.Equal(h[8:13], first[8:13]) && // ACK number, header length
		// flags; the first of an open run has neither PSH nor FIN
		h[13]&^hdr.FlagsLast == first[13] &&
		bytes.Equal(h[14:16], first[14:16]) && // window
		bytes.Equal(h[hdr.TCPLen:], first[hdr.TCPLen:])
}
