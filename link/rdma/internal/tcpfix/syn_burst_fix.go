package tcpfix

import (
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// synBurstFix keeps netstack from sending a SYN again and again within moments.
//
// Behaviour: when a segment with a wrong ACK number comes for a connection that is being opened,
// netstack answers with a reset and sends its SYN again after 2 us, as Linux does, so that a peer
// with an old connection on the same ports takes it. But it doubles that interval from there: 18
// SYNs in the first second, for one packet with no more right in it than addresses and ports.
//
// Fix: after one such SYN the next is at least synPause later; those between are dropped.
//
// Upstream: no issue is known. No longer needed when the row "a wrong acknowledgement in SYN-SENT"
// of tests/tcp passes without it.
type synBurstFix struct {
	clock    tcpip.Clock
	sentSYNs synTable[synSent]
}

// synSent is the SYN of one connection.
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
