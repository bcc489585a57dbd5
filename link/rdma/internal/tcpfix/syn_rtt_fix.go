package tcpfix

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

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
// Fix: the echo in what comes back becomes the time at which the last copy was sent. If the answer
// is to an earlier copy, the connection starts with too short a round trip time, which netstack's
// minimum timeout covers.
//
// Upstream: no issue is known. No longer needed when TestLostHandshake passes without it.
type synRTTFix struct {
	repeated atomic.Int32 // slots with a copy sent; 0 almost always, and then received returns

	since func() time.Duration // the time now

	mu    sync.Mutex  // guards what follows
	slots []synRecord // by hash; of two connections in one slot the later stays
	sweep int         // the slot to look at next for what has expired
}

// synRecord is the SYN or SYN-ACK of one connection.
type synRecord struct {
	key         uint64 // hash of addresses and ports; 0: free
	seq, stamp  uint32
	first, last time.Duration // sent at
}

const (
	synSlots = 1024 // a power of two
	// synTimeout is how long after the last copy an answer may come. netstack gives up then.
	synTimeout = 2 * time.Minute
)

func newSYNRTTFix() synRTTFix {
	start := time.Now()
	return synRTTFix{
		slots: make([]synRecord, synSlots),
		since: func() time.Duration { return time.Since(start) },
	}
}

// slot finds the slot of a segment's flow. mu is held.
func (x *synRTTFix) slot(s *hdr.Segment) (*synRecord, uint64) {
	_, hash := s.Flow()
	key := hash | 1
	return &x.slots[key>>32&(synSlots-1)], key
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
	x.mu.Lock()
	defer x.mu.Unlock()
	h, key := x.slot(s)
	if h.key != key || h.seq != seq || h.stamp != value {
		x.free(h)
		*h = synRecord{key: key, seq: seq, stamp: value, first: now, last: now}
		return
	}
	if h.first == h.last {
		x.repeated.Add(1)
	}
	h.last = max(now, h.first+1)
}

// free empties a slot.
func (x *synRTTFix) free(h *synRecord) {
	if h.last != h.first {
		x.repeated.Add(-1)
	}
	*h = synRecord{}
}

// received changes the timestamp that a segment echoes, if it is that of a SYN sent several times,
// and reports whether it did. The new one is at least 1 ms ago: netstack takes a round trip of 0
// for none.
func (x *synRTTFix) received(s *hdr.Segment) bool {
	const mask = hdr.FlagACK | hdr.FlagRST
	if x.repeated.Load() == 0 || s.Flags()&mask != hdr.FlagACK {
		return false
	}
	stamp := s.Options().Timestamp
	if stamp == nil {
		return false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.expire()
	h, key := x.slot(s)
	if h.key != key || binary.BigEndian.Uint32(stamp[6:]) != h.stamp {
		return false
	}
	late := (h.last - h.first).Milliseconds() - 1
	if late <= 0 {
		return false
	}
	binary.BigEndian.PutUint32(stamp[6:], h.stamp+uint32(late))
	return true
}

// expire empties the next slot if its SYN is older than synTimeout.
func (x *synRTTFix) expire() {
	h := &x.slots[x.sweep%synSlots]
	if x.sweep++; h.key != 0 && x.since()-h.last > synTimeout {
		x.free(h)
	}
}
