package rdma

import (
	"sync/atomic"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/internal/random"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// admission tells, when too many TCP segments without payload wait for all to be let in, which of
// them are hardly a flood's, see waiting.go. A flood has forged or ever new addresses, and does
// not look at the answers. So these go first:
//
//   - a SYN from an address to which a connection has sent data lately: netstack sends data only
//     once the handshake has proved the address;
//   - a SYN that was dropped and comes again, as any client sends it, after a second;
//   - an ACK of a SYN-ACK that was sent lately. The listener has no state of that if it was a SYN
//     cookie (RFC 4987 section 3.6), and the client never repeats the ACK.
//
// All of it is in tables of fixed size. Any goroutine may use it.
type admission struct {
	key   random.HashKey // of the segments that are shown
	peers recent         // remote addresses to which data was sent
	flood atomic.Pointer[floodTables]
	hold  pressureHold
}

// floodTables are made when many segments wait for the first time, and stay then.
type floodTables struct {
	syns    recent // SYNs dropped: flow and sequence number
	synACKs recent // sent: flow and sequence number
}

const (
	// recentPeers is for how many addresses there is room.
	recentPeers = 4096
	// recentSYNs and recentSYNACKs are for how many of them there is room, 4 bytes each. A SYN that
	// is repeated after a second is known with 50,000 others between in two of three cases.
	recentSYNs    = 1 << 17
	recentSYNACKs = 1 << 16
)

func newAdmission(key random.HashKey, c clock.Clock) *admission {
	return &admission{key: key, peers: newRecent(recentPeers), hold: pressureHold{now: c.Now}}
}

// sent takes note of an outgoing segment.
func (a *admission) sent(s *hdr.Segment) {
	if !s.IsTCP() {
		return
	}
	if s.Payload > 0 {
		a.peers.note(a.peer(s))
		return
	}
	const synACK = hdr.FlagSYN | hdr.FlagACK
	if flood := a.flood.Load(); flood != nil && s.Flags()&synACK == synACK {
		seq, _ := hdr.Numbers(s.TCP())
		flood.synACKs.note(handshake(s, seq))
	}
}

// peer is the hash of a segment's remote address.
func (a *admission) peer(s *hdr.Segment) uint64 {
	flow, _ := s.Flow()
	return a.key.Bytes(flow.Destination())
}

// handshake is the hash of a segment's flow and a sequence number.
func handshake(s *hdr.Segment, seq uint32) uint64 {
	_, flow := s.Flow()
	return flow ^ uint64(seq)*0x9e3779b97f4a7c15
}

// begin makes the tables for a flood.
func (a *admission) begin() {
	if a.flood.Load() == nil {
		a.flood.CompareAndSwap(nil, &floodTables{
			syns: newRecent(recentSYNs), synACKs: newRecent(recentSYNACKs)})
	}
}

// prefersSYN reports whether a received SYN goes first, and takes note of any other. The flood has
// begun.
func (a *admission) prefersSYN(s *hdr.Segment) bool {
	if a.peers.has(a.peer(s)) {
		return true
	}
	seq, _ := hdr.Numbers(s.TCP())
	syns, hash := &a.flood.Load().syns, handshake(s, seq)
	if syns.has(hash) {
		return true
	}
	syns.note(hash)
	return false
}

// answersSYNACK reports whether a received segment acknowledges a SYN-ACK that was sent lately. The
// flood has begun.
func (a *admission) answersSYNACK(s *hdr.Segment) bool {
	const mask = hdr.FlagSYN | hdr.FlagRST | hdr.FlagACK
	_, ack := hdr.Numbers(s.TCP())
	return s.Flags()&mask == hdr.FlagACK && a.flood.Load().synACKs.has(handshake(s, ack-1))
}
