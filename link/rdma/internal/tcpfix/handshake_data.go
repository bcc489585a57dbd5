package tcpfix

import (
	"encoding/binary"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// handshakeData finds data that ends a handshake, as it does where the last ACK of it is lost, and
// maybe the first data too.
//
// Behaviour: netstack puts such a segment into the connection's queue a second time and counts its
// memory twice, but takes it off once (transport/tcp/connect.go synRcvdState, segment_queue.go
// enqueue). Half of a small receive buffer is gone for good then; with segments behind a gap in the
// other half all data is dropped, what is missing too, and the connection stands still until the
// peer gives it up.
//
// Fix: an ACK without the data is delivered first, and ends the handshake. It has the sequence
// number behind the SYN: one behind a gap would be refused where the handshake is a SYN cookie's.
//
// Upstream: docs/upstream/09-handshake-data.md. No longer needed when the rows "what is missing is
// taken where data has ended the handshake" and "... where data behind a gap has ..." of
// tests/conformance/tcp pass without it.
//
// Behaviour: netstack drops the segment that ends a handshake if it has no timestamp and our
// SYN-ACK has one (synRcvdState). Clients that send a timestamp in their SYN only never get in.
// Afterwards it takes segments without one.
//
// Fix: the ACK that is delivered first has the timestamp of the SYN, and echoes none, so that it is
// no sample of the round trip.
//
// Upstream: docs/upstream/10-handshake-timestamp.md. No longer needed when the row "the last ACK of
// a handshake without a timestamp is taken" of tests/conformance/tcp passes without it.
type handshakeData struct {
	waiting atomic.Int32 // slots that are taken

	since func() time.Duration // the time now
	took  func(hash uint64, rtt time.Duration)

	syns  synTable[handshakeEnd]
	sweep int // the slot to look at next for what has expired; guarded by syns.mu
}

// handshakeEnd is the numbers in the segment that ends a handshake, and what our SYN-ACK has.
type handshakeEnd struct {
	seq, ack uint32
	options  optionSet
	stamp    uint32        // of the SYN, if options has it
	last     time.Duration // our SYN-ACK was sent at
	again    bool          // more than once
}

func newHandshakeData(clock tcpip.Clock) handshakeData {
	return handshakeData{syns: newSYNTable[handshakeEnd](), since: since(clock),
		took: func(uint64, time.Duration) {}}
}

// handshakeTimeout says how long after our SYN-ACK, or its last copy, data is looked for. Without
// it strangers' SYNs would have every segment looked at for longer.
const handshakeTimeout = 10 * time.Second

// sent takes note of a SYN-ACK.
func (x *handshakeData) sent(s *hdr.Segment) {
	const mask = hdr.FlagSYN | hdr.FlagACK | hdr.FlagRST
	if s.Flags()&mask != hdr.FlagSYN|hdr.FlagACK {
		return
	}
	seq, ack := hdr.Numbers(s.TCP())
	x.syns.mu.Lock()
	defer x.syns.mu.Unlock()
	slot, key := x.syns.slot(s)
	if slot.key == 0 {
		x.waiting.Add(1)
	}
	again := slot.key == key && slot.of.seq == ack && slot.of.ack == seq+1
	slot.key, slot.of = key, handshakeEnd{seq: ack, ack: seq + 1,
		options: optionsIn(s.TCP()), last: x.since(), again: again}
	if stamp := s.Options().Timestamp; stamp != nil {
		slot.of.stamp = binary.BigEndian.Uint32(stamp[6:])
	}
}

// received says how a segment ends a handshake, and changes a copy of a SYN that has been answered,
// see syn.go.
func (x *handshakeData) received(s *hdr.Segment) Changes {
	const mask = hdr.FlagSYN | hdr.FlagACK | hdr.FlagRST
	if x.waiting.Load() == 0 {
		return 0
	}
	switch s.Flags() & mask {
	case hdr.FlagSYN:
		x.again(s)
	case hdr.FlagACK:
		return x.ends(s)
	}
	return 0
}

// again takes options out of a SYN that has been answered without them.
func (x *handshakeData) again(s *hdr.Segment) {
	seq, _ := hdr.Numbers(s.TCP())
	x.syns.mu.Lock()
	defer x.syns.mu.Unlock()
	if slot, key := x.syns.slot(s); slot.key == key && slot.of.seq == seq+1 {
		removeOptions(s.TCP(), negotiated&^slot.of.options)
	}
}

// widestWindow bounds how far behind a gap data may be: RFC 7323 section 2.3.
const widestWindow = 1 << 30

// ends says whether a segment ends a handshake and lacks the timestamp, or carries data.
func (x *handshakeData) ends(s *hdr.Segment) Changes {
	seq, ack := hdr.Numbers(s.TCP())
	x.syns.mu.Lock()
	defer x.syns.mu.Unlock()
	x.expire()
	slot, key := x.syns.slot(s)
	if slot.key != key || slot.of.ack != ack || seq-slot.of.seq >= widestWindow {
		return 0
	}
	if !slot.of.again && seq == slot.of.seq {
		_, hash := s.Flow()
		x.took(hash, x.since()-slot.of.last)
	}
	if slot.of.options&(1<<hdr.OptTimestamp) != 0 && s.Options().Timestamp == nil {
		return HandshakeStamp
	}
	if s.Payload > 0 {
		return HandshakeData
	}
	x.free(slot)
	return 0
}

// takeEnd returns what the ACK that ends the handshake of s has, and forgets it: the sequence
// number, and the timestamp of the SYN.
func (x *handshakeData) takeEnd(s *hdr.Segment) (seq, stamp uint32) {
	x.syns.mu.Lock()
	defer x.syns.mu.Unlock()
	if slot, key := x.syns.slot(s); slot.key == key {
		seq, stamp = slot.of.seq, slot.of.stamp
		x.free(slot)
	}
	return seq, stamp
}

// free empties a slot.
func (x *handshakeData) free(slot *synSlot[handshakeEnd]) {
	*slot = synSlot[handshakeEnd]{}
	x.waiting.Add(-1)
}

// expire empties the next slot if its SYN-ACK is older than handshakeTimeout.
func (x *handshakeData) expire() {
	slot := &x.syns.slots[x.sweep%synSlots]
	if x.sweep++; slot.key != 0 && x.since()-slot.of.last > handshakeTimeout {
		x.free(slot)
	}
}
