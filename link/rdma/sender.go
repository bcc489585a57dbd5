package rdma

import (
	"sync/atomic"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/capture"
	"github.com/rdma-netstack/rdma-netstack/link/filter"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/chunkmem"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/tcpfix"
)

const (
	// fullRingWait says how long a packet waits for room before it is refused: in a full ring, or a
	// segment in a full backlog.
	fullRingWait = time.Millisecond
	// reservedPackets is for how many packets room is kept that only urgent ones get.
	reservedPackets = 32
)

// sender is one send queue and what its users share. A packet goes through these states:
//
//	            room                      doorbell              CQE
//	send ─────────────────▶ posted ──flush──▶ in flight ──reclaim──▶ done
//	 │                        ▲
//	 │ ring full              │ room, oldest first (drain)
//	 ├── TCP segment ───▶ backlog ──detach, close──▶ dropped, counted
//	 │                        │
//	 │                        └ full ─┐
//	 │                                ▼
//	 ├── other ─────────────────▶ awaitRoom ──room──▶ posted
//	 │                                └─fullRingWait─▶ refused
//	 └── ARP, ICMP, RST ──reserve──▶ posted, or refused at once
//
// A RST of a flow waits in the backlog if that is not empty.
//
// Who looks for completions: every writer first, a receive worker after each batch (tryReclaim,
// tryDrain), the backlog's timer while something waits (expire), and the completion timer while
// anything is outstanding (check).
type sender struct {
	// Set once.
	flows *tcpfix.Flows
	label uint64 // seed of flow labels, see hdr.LabelFlow
	admit *admission
	vlan  uint16 // 0: frames are sent without a tag
	clock clock.Clock

	// The endpoint's; of a sender without one its own.
	taps   *taps
	resets *resets
	limits *packetLimits
	number int // of the queue
	filter *filter.Filter

	queue atomic.Pointer[txQueue] // q, for lock; replaced by swap

	// Guarded by the lock of q. It is the sender's lock: see lock.
	q           txQueue
	kind        BackendKind
	reserve     int         // blocks that ordinary packets leave free
	posted      uint64      // frames, since q came into use or ring
	packet      dv.TxPacket // scratch
	captured    capture.Batch
	backlog     backlog // but for its atomic fields
	completions completionTimer
	progress    uint64      // how often there were completions
	still       bool        // none came while a packet waited for as long as it may
	stamps      *sendStamps // of q, or of a queue before it; nil: nobody has asked

	// Written with the lock of q held, read by anybody.
	count txCounters
}

func newSender(q txQueue, vlan uint16, c clock.Clock, flows *tcpfix.Flows,
	admit *admission) *sender {
	s := &sender{
		vlan: vlan, clock: c, flows: flows, admit: admit, taps: new(taps),
		label:  flows.Key().Bytes([]byte("flow label")),
		resets: new(resets), limits: new(packetLimits),
		packet: dv.TxPacket{Bufs: make([][]byte, 0, 8)},
	}
	s.use(q)
	s.completions.timer = c.NewStopped(s.check)
	s.backlog.timer = c.NewStopped(s.expire)
	return s
}

// use makes q the queue; its lock is held, and that of the queue before, or nobody knows it yet.
func (s *sender) use(q txQueue) {
	s.q, s.reserve = q, min(2*reservedPackets, q.Free()/8)
	s.queue.Store(&q)
}

// lock takes the lock of the queue, of the present one. Of several senders that share a queue one
// is at it at a time.
func (s *sender) lock() {
	for {
		q := s.queue.Load()
		(*q).Lock()
		if s.queue.Load() == q {
			return
		}
		(*q).Unlock()
	}
}

// tryLock is lock if that takes no waiting, and reports whether it did.
func (s *sender) tryLock() bool {
	q := s.queue.Load()
	if !(*q).TryLock() {
		return false
	}
	if s.queue.Load() == q {
		return true
	}
	(*q).Unlock()
	return false
}

// unlock gives the lock back. It is a method so that a deferred one finds the queue as it is then.
func (s *sender) unlock() { s.q.Unlock() }

// swap puts q in the place of the queue. What was posted gets its doorbell there; what waits goes
// to q, ahead of all else.
func (s *sender) swap(q txQueue, kind BackendKind) {
	s.lock()
	defer s.unlock()
	if s.backlog.closed || sameQueue(s.q, q) {
		return
	}
	s.ring()
	q.Lock()
	old := s.q
	s.use(q)
	s.kind, s.still, s.stamps = kind, false, nil
	old.Unlock()
	s.drain()
	s.flush()
	if !s.backlog.empty() && !s.backlog.armed {
		s.backlog.pause = backlogPause
		s.armDrain()
	}
}

// sameQueue says whether two are one queue, as when a device stays that is one of several.
func sameQueue(a, b txQueue) bool {
	x, sockets := a.(*txSocket)
	y, both := b.(*txSocket)
	if sockets && both {
		return x.Sender == y.Sender && x.netdevVLAN == y.netdevVLAN
	}
	return a == b
}

