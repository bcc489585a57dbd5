package tcpfix

import (
	"cmp"
	"encoding/binary"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// A message of ICMP about a TCP segment ends a dial, or makes segments smaller.
//
// Behaviour: netstack looks for the connection by the addresses and ports that the message quotes,
// and not at the sequence number. Who guesses the ports, or knows them, can refuse connections and
// slow them down without seeing a packet of them (RFC 5927 sections 4.1 and 7).
//
// Fix: a message is dropped if the segment that it quotes was not sent, as far as that is known: it
// must lie within maxQuoted before the end of what was sent, or be the SYN or what follows it at
// once. Linux has the same check (net/ipv4/tcp_ipv4.c tcp_v4_err). Nothing is known of a flow that
// shares its place in a table with a later one, and of a handshake that we have not begun.
//
// Upstream: docs/upstream/15-message-sequence.md. No longer needed when the rows of
// tests/conformance/tcp on forged messages pass without it.

// maxQuoted is more than any send buffer, in bytes.
const maxQuoted = 1 << 26

// receivedICMP does what Received does for messages of ICMP.
func (f *Flows) receivedICMP(frame []byte, p *hdr.Packet) (c Changes) {
	s, ours := hdr.Quoted(frame, p, f.key)
	if ours && f.forged(&s) {
		return Forged
	}
	if raisePathMTU(frame, p) {
		c = PathMTU
	}
	if ours {
		noteTooBig(&f.resend, &s, frame, p)
	}
	return c
}

// forged reports whether the TCP segment that a received message quotes was never sent.
func (f *Flows) forged(s *hdr.Segment) bool {
	seq := binary.BigEndian.Uint32(s.TCP()[4:])
	_, hash := s.Flow()
	if end, known := f.resend.end(hash); known {
		return end-seq > maxQuoted
	}
	return f.synBurst.excludes(s, seq)
}

// pathMTU keeps forged messages from making segments tiny.
//
// Behaviour: netstack takes any next-hop MTU from a message of a router that a packet was too big,
// and one below the least that IP allows for 0: the connection then sends segments of one byte,
// for good. Who sends such a message has to know addresses and ports, no sequence number (RFC 5927
// section 7). RFC 8201 section 4 has an MTU below 1280 discarded, and Linux heeds none below 552
// (net.ipv4.route.min_pmtu).
//
// Fix: a smaller MTU becomes the least.
//
// Upstream: docs/upstream/14-path-mtu-floor.md. No longer needed when TestPathMTUFloor fails.
const (
	// leastMTU4 and leastMTU6 are in bytes of IP packets.
	leastMTU4 = 552
	leastMTU6 = 1280
)

// raisePathMTU changes a message that a packet was too big, its checksum too (RFC 1624), and
// reports whether it did. A wrong checksum stays wrong.
func raisePathMTU(frame []byte, p *hdr.Packet) bool {
	const headerLen = 8
	if p.L4 == 0 || p.End-p.L4 < headerLen || quotesDatagram(frame[p.L4+headerLen:p.End], p) {
		return false
	}
	h := frame[p.L4 : p.L4+headerLen]
	mtu, least, tooBig := toldMTU(h, p)
	if !tooBig || mtu >= least {
		return false
	}
	if p.Proto == hdr.ProtoICMP {
		least |= uint32(binary.BigEndian.Uint16(h[4:])) << 16
	}
	return setPathMTU(h, least)
}

// toldMTU returns the path's MTU by a message, p, that a packet was too big, and the least that
// counts, in bytes of IP packets. h begins with its ICMP header. False: p is another message.
func toldMTU(h []byte, p *hdr.Packet) (mtu, least uint32, tooBig bool) {
	switch {
	case p.Proto == hdr.ProtoICMP && h[0] == 3 && h[1] == 4: // fragmentation needed
		return uint32(binary.BigEndian.Uint16(h[6:])), leastMTU4, true
	case p.Proto == hdr.ProtoICMPv6 && h[0] == 2:
		return binary.BigEndian.Uint32(h[4:]), leastMTU6, true
	}
	return 0, 0, false
}

// quotesDatagram reports whether a message that quotes b is about a datagram. UDP sockets heed such
// MTUs by Linux's rules (stack/path_mtu.go).
func quotesDatagram(b []byte, p *hdr.Packet) bool {
	const protocol4, protocol6, fragment6 = 9, 6, 44
	if len(b) < hdr.IPv4Len {
		return false
	}
	if p.Proto == hdr.ProtoICMP {
		return b[protocol4] == hdr.ProtoUDP
	}
	return b[protocol6] == hdr.ProtoUDP || b[protocol6] == fragment6
}

// setPathMTU writes bytes 4 to 7 of an ICMP header.
func setPathMTU(h []byte, to uint32) bool {
	sum := uint32(^binary.BigEndian.Uint16(h[2:]))
	for at := 4; at < 8; at += 2 {
		word := uint16(to >> (8 * (6 - at)))
		sum += uint32(^binary.BigEndian.Uint16(h[at:])) + uint32(word)
		binary.BigEndian.PutUint16(h[at:], word)
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(h[2:], ^uint16(sum))
	return true
}

// Behaviour: a router refuses a whole flight as too big, with a message for each segment. netstack
// makes its segments smaller at the first message, takes one packet off the count in flight, and
// sends what fits the window then: one segment. It ignores the other messages, so that the flight
// goes on counting. The acknowledgement of the segment has RACK (RFC 8985) find that all the others
// are lost, which begins the fast recovery of which goBack tells: nothing fits its window, and a
// segment leaves at each timeout. 14 kB, the flight at the beginning of a connection, took 0.8 s
// with a round trip of 2.4 ms. Linux sends again at once what is larger than the new MTU, and
// leaves its window as it is (net/ipv4/tcp_input.c tcp_simple_retransmit).
//
// Fix: the echoes of a flight in which a segment was too big are made older as after a timeout:
// netstack goes on in slow start. Beyond slow start it sends a segment for each acknowledgement, so
// that a large flight on a long path is left to the timeout, which ends the count. What is sent
// again from here is cut to the path's MTU.
//
// Upstream: docs/upstream/39-refused-flight.md. No longer needed when TestRefusedFlight of
// tests/conformance/upstream fails.

// refusal says what a router has told of a flow's segments.
type refusal struct {
	mtu int // of the path, in bytes of IP packets; 0: nothing was told
	at  tcpip.MonotonicTime
	due bool   // netstack may be about to send again what was too big
	end uint32 // of what had been sent
}

const (
	// initialFlight gives netstack's first congestion window, in segments.
	initialFlight = 10
	// refusedWait bounds how long a refused flight beyond that may take at a segment each round
	// trip: a timeout takes that long with what follows.
	refusedWait = 250 * time.Millisecond
)

// noteTooBig takes note of p, if that is a message that s, which it quotes, was too big.
func noteTooBig(r *resender, s *hdr.Segment, frame []byte, p *hdr.Packet) {
	if mtu, _, tooBig := toldMTU(frame[p.L4:p.End], p); tooBig {
		r.noteRefusal(s, int(mtu))
	}
}

// noteRefusal takes note of a message that a segment, which s quotes, was too big for a path with
// an MTU of mtu bytes of IP packets.
func (r *resender) noteRefusal(s *hdr.Segment, mtu int) {
	t, hash := s.Flow()
	seq, size := binary.BigEndian.Uint32(s.TCP()[4:]), quotedSize(s)
	end, known := r.end(hash)
	if size <= mtu || !known || !hdr.Before(seq, end) {
		return
	}
	shard, now := r.shard(hash), r.clock.NowMonotonic()
	shard.mu.Lock()
	defer shard.mu.Unlock()
	f := shard.flows[*t]
	if f == nil {
		if !r.begin() || len(shard.flows) == maxResendFlows {
			return
		}
		f = &resendFlow{una: seq, end: end, moved: now, longest: r.longest}
		shard.flows[*t] = f
		r.number.Add(1)
	}
	if f.told && hdr.Before(seq, f.una) || f.refused.mtu > 0 && f.refused.mtu <= mtu {
		return
	}
	f.refused = refusal{mtu: mtu, at: now, end: end}
	if len(f.parts) > 0 {
		f.fitPackets()
	} else {
		f.mss = 0 // until something is sent
	}
	rtt := cmp.Or(f.rtt, r.path(hash))
	flight := int(end-seq) / size
	f.refused.due = flight <= initialFlight || time.Duration(flight)*rtt <= refusedWait
}

// quotedSize returns the length of the IP packet that a message quotes, in bytes.
func quotedSize(s *hdr.Segment) int {
	ip := s.Frame[s.L3:]
	if ip[0]>>4 == 4 {
		return int(binary.BigEndian.Uint16(ip[2:]))
	}
	return hdr.IPv6Len + int(binary.BigEndian.Uint16(ip[4:]))
}

// sendsRefused reports whether netstack sends again what it was told of as too big.
func (f *resendFlow) sendsRefused(now tcpip.MonotonicTime) bool {
	return f.refused.due && !f.own && now.Sub(f.refused.at) < answerGap
}

// goBackTo makes the echoes older of what was sent before a segment was refused. netstack sends the
// first of that again now, from seq on.
func (f *resendFlow) goBackTo(seq uint32) {
	f.refused.due = false
	if f.dataStamp != 0 {
		f.back.begin(seq, f.refused.end, f.dataStamp)
	}
}

// room returns how much data a packet of the flow may carry behind headers as those of pkt.
func (f *resendFlow) room(pkt *gstack.PacketBuffer) int {
	most := f.longest(pkt.NetworkProtocolNumber)
	if f.refused.mtu > 0 {
		most = min(most, f.refused.mtu)
	}
	return max(most-(pkt.HeaderSize()-hdr.EthLen), 1)
}

// fitPackets takes note that packets have less room than before, if so.
func (f *resendFlow) fitPackets() {
	if len(f.parts) > 0 {
		f.mss = min(f.mss, uint32(f.room(f.parts[0].pkt)))
	}
}
