package tcpfix

import (
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// handshakeData finds data that ends a handshake, as it does where the last ACK of it is lost.
//
// Behaviour: netstack puts such a segment into the connection's queue a second time and counts its
// memory twice, but takes it off once (transport/tcp/connect.go synRcvdState, segment_queue.go
// enqueue). Half of a small receive buffer is gone for good then; with segments behind a gap in the
// other half all data is dropped, what is missing too, and the connection stands still until the
// peer gives it up.
//
// Fix: an ACK without the data is delivered first, and ends the handshake.
//
// Not reported upstream. No longer needed when the row "what is missing is taken where data has
// ended the handshake" of tests/conformance/tcp passes without it.
type handshakeData struct {
	waiting atomic.Int32 // slots that are taken

	since func() time.Duration // the time now

	syns  synTable[handshakeEnd]
	sweep int // the slot to look at next for what has expired; guarded by syns.mu
}

// handshakeEnd is the numbers in the segment that ends a handshake, and what our SYN-ACK has.
type handshakeEnd struct {
	seq, ack uint32
	options  optionSet
	last     time.Duration // our SYN-ACK was sent at
}

func newHandshakeData(clock tcpip.Clock) handshakeData {
	return handshakeData{syns: newSYNTable[handshakeEnd](), since: since(clock)}
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
	slot.key, slot.of = key, handshakeEnd{seq: ack, ack: seq + 1,
		options: optionsIn(s.TCP()), last: x.since()}
}

// received reports whether a segment carries data and ends a handshake, and changes a copy of a SYN
// that has been answered, see syn.go.
func (x *handshakeData) received(s *hdr.Segment) bool {
	const mask = hdr.FlagSYN | hdr.FlagACK | hdr.FlagRST
	if x.waiting.Load() == 0 {
		return false
	}
	switch s.Flags() & mask {
	case hdr.FlagSYN:
		x.again(s)
		return false
	case hdr.FlagACK:
		return x.ends(s)
	}
	return false
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

// ends reports whether a segment carries data and ends a handshake.
func (x *handshakeData) ends(s *hdr.Segment) bool {
	seq, ack := hdr.Numbers(s.TCP())
	x.syns.mu.Lock()
	defer x.syns.mu.Unlock()
	x.expire()
	slot, key := x.syns.slot(s)
	if slot.key != key || slot.of.seq != seq || slot.of.ack != ack {
		return false
	}
	x.free(slot)
	return s.Payload > 0
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
