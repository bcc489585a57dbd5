package rdma

import (
	"encoding/binary"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"
)

// synRTTFix mends the first round trip time of connections whose SYN or SYN-ACK, or the answer to it, was lost.
//
// netstack sends copies of a SYN or SYN-ACK with the timestamp of the first, and measures from it: a handshake that took a
// second copy, after 1 s, makes a round trip of 1 s, and the first losses of data are noticed after 3 s, then 6 s. A Linux
// peer would echo the first timestamp anyhow if it was the answer that got lost. So what comes back is given the time that the
// last copy was sent: if it does answer an earlier one, the connection starts with too short a round trip time, of which
// netstack's minimum timeout takes the harm.
type synRTTFix struct {
	repeated atomic.Int32 // slots with a copy sent; 0 almost always, and then nothing below is touched on reception

	seed  maphash.Seed
	since func() time.Duration // the time now

	mu    sync.Mutex
	slots []synRecord // by hash; of two connections in one place the later stays
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
	// handshakeTime is how long after the last copy an answer is waited for. netstack gives up then.
	synTimeout = 2 * time.Minute
)

func newSYNRTTFix() synRTTFix {
	start := time.Now()
	return synRTTFix{
		seed: maphash.MakeSeed(), slots: make([]synRecord, synSlots),
		since: func() time.Duration { return time.Since(start) },
	}
}

// slot finds the slot of an outgoing flow.
func (s *synRTTFix) slot(t *tuple) (*synRecord, uint64) {
	key := maphash.Bytes(s.seed, t[:]) | 1
	return &s.slots[key>>32&(synSlots-1)], key
}

// sent takes note of an outgoing segment: its headers from Ethernet on.
func (s *synRTTFix) sent(frame []byte, l *layout) {
	tcp := frame[l.l4:]
	if tcp[13]&flagSYN == 0 {
		return
	}
	stamp := timestampOf(tcp)
	if stamp == nil {
		return
	}
	seq, _ := numbers(tcp)
	value, now := binary.BigEndian.Uint32(stamp[2:]), s.since()
	t := tupleOf(l.etherType, frame[l.l3:], tcp)
	s.mu.Lock()
	defer s.mu.Unlock()
	h, key := s.slot(&t)
	if h.key != key || h.seq != seq || h.stamp != value {
		s.free(h)
		*h = synRecord{key: key, seq: seq, stamp: value, first: now, last: now}
		return
	}
	if h.first == h.last {
		s.repeated.Add(1)
	}
	h.last = max(now, h.first+1)
}

// free empties a slot.
func (s *synRTTFix) free(h *synRecord) {
	if h.last != h.first {
		s.repeated.Add(-1)
	}
	*h = synRecord{}
}

// received moves the timestamp that a segment echoes, if it is that of a SYN sent several times, and reports whether it
// did. The time it then stands for is at least 1 ms ago: netstack takes a round trip of 0 for none at all.
func (s *synRTTFix) received(frame []byte, l *layout) bool {
	if s.repeated.Load() == 0 {
		return false
	}
	tcp := frame[l.l4:l.end]
	stamp := timestampOf(tcp)
	if stamp == nil || tcp[13]&(flagACK|flagRST) != flagACK {
		return false
	}
	t := tupleOf(l.etherType, frame[l.l3:], tcp).reversed()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	h, key := s.slot(&t)
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

// expire empties the next slot if nothing has come of it.
func (s *synRTTFix) expire() {
	h := &s.slots[s.sweep%synSlots]
	if s.sweep++; h.key != 0 && s.since()-h.last > synTimeout {
		s.free(h)
	}
}
