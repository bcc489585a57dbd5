package tcpfix

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// synSlots is for how many connections there is room, a power of two.
const synSlots = 1024

// synTable keeps a T for each of some connections, by the hash of their flow: of two in one slot
// the later stays. mu guards it.
type synTable[T any] struct {
	mu    sync.Mutex
	slots []synSlot[T]
}

// synSlot holds what is kept of one connection.
type synSlot[T any] struct {
	key uint64 // see slot; 0: free
	of  T
}

func newSYNTable[T any]() synTable[T] { return synTable[T]{slots: make([]synSlot[T], synSlots)} }

// slot finds the slot of a segment's flow, and the key it has if it is that flow's. mu is held.
func (x *synTable[T]) slot(s *hdr.Segment) (*synSlot[T], uint64) {
	_, hash := s.Flow()
	key := hash | 1
	return &x.slots[key>>32&(synSlots-1)], key
}

// since returns a function that returns how long ago now is.
func since(clock tcpip.Clock) func() time.Duration {
	start := clock.NowMonotonic()
	return func() time.Duration { return clock.NowMonotonic().Sub(start) }
}

// changeHeader has change write to the TCP header of an outgoing segment, and makes good its
// checksum (RFC 1624), which the NIC computes anew where it was asked to.
func changeHeader(s *hdr.Segment, change func(tcp []byte)) {
	tcp := s.TCP()[:int(s.TCP()[12]>>4)*4]
	before := checksum.Checksum(tcp, 0)
	change(tcp)
	sum := checksum.Combine(^binary.BigEndian.Uint16(tcp[16:]), ^before)
	binary.BigEndian.PutUint16(tcp[16:], ^checksum.Combine(sum, checksum.Checksum(tcp, 0)))
}

