package tcpfix

import (
	"cmp"
	"encoding/binary"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/internal/random"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

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

// noteTooBig takes note of a message, p, that a TCP segment of ours was too big. key is that of the
// segments given to sent.
func noteTooBig(r *resender, key random.HashKey, frame []byte, p *hdr.Packet) {
	s, ok := hdr.Quoted(frame, p, key)
	if !ok {
		return
	}
	if mtu, _, tooBig := toldMTU(frame[p.L4:p.End], p); tooBig {
		r.noteRefusal(&s, int(mtu))
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
