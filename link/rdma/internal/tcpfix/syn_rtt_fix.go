package tcpfix

import (
	"encoding/binary"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// synRTTFix corrects the first round trip time of connections whose SYN or SYN-ACK, or the answer
// to it, was lost.
//
// Behaviour: netstack sends copies of a SYN or SYN-ACK with the timestamp of the first, and
// measures from it. A handshake that took a second copy, after 1 s, makes a round trip of 1 s, and
// the first losses of data are noticed after 3 s, then 6 s. A Linux peer echoes the first timestamp
// anyhow if it was the answer that got lost.
//
// Fix: the echo in what comes back becomes the time at which the last copy was sent, or maxFirstRTT
// ago if that was longer ago: it may have been lost, and the answer to an earlier one, or data sent
// in its place that had to be sent again. If the answer is to an earlier copy, the connection
// starts with too short a round trip time, which netstack's minimum timeout covers.
//
// A SYN that had to wait for the peer's Ethernet address has a timestamp from before, and so have
// the copies that netstack sent meanwhile, none of which left: a round trip of 15 s. The echo in
// the answer to a SYN that left once becomes 0: netstack then measures by its own time, or not at
// all if it has sent copies (transport/tcp/connect.go transitionToStateEstablishedLocked).
//
// Upstream: no issue is known. No longer needed when TestLostHandshake passes without it.
type synRTTFix struct {
	repeated atomic.Int32 // slots with a copy sent; 0 almost always, and then received returns

	since func() time.Duration // the time now

	syns  synTable[synRecord]
	sweep int // the slot to look at next for what has expired; guarded by syns.mu
}

// synRecord is the SYN or SYN-ACK of one connection.
type synRecord struct {
	seq, stamp  uint32
	first, last time.Duration // sent at
}

// maxFirstRTT makes a timeout of 1 s, which is the one without a sample (RFC 6298 sections 2.1 and
// 3): netstack's is three times the first sample.
const maxFirstRTT = time.Second / 3

// synTimeout is how long after the last copy an answer may come. netstack gives up then.
const synTimeout = 2 * time.Minute

func newSYNRTTFix(clock tcpip.Clock) synRTTFix {
	return synRTTFix{syns: newSYNTable[synRecord](), since: since(clock)}
}

// sent takes note of an outgoing segment.
func (x *synRTTFix) sent(s *hdr.Segment) {
	if s.Flags()&hdr.FlagSYN == 0 {
		return
	}
	stamp := s.Options().Timestamp
	if stamp == nil {
		return
	}
	seq, _ := hdr.Numbers(s.TCP())
	value, now := binary.BigEndian.Uint32(stamp[2:]), x.since()
	x.syns.mu.Lock()
	defer x.syns.mu.Unlock()
	slot, key := x.syns.slot(s)
	h := &slot.of
	if slot.key != key || h.seq != seq || h.stamp != value {
		x.free(slot)
		slot.key, slot.of = key, synRecord{seq: seq, stamp: value, first: now, last: now}
		return
	}
	if h.first == h.last {
		x.repeated.Add(1)
	}
	h.last = max(now, h.first+1)
}

// free empties a slot.
func (x *synRTTFix) free(slot *synSlot[synRecord]) {
	if slot.of.last != slot.of.first {
		x.repeated.Add(-1)
	}
	*slot = synSlot[synRecord]{}
}

// received changes the timestamp that a segment echoes, and reports whether it did because that is
// of a SYN sent several times. The new one is at least 1 ms ago: netstack takes a round trip of 0
// for none.
func (x *synRTTFix) received(s *hdr.Segment) bool {
	const mask = hdr.FlagACK | hdr.FlagRST
	answer := s.Flags()&hdr.FlagSYN != 0
	if x.repeated.Load() == 0 && !answer || s.Flags()&mask != hdr.FlagACK {
		return false
	}
	stamp := s.Options().Timestamp
	if stamp == nil {
		return false
	}
	x.syns.mu.Lock()
	defer x.syns.mu.Unlock()
	x.expire()
	slot, key := x.syns.slot(s)
	h := &slot.of
	if slot.key != key || binary.BigEndian.Uint32(stamp[6:]) != h.stamp {
		return false
	}
	if answer && h.first == h.last {
		binary.BigEndian.PutUint32(stamp[6:], 0)
		return false
	}
	late := max(h.last-h.first-time.Millisecond, x.since()-h.first-maxFirstRTT).Milliseconds()
	if late <= 0 {
		return false
	}
	binary.BigEndian.PutUint32(stamp[6:], h.stamp+uint32(late))
	return true
}

// expire empties the next slot if its SYN is older than synTimeout.
func (x *synRTTFix) expire() {
	slot := &x.syns.slots[x.sweep%synSlots]
	if x.sweep++; slot.key != 0 && x.since()-slot.of.last > synTimeout {
		x.free(slot)
	}
}
