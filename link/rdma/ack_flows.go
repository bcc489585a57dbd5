package rdma

import (
	"iter"
	"time"

	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

const (
	ackWays = 4 // flows of one set
	// The table has firstACKSets sets, and twice as many whenever flows in use have lost their
	// places to others too often: as many within ackIdle as a quarter of the sets. Up to
	// maxACKSets: 64 KiB, up to 4 MiB. Both are powers of two.
	firstACKSets = 256
	maxACKSets   = 16384
	// ackIdle is after how many seconds without a packet a flow makes room for another one.
	ackIdle = 10
)

// ackFlow is what is known of one direction of a connection: a cache line.
type ackFlow struct {
	key        uint64 // hash of addresses and ports; 0: free
	held       *gstack.PacketBuffer
	began      time.Duration // when the ACK that was held last was, for the first time
	heldACK    uint32
	acked      uint32 // the ACK number that was sent last
	turn       uint32 // ACKCoalescer.turn of held: its entry in a queue has the same
	used       uint32 // ackTable.seconds at the last packet; 0: it may be forgotten
	window     uint16 // sent last
	heldWindow uint16 // of held
	loss       bool   // the last ACK was a duplicate or had SACK, or there was none
	ends       bool   // a FIN was sent
	patient    bool   // held waits in the queue of that name
	timed      bool   // the timer has sent what was held, and nothing was sent since
	trust      uint8  // ackTrust: may be held for longer
}

// removeHeld removes the held ACK, if any; the caller gets the reference.
func (f *ackFlow) removeHeld() *gstack.PacketBuffer {
	held := f.held
	f.held = nil
	return held
}

// ackTable finds flows by key. The lock of its ACKCoalescer guards it.
type ackTable struct {
	sets    [][ackWays]ackFlow
	seconds uint32 // the time, at the last ACK that was held; from ackIdle on
	lost    int    // flows in use that have lost their places, since the second of since
	since   uint32
}

func newACKTable() ackTable {
	return ackTable{sets: make([][ackWays]ackFlow, firstACKSets), seconds: ackIdle}
}

// set is where a flow has its place.
func (t *ackTable) set(key uint64) *[ackWays]ackFlow {
	return &t.sets[uint32(key>>32)&uint32(len(t.sets)-1)]
}

// find returns nil if the flow has no place.
func (t *ackTable) find(key uint64) *ackFlow {
	set := t.set(key)
	for i := range set {
		if set[i].key == key {
			return &set[i]
		}
	}
	return nil
}

// place is a place for a new flow, which may be that of another one. Flows move.
func (t *ackTable) place(key uint64) *ackFlow {
	f := t.oldest(key)
	if f.key == 0 || t.seconds-f.used >= ackIdle || len(t.sets) == maxACKSets {
		return f
	}
	if t.seconds-t.since >= ackIdle {
		t.since, t.lost = t.seconds, 0
	}
	if t.lost++; t.lost <= len(t.sets)/4 {
		return f
	}
	t.grow()
	return t.place(key)
}

// oldest is a free place for a flow, or that of the flow which was not used for longest.
func (t *ackTable) oldest(key uint64) *ackFlow {
	set := t.set(key)
	oldest := &set[0]
	for i := range set {
		if set[i].key == 0 {
			return &set[i]
		}
		if set[i].used < oldest.used {
			oldest = &set[i]
		}
	}
	return oldest
}

// grow doubles the table: the flows of each set go to that set and to a new one.
func (t *ackTable) grow() {
	old := *t
	t.sets, t.lost = make([][ackWays]ackFlow, 2*len(old.sets)), 0
	for f := range old.all() {
		if f.key != 0 {
			*t.oldest(f.key) = *f
		}
	}
}

// use takes note of a packet with these flags. A flow does not count as used before its handshake
// and after its end, lest a flood of SYNs, or many short connections, have the table grow.
func (t *ackTable) use(f *ackFlow, flags byte) {
	f.ends = f.ends || flags&hdr.FlagFIN != 0
	if f.used = t.seconds; f.ends || flags&(hdr.FlagSYN|hdr.FlagRST) != 0 {
		f.used = 0
	}
}

// all is all places, also the free ones.
func (t *ackTable) all() iter.Seq[*ackFlow] {
	return func(yield func(*ackFlow) bool) {
		for i := range t.sets {
			for j := range t.sets[i] {
				if !yield(&t.sets[i][j]) {
					return
				}
			}
		}
	}
}
