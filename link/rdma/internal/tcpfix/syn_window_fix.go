package tcpfix

import (
	"encoding/binary"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// synWindowFix scales the window in the answer to a SYN that comes again.
//
// Behaviour: in SYN-RECEIVED netstack answers a segment outside the window, such as the SYN again,
// with an ACK whose window is not scaled (transport/tcp/connect.go synRcvdState), as if it were a
// SYN-ACK; RFC 7323 section 2.3 has the windows of all other segments scaled. A peer that has got
// the SYN-ACK by then takes it for up to 2^14 times as much. What it sends beyond our window is
// partly kept behind a gap, and takes so much of a small receive buffer that the window may stay
// closed for good.
//
// Fix: the window of such an ACK is scaled.
//
// Not reported upstream. No longer needed when the row "the window is scaled in the answer to a SYN
// that comes again" of tests/tcp passes without it.
type synWindowFix struct {
	repeated atomic.Int32 // slots whose SYN has come again; 0 almost always

	since func() time.Duration // the time now

	syns  synTable[synWindow]
	sweep int // the slot to look at next for what has expired; guarded by syns.mu
}

// synWindow is a SYN that has come, and what is in our SYN-ACK.
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
		_, h.scale = synOptions(s.TCP())
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
