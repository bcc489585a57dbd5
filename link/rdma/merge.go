package rdma

import (
	"bytes"
	"encoding/binary"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/tcpfix"
)

// Merging joins consecutive segments of a TCP flow that arrived in one batch, as Linux's GRO does
// and by its rules (linux net/ipv4/af_inet.c, net/ipv6/ip6_offload.c, net/ipv4/tcp_offload.c), for
// a packet costs the stack 2.2 us whatever its size. All headers must be equal but for the IP
// length, identification and checksum and the TCP sequence number and checksum: a changed ACK
// number, window, option (a timestamp's value included), ECN mark or TTL begins anew. A segment
// that is shorter than the first or has PSH or FIN is the last of its run; the merged segment then
// has these flags.

// maxPacket gives the longest IP packet, in bytes.
const maxPacket = 65535

// flowSlots gives the size of the table of open runs, a power of two. Of two flows in one slot each
// ends the other's runs.
const flowSlots = 256

// none ends a chain of frames; also the number of no run.
const none = -1

// run is one packet to deliver: frames of a batch, chained by their numbers in it.
type run struct {
	hdr.Packet
	first, last  int16
	id           uint16 // IPv4 identification to go on with
	seq          uint32 // TCP sequence number to go on with
	headers      int    // bytes before the payload, of TCP or of such datagrams
	mss          int    // payload of the first frame
	payload      int    // of all frames
	datagrams    int    // frames of a run of datagrams; 0: no datagram may be added to it
	regular      bool   // next may add to it
	fastPath     bool   // may take the fast path
	ackFirst     ackFirst
	ackSeq       uint32 // the number of that ACK
	stamp        uint32 // of ackStamped
	supersedable bool   // a pure ACK of something new, see addACK
	acked        uint32 // the ACK number of the flow before it, if supersedable
}

// ackFirst says which ACK without payload is delivered in front of a segment.
type ackFirst uint8

const (
	ackNone    ackFirst = iota
	ackOnly             // the segment's headers
	ackStamped          // likewise, with a timestamp that the segment lacks
)

// merged reports whether the run has more than one frame.
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

	sinks  *sinkFinder // of datagrams, which may be joined; nil: they are not
	queue  int         // that sinks is asked about
	joined bool        // datagrams may be added to some run
	// place in flows of the run of datagrams that began last, if joined
	datagrams uint32

	acks       ackHistory
	superseded uint64 // ACKs of the batch that are left out
}

// newMerger makes a merger of batches of at most so many frames. sent knows what has been sent, on
// the time of c.
func newMerger(batch int, sent *tcpfix.Flows, c clock.Clock) *merger {
	return &merger{runs: make([]run, 0, batch), chain: make([]int16, batch), used: true,
		acks: ackHistory{sent: sent, clock: c, epoch: c.Now()}}
}

// begin starts on a batch.
func (m *merger) begin(batch []dv.Packet) {
	m.batch, m.runs, m.superseded, m.joined = batch, m.runs[:0], 0, false
	if m.used {
		for i := range m.flows {
			m.flows[i] = none
		}
		m.used = false
	}
}