// synRTTFix corrects the first round trip time of connections whose SYN or SYN-ACK, or the answer
// to it, was lost.
//
// Behaviour: netstack sends copies of a SYN or SYN-ACK with the timestamp of the first, and
// measures from it. A Linux peer echoes that anyhow if it was the answer that got lost.
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
// Upstream: docs/upstream/01-syn-timestamp.md. No longer needed when TestSYNTimestamp fails.
type synRTTFix struct {
	repeated atomic.Int32 // slots with a copy sent; 0 almost always, and then received returns

	since func() time.Duration // the time now
	took  func(hash uint64, rtt time.Duration)

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

// synTimeout says how long after the last copy an answer may come. netstack gives up then.
const synTimeout = 2 * time.Minute

func newSYNRTTFix(clock tcpip.Clock) synRTTFix {
	return synRTTFix{syns: newSYNTable[synRecord](), since: since(clock),
		took: func(uint64, time.Duration) {}}
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
		_, hash := s.Flow()
		x.took(hash, x.since()-h.last)
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

// synEchoFix corrects the first round trip time that a peer measures when it had to send its SYN
// several times.
//
// Behaviour: netstack's SYN-ACK echoes the timestamp of the first SYN although a copy of the SYN
// with a later one has come.
//
// Fix: the echo in a SYN-ACK becomes the timestamp of the last copy of the SYN.
//
// Upstream: docs/upstream/02-syn-echo.md. No longer needed when TestSYNEchoOfNetstack fails.
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

// synWindowFix scales the window in the answer to a SYN that comes again.
//
// Behaviour: in SYN-RECEIVED netstack answers a segment outside the window, such as the SYN again,
// with an ACK whose window is not scaled. What the peer sends beyond our window is partly kept
// behind a gap, and takes so much of a small receive buffer that the window may stay closed.
//
// Fix: the window of such an ACK is scaled.
//
// Upstream: docs/upstream/12-syn-window.md. No longer needed when the row "the window is scaled in
// the answer to a SYN that comes again" of tests/conformance/tcp passes without it.
type synWindowFix struct {
	repeated atomic.Int32 // slots whose SYN has come again; 0 almost always

	since func() time.Duration // the time now

	syns  synTable[synWindow]
	sweep int // the slot to look at next for what has expired; guarded by syns.mu
}

// synWindow describes a SYN that has come, and what is in our SYN-ACK.
type synWindow struct {
	seq    uint32
	window uint16 // not scaled
	scale  uint8
	again  bool          // the SYN has come more than once
	last   time.Duration // came at
}

func newSYNWindowFix(clock tcpip.Clock) synWindowFix {
	return synWindowFix{syns: newSYNTable[synWindow](), since: since(clock)}
}

// received takes note of a SYN.
func (x *synWindowFix) received(s *hdr.Segment) {
	const mask = hdr.FlagSYN | hdr.FlagACK | hdr.FlagRST
	if s.Flags()&mask != hdr.FlagSYN {
		return
	}
	seq, _ := hdr.Numbers(s.TCP())
	x.syns.mu.Lock()
	defer x.syns.mu.Unlock()
	slot, key := x.syns.slot(s)
	if slot.key != key || slot.of.seq != seq {
		x.free(slot)
		slot.key, slot.of.seq = key, seq
	} else if !slot.of.again {
		slot.of.again = true
		x.repeated.Add(1)
	}
	slot.of.last = x.since()
}

// sent takes note of an outgoing segment, and changes its window where that is needed.
func (x *synWindowFix) sent(s *hdr.Segment) {
	syn := s.Flags()&hdr.FlagSYN != 0
	if !syn && x.repeated.Load() == 0 {
		return
	}
	_, ack := hdr.Numbers(s.TCP())
	x.syns.mu.Lock()
	defer x.syns.mu.Unlock()
	x.expire()
	slot, key := x.syns.slot(s)
	if slot.key != key {
		return
	}
	h := &slot.of
	switch first := ack == h.seq+1; {
	case syn && first:
		h.window = s.Window()
		_, h.scale, _ = hdr.SYNOptions(s.TCP())
	case syn || !first || s.Payload > 0 || s.Flags() != hdr.FlagACK:
		x.free(slot)
	case h.again && s.Window() == h.window:
		changeHeader(s, func(tcp []byte) {
			binary.BigEndian.PutUint16(tcp[14:], h.window>>h.scale)
		})
	}
}

// free empties a slot.
func (x *synWindowFix) free(slot *synSlot[synWindow]) {
	if slot.of.again {
		x.repeated.Add(-1)
	}
	*slot = synSlot[synWindow]{}
}

// expire empties the next slot if its SYN is older than synTimeout.
func (x *synWindowFix) expire() {
	slot := &x.syns.slots[x.sweep%synSlots]
	if x.sweep++; slot.key != 0 && x.since()-slot.of.last > synTimeout {
		x.free(slot)
	}
}

// Behaviour: netstack answers a SYN with a SYN cookie where the backlog is full, without window
// scale and SACK, and a copy of the SYN with both where there is room again. The handshake ends by
// the cookie, and netstack scales its windows, which the peer does not.
//
// Fix: of the options in a copy of a SYN those are taken out that our SYN-ACK did not have.
//
// Upstream: docs/upstream/11-cookie-options.md. No longer needed when the row "a copy of a SYN gets
// no options that its SYN cookie had not" of tests/conformance/tcp passes without it.

// optionSet is kinds of TCP options, the bit of each set. Kinds of 32 and more are not in it.
type optionSet uint32

// negotiated are the options that count only if both SYNs have them (RFC 7323, RFC 2018).
const negotiated optionSet = 1<<optWindowScale | 1<<optSACKPermitted | 1<<hdr.OptTimestamp

const (
	optWindowScale   = 3 // RFC 7323
	optSACKPermitted = 4 // RFC 2018
)

// optionsIn returns the options of a TCP header.
func optionsIn(tcp []byte) (set optionSet) {
	eachOption(tcp, func(o []byte) { set |= 1 << o[0] })
	return set
}

// removeOptions overwrites options of a TCP header, whose checksum is then wrong.
func removeOptions(tcp []byte, set optionSet) {
	eachOption(tcp, func(o []byte) {
		if set&(1<<o[0]) != 0 {
			for i := range o {
				o[i] = hdr.OptNop
			}
		}
	})
}

// eachOption calls do for each option of a TCP header, up to one that does not fit.
func eachOption(tcp []byte, do func(option []byte)) {
	rest := tcp[hdr.TCPLen:max(hdr.TCPLen, min(int(tcp[12]>>4)*4, len(tcp)))]
	for len(rest) > 0 && rest[0] != hdr.OptEnd {
		if rest[0] == hdr.OptNop {
			rest = rest[1:]
			continue
		}
		if len(rest) < 2 || rest[1] < 2 || int(rest[1]) > len(rest) {
			return
		}
		option := rest[:rest[1]]
		rest = rest[len(option):]
		do(option)
	}
}

// synBurstFix keeps netstack from sending a SYN again and again within moments.
//
// Behaviour: at a wrong ACK number netstack sends its SYN again after 2 us, as Linux does, so that
// a peer with an old connection on the same ports takes it, but doubles that interval from there.
//
// Fix: after one such SYN the next is at least synPause later; those between are dropped.
//
// Upstream: docs/upstream/16-syn-burst.md. No longer needed when the row "a wrong acknowledgement
// in SYN-SENT" of tests/conformance/tcp passes without it.
type synBurstFix struct {
	clock    tcpip.Clock
	sentSYNs synTable[synSent]
}

// synSent holds the SYN of one connection.
type synSent struct {
	seq  uint32
	last tcpip.MonotonicTime // sent at
	soon bool                // it was sent again before synPause was over
}

// synPause is far below the first interval of a SYN, 1 s.
const synPause = 100 * time.Millisecond

func newSYNBurstFix(clock tcpip.Clock) synBurstFix {
	return synBurstFix{clock: clock, sentSYNs: newSYNTable[synSent]()}
}

// sent takes note of an outgoing segment, and reports whether it is to be dropped.
func (x *synBurstFix) sent(s *hdr.Segment) (drop bool) {
	if s.Flags()&hdr.FlagSYN == 0 {
		return false
	}
	seq, _ := hdr.Numbers(s.TCP())
	now := x.clock.NowMonotonic()
	x.sentSYNs.mu.Lock()
	defer x.sentSYNs.mu.Unlock()
	slot, key := x.sentSYNs.slot(s)
	h := &slot.of
	if s.Flags()&hdr.FlagACK != 0 { // the peer's connection now
		if slot.key == key {
			*slot = synSlot[synSent]{}
		}
		return false
	}
	if slot.key != key || h.seq != seq {
		slot.key, *h = key, synSent{seq: seq, last: now}
		return false
	}
	if now.Sub(h.last) < synPause {
		if h.soon {
			return true
		}
		h.soon = true
	}
	h.last = now
	return false
}

// excludes reports whether we have opened the connection of a segment, and seq is neither that of
// our SYN nor the next.
func (x *synBurstFix) excludes(s *hdr.Segment, seq uint32) bool {
	x.sentSYNs.mu.Lock()
	defer x.sentSYNs.mu.Unlock()
	slot, key := x.sentSYNs.slot(s)
	return slot.key == key && seq-slot.of.seq > 1
}

// timeWaitFix ends connections in TIME-WAIT without a word where a SYN opens a new one.
//
// Behaviour: netstack goes by the sequence number of a SYN in TIME-WAIT alone, Linux by the
// timestamp as well.
//
// Fix: before the link delivers a SYN with a later timestamp for a listener it aborts the
// connection, whose reset is dropped here. One that Linux answers with an ACK becomes an ACK
// outside the window, to which netstack does the same.
//
// Upstream: docs/upstream/17-time-wait-timestamp.md. No longer needed when the rows on timestamps
// in TIME-WAIT of tests/conformance/tcp pass without it.
type timeWaitFix struct {
	number atomic.Int32 // of ending

	mu     sync.Mutex
	ending map[uint64]struct{} // by hash of the flow; guarded by mu
}

// sent reports whether an outgoing segment is the reset of a connection that is being ended.
func (x *timeWaitFix) sent(s *hdr.Segment) (drop bool) {
	if x.number.Load() == 0 || s.Flags()&hdr.FlagRST == 0 {
		return false
	}
	_, hash := s.Flow()
	x.mu.Lock()
	defer x.mu.Unlock()
	_, drop = x.ending[hash]
	return drop
}

// end calls abort, and drops the resets of the connection of s meanwhile.
func (x *timeWaitFix) end(s *hdr.Segment, abort func()) {
	_, hash := s.Flow()
	x.mu.Lock()
	if x.ending == nil {
		x.ending = map[uint64]struct{}{}
	}
	x.ending[hash] = struct{}{}
	x.number.Store(int32(len(x.ending)))
	x.mu.Unlock()
	abort()
	x.mu.Lock()
	delete(x.ending, hash)
	x.number.Store(int32(len(x.ending)))
	x.mu.Unlock()
}

// AsStray makes a received SYN an acknowledgement far outside the window of its connection. Its
// checksum is then wrong.
func AsStray(tcp []byte) {
	tcp[4] ^= 0x80 // the sequence number
	tcp[13] = hdr.FlagACK
}