// kind is how a packet is treated when there is no room.
type kind uint8

const (
	kindOther   kind = iota // its sender waits
	kindSegment             // of TCP: it waits in the backlog
	kindReset               // of TCP: behind the backlog if that is not empty, else as kindControl
	kindControl             // ARP, ICMP, IGMP, NDP: has the reserve, does not wait, and goes first
)

// urgent is true for what the stack answers with while it is being delivered to. Such packets are
// few and small, and lost without harm.
func (k kind) urgent() bool { return k >= kindReset }

// kindOf classifies an outgoing packet by its headers.
func kindOf(p *hdr.Segment) kind {
	switch p.EtherType {
	case hdr.TypeIPv4, hdr.TypeIPv6:
	default:
		return kindControl
	}
	switch p.Proto {
	case hdr.ProtoTCP:
		if p.IsTCP() && p.Flags()&hdr.FlagRST != 0 {
			return kindReset
		}
		return kindSegment
	case hdr.ProtoICMP, hdr.ProtoICMPv6, hdr.ProtoIGMP:
		return kindControl
	}
	return kindOther
}

// completionInterval says how often completions are read while a send queue has something
// outstanding, and how old its counters get.
const completionInterval = 100 * time.Millisecond

// roomInterval says how often an interface is looked at that has no room for what a packet socket
// is to send, as nothing else may come to be sent.
const roomInterval = time.Millisecond

// completionTimer reads the completions of a send queue that nobody writes to any more: what was
// sent last may have failed, or the NIC may stand still. The queue's lock guards it.
type completionTimer struct {
	timer clock.Timer
	armed time.Duration // the timer is set, to this; 0: it is not
}

// sendMemoryBytes is what all fast connections of some stacks have in flight. Pieces that find no
// room are copied.
const sendMemoryBytes = 16 << 20

// UseSendMemory has netstack's large buffers, and with them what programs write in pieces of more
// than 32 KiB, lie in an arena of the process from now on. An error says what of this version of
// gVisor's is not as expected. Nothing else changes, but for a store to a variable of netstack's
// that stacks which are in use read: the race detector may tell of it.
func UseSendMemory() error {
	_, err := SendMemory(sendMemoryBytes)
	return err
}

// SendMemory serves [dv.Config.WithSendMemory]: it returns that arena, at most so many bytes of it,
// after UseSendMemory.
func SendMemory(bytes int) ([]byte, error) { return chunkmem.Memory(sendMemoryBytes, bytes) }

// SendMemoryPoisoned says that the program is built with the tag chunkpoison, for tests: buffers
// in SendMemory are overwritten and unmapped once they are released.
const SendMemoryPoisoned = chunkmem.Poisoned

// SendMemoryStats holds what SendMemory's arena counts.
type SendMemoryStats = chunkmem.Stats

// SendMemoryUsed returns the counters of the arena; the zero value before UseSendMemory.
func SendMemoryUsed() SendMemoryStats { return chunkmem.Used() }

// flush rings the doorbell for what was posted and arms the timer. The queue's lock is held.
func (s *sender) flush() {
	s.ring()
	if s.stamps != nil && s.stamps.fresh {
		s.lookForStamps()
	}
	s.armCheck()
}

// ring rings the doorbell for what was posted, and lets go of what was posted from the backlog. Its
// caller arms the timer, now or soon. The queue's lock is held.
func (s *sender) ring() {
	s.q.Flush()
	chunkmem.Sweep()
	if s.posted > 0 {
		s.count.frames[s.kind].Add(s.posted)
		s.posted = 0
	}
	s.backlog.release()
}

// armCheck arms the timer unless it is. The queue's lock is held.
func (s *sender) armCheck() {
	interval := completionInterval
	if q, ok := s.q.(*txSocket); ok && q.Waiting() > 0 {
		interval = roomInterval
	}
	if s.stamps != nil && s.stamps.waiting > 0 {
		interval = min(interval, s.stamps.pause)
	}
	c := &s.completions
	if (c.armed == 0 || interval < c.armed) && !s.backlog.closed {
		c.armed = interval
		c.timer.Reset(interval)
	}
}

// check is called by the timer. It arms that again while anything is outstanding.
func (s *sender) check() {
	s.lock()
	defer s.unlock()
	s.completions.armed = 0
	if s.backlog.closed {
		return
	}
	outstanding := s.q.Check()
	if s.stamps != nil {
		s.stamps.pause = min(2*s.stamps.pause, completionInterval)
	}
	outstanding = s.drain() || outstanding
	s.ring()
	if outstanding || !s.backlog.empty() {
		s.armCheck()
	}
}

// tryReclaim reads completions unless a sender holds the lock, which does so itself. The worker
// that received something calls it: a queue in error works again before the answer is written.
func (s *sender) tryReclaim() {
	if !s.tryLock() {
		return
	}
	defer s.unlock()
	if s.reclaim() {
		s.flush()
	}
}
