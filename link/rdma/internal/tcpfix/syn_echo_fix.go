package tcpfix

import (
	"encoding/binary"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// synEchoFix corrects the first round trip time that a peer measures when it had to send its SYN
// several times.
//
// Behaviour: netstack's SYN-ACK echoes the timestamp of the first SYN for as long as the handshake
// takes, although a copy of the SYN with a later one has come (RFC 7323 section 4.3 has the later
// one echoed). A Linux peer measures its round trip by that echo: after 3 s of handshake it waits
// for 9 s and more before it sends data again, if a loss is left to its retransmission timeout.
//
// Fix: the echo in a SYN-ACK becomes the timestamp of the last copy of the SYN.
//
// Upstream: no issue is known. No longer needed when TestSYNEchoOfNetstack fails.
type synEchoFix struct{ seen synTable[synSeen] }

// synSeen is the last SYN of one connection.
type synSeen struct{ seq, stamp uint32 }

func newSYNEchoFix() synEchoFix { return synEchoFix{newSYNTable[synSeen]()} }

// received takes note of a SYN.
func (x *synEchoFix) received(s *hdr.Segment) {
	const mask = hdr.FlagSYN | hdr.FlagACK | hdr.FlagRST
	if s.Flags()&mask != hdr.FlagSYN {
		return
	}
	stamp := s.Options().Timestamp
	if stamp == nil {
		return
	}
	seq, _ := hdr.Numbers(s.TCP())
	x.seen.mu.Lock()
	defer x.seen.mu.Unlock()
	h, key := x.seen.slot(s)
	h.key, h.of = key, synSeen{seq: seq, stamp: binary.BigEndian.Uint32(stamp[2:])}
}

// sent changes the timestamp that an outgoing SYN-ACK echoes, if a later one has come.
func (x *synEchoFix) sent(s *hdr.Segment) {
	const mask = hdr.FlagSYN | hdr.FlagACK
	if s.Flags()&mask != mask {
		return
	}
	stamp := s.Options().Timestamp
	if stamp == nil {
		return
	}
	_, ack := hdr.Numbers(s.TCP())
	x.seen.mu.Lock()
	h, key := x.seen.slot(s)
	known, last := h.key == key, h.of
	x.seen.mu.Unlock()
	echo := binary.BigEndian.Uint32(stamp[6:])
	if !known || ack != last.seq+1 || !hdr.Before(echo, last.stamp) {
		return
	}
	changeHeader(s, func([]byte) { binary.BigEndian.PutUint32(stamp[6:], last.stamp) })
}