// add puts frame i, whose checksums are verified, into the run it continues or into a new one.
func (m *merger) add(i int, l *hdr.Packet) {
	if m.sinks != nil && l.Proto == hdr.ProtoUDP && !m.off {
		m.addDatagram(i, l)
		return
	}
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
		if payload == 0 && isPlainACK(tcp) {
			m.addACK(i, l, slot)
			return
		}
		if flags&hdr.FlagSYN != 0 {
			m.acks.forget(frame, l)
		}
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

// latest returns the run that began last. There is one after add.
func (m *merger) latest() *run { return &m.runs[len(m.runs)-1] }

// addApart adds frame i, a TCP segment that goes by itself: the stack is to have it as it is, and
// no other of its flow overtakes it.
func (m *merger) addApart(i int, l *hdr.Packet) {
	m.flows[l.FlowHash(m.batch[i].Data)%flowSlots] = none
	m.addSingle(i, l)
}

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

// Most frames of a bulk transfer differ from the one before only in fields that do not prevent
// merging. Such a frame is added to its run by a comparison of headers, in words, with the run's
// first frame: all else, from its destination to its flow, is known of that one. All others are
// parsed, with the same result.

// isRegular reports whether next may add frames to the run that begins with p: the NIC vouches for
// them, and they have no option that flows.Received would change.
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

// lengthAndID returns the length of the TCP payload by frame's IP header and its IPv4
// identification (IPv6: something else), given that it has the headers of r.
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

// Acknowledgments are cumulative: of several pure ACKs of a flow in one batch, with nothing of the
// flow between them, the last one says everything. netstack handles each of them alone, in 2 us,
// and answers it with a packet as large as what it acknowledged, 15 to 40 KiB in place of 64. The
// earlier ones are therefore left out, as Linux leaves them out for a socket that is in use (linux
// net/ipv4/tcp_ipv4.c, tcp_add_backlog).
//
// Only an ACK whose absence netstack cannot notice is left out: it acknowledges something new, so
// that duplicate ACKs, window updates, keep-alive and window probes are all delivered, and has
// neither SACK nor ECE. The later one must be acceptable wherever the earlier one is, or a forged
// ACK would suppress a genuine one: it acknowledges nothing that has not been sent, and its
// timestamp neither goes back (RFC 7323 section 5.3, PAWS) nor leaps ahead.

const (
	// ackHistorySize gives the size of the table of what flows have acknowledged, a power of two.
	// Of two flows in one place each has the other's next ACK delivered.
	ackHistorySize = 1 << 10
	// slowStartParts is in how many ACKs at least a window is acknowledged while it may still grow
	// to twice its size per round trip. HyStart, which ends that before packets are lost, wants
	// eight samples of the round trip per window (gVisor transport/tcp/cubic.go nRTTSample).
	slowStartParts = 16
	// slowStartRounds says how many windows a flow has acknowledged once that must be over: in slow
	// start a window is what has been acknowledged so far and the initial window.
	slowStartRounds = 4
	// sampledRound gives the shortest round trip that HyStart needs samples of: it looks for one
	// that is 4 ms longer than the one before. netstack knows round trips in milliseconds, and
	// those of less than one, as within a rack, as 0: to them each sample says that slow start
	// must end.
	sampledRound = 2 * time.Millisecond
	// maxStampStep says how far the timestamps of two ACKs of a batch are apart at most: a second
	// of a clock that counts microseconds (RFC 7323 section 5.4 allows 1 ms to 1 s per tick).
	maxStampStep = 1 << 20
)

// ackHistory knows what flows have acknowledged by pure ACKs. One worker owns it.
type ackHistory struct {
	sent  *tcpfix.Flows
	clock clock.Clock
	epoch time.Time
	flows [ackHistorySize]ackedFlow // by hash
}

// ackedFlow holds what the pure ACKs of a flow have acknowledged.
type ackedFlow struct {
	hash  uint64        // of the flow, by tcpfix.Flows.Key; 0: no flow
	began time.Duration // when the round trip began that ends with an ACK beyond roundEnd
	round time.Duration // how long the one before took, 0: not known
	ack   uint32        // the number of the latest one
	total uint32        // bytes since the first one; at most maxAcked
	// roundEnd says where the flow's data ended at began.
	roundEnd uint32
}

const maxAcked = 1 << 31

// forget drops what is known of the flow of a received segment, which begins anew.
func (h *ackHistory) forget(frame []byte, l *hdr.Packet) {
	h.flows[l.ReceivedFlow(frame, h.sent.Key())%ackHistorySize].hash = 0
}

// progress holds what a pure ACK acknowledges.
type progress struct {
	flow   *ackedFlow
	before uint32 // the ACK number of the flow before it
	end    uint32 // where the flow's data ends
	fresh  bool   // its number is higher, and no higher than end
}

// note takes note of a pure ACK.
func (h *ackHistory) note(frame []byte, l *hdr.Packet) (p progress) {
	hash := l.ReceivedFlow(frame, h.sent.Key())
	_, ack := hdr.Numbers(frame[l.L4:])
	end, known := h.sent.DataEnd(hash)
	if !known || hdr.Before(end, ack) { // netstack refuses what was never sent
		return progress{}
	}
	f := &h.flows[hash%ackHistorySize]
	if f.hash != hash {
		*f = ackedFlow{hash: hash, ack: ack, began: h.clock.Since(h.epoch), roundEnd: end}
		return progress{}
	}
	p = progress{flow: f, before: f.ack, end: end, fresh: hdr.Before(f.ack, ack)}
	if p.fresh {
		f.total = min(f.total+(ack-f.ack), maxAcked)
	}
	if f.ack = ack; hdr.Before(f.roundEnd, ack) {
		now := h.clock.Since(h.epoch)
		f.round, f.began, f.roundEnd = max(now-f.began, 1), now, end
	}
	return p
}

// joins reports whether the ACKs after the number before may become one. end is where the flow's
// data ends.
func (f *ackedFlow) joins(before, end uint32) bool {
	window := end - before
	return f.total/slowStartRounds > window || f.round > 0 && f.round < sampledRound ||
		(f.ack-before)*slowStartParts <= window
}

// isPlainACK reports whether a TCP header, of a segment without payload, has no flag but ACK and no
// option but a timestamp.
func isPlainACK(tcp []byte) bool {
	return tcp[13] == hdr.FlagACK && (tcp[12]>>4 == hdr.TCPLen/4 || hdr.StampOnly(tcp))
}

// addACK adds frame i, a plain ACK, in place of the one before if it supersedes that, else as a run
// of its own.
func (m *merger) addACK(i int, l *hdr.Packet, slot uint32) {
	p := m.acks.note(m.batch[i].Data, l)
	if !p.fresh {
		m.flows[slot] = none
		m.addSingle(i, l)
		return
	}
	if at := m.flows[slot]; at != none {
		r := &m.runs[at]
		if r.supersedable && p.flow.joins(r.acked, p.end) && m.supersedes(i, l, r) {
			m.chain[i] = none
			r.Packet, r.first, r.last = *l, int16(i), int16(i)
			m.superseded++
			return
		}
	}
	m.addSingle(i, l)
	r := m.latest()
	r.supersedable, r.acked = true, p.before
	m.flows[slot], m.used = int16(len(m.runs)-1), true
}

// supersedes reports whether frame i, a plain ACK that acknowledges more than the ACK before, says
// all that r says.
func (m *merger) supersedes(i int, l *hdr.Packet, r *run) bool {
	if l.EtherType != r.EtherType || l.L3 != r.L3 || l.L4 != r.L4 {
		return false
	}
	p, q := &m.batch[i], &m.batch[r.first]
	frame, first := p.Data, q.Data
	if p.VLAN != q.VLAN || !bytes.Equal(frame[:l.L3], first[:l.L3]) ||
		!samePath(frame[l.L3:], first[l.L3:], l.EtherType) {
		return false
	}
	a, b := frame[l.L4:], first[l.L4:]
	if !bytes.Equal(a[:8], b[:8]) || a[12] != b[12] { // ports, sequence number, header length
		return false
	}
	if a[12]>>4 == hdr.TCPLen/4 {
		return true
	}
	const stamp = hdr.TCPLen + 4 // value and echo, behind two NOPs, kind and length
	return stampStep(a[stamp:], b[stamp:]) <= maxStampStep &&
		stampStep(a[stamp+4:], b[stamp+4:]) <= maxStampStep
}

// stampStep returns how far a timestamp is ahead of another one, modulo 2^32.
func stampStep(stamp, before []byte) uint32 {
	return binary.BigEndian.Uint32(stamp) - binary.BigEndian.Uint32(before)
}

// samePath reports whether two IP headers have the same addresses, TTL, traffic class with its ECN
// bits and flow label.
func samePath(h, first []byte, etherType uint16) bool {
	if etherType == hdr.TypeIPv6 {
		return bytes.Equal(h[:4], first[:4]) && bytes.Equal(h[6:hdr.IPv6Len], first[6:hdr.IPv6Len])
	}
	return h[1] == first[1] && h[8] == first[8] &&
		bytes.Equal(h[12:hdr.IPv4Len], first[12:hdr.IPv4Len])
}
