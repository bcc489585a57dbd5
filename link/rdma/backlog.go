package rdma

import (
	"sync/atomic"
	"time"

	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/dv"
)

const (
	// backlogPackets and backlogBytes bound what waits for one send queue. A connection's window
	// bounds its share; the bound is for many connections. It is as long as a frame should wait at
	// most: 16 MiB leave a port of 10 Gbit/s in 13 ms, one of 1 Gbit/s in 134 ms, which is about
	// the shortest retransmission timeout. The payload is no memory of its own: it is netstack's,
	// which keeps it until it is acknowledged.
	backlogPackets = 4096 // a power of two
	backlogBytes   = 16 << 20
	// bypassBytes says how many bytes of datagrams may go ahead of the oldest segment that waits,
	// which is about one such segment: neither kind starves the other.
	bypassBytes = 64 << 10
	// The backlog is looked at by writers, by the receive workers after each look at their rings,
	// and by a timer, after backlogPause at first, and after twice as long each time that nothing
	// has moved, up to maxBacklogPause.
	backlogPause    = 100 * time.Microsecond
	maxBacklogPause = time.Millisecond
)

// backlog is the TCP segments that a send queue had no room for, in order. netstack sends with the
// lock of a connection held, and mostly on the goroutine that works for all of them: a wait there
// stops those, and leaves a lock in starvation mode, on which that goroutine polls without pause.
// So segments never wait in their sender.
//
//	          enqueue, first                       drain, last
//	empty ─────────────────▶ waiting, timer armed ─────────────▶ empty
//	                          │    ▲  expire: drain what fits, arm again
//	                          │    └──┘  pause: 100 us if something moved, else doubled to 1 ms
//	                          │
//	                          └─ dropQueued (detach), close ─▶ dropped, counted
//	close ─▶ closed: enqueue is refused with dv.ErrClosed
//
// It holds a reference to each packet, until the doorbell has been rung for it, or it is dropped.
type backlog struct {
	// Guarded by the lock of the send queue.
	ring       []*gstack.PacketBuffer // made when first needed
	head, tail uint32                 // free-running: the packets from tail to head wait
	released   uint32                 // the packets from here to tail are posted, and still held
	bytes      int                    // of these
	bypassed   int                    // bytes of other packets posted since one of these was
	timer      clock.Timer
	armed      bool // the timer is set
	pause      time.Duration
	closed     bool

	// Read and written without the lock, too.
	waiting atomic.Uint32 // head - tail
	stale   atomic.Bool   // what waits is to be dropped
}

func (b *backlog) empty() bool { return b.head == b.tail }

// push adds a packet of size bytes; false: no room.
func (b *backlog) push(pkt *gstack.PacketBuffer, size int) bool {
	if b.head-b.released == backlogPackets || b.bytes+size > backlogBytes {
		return false
	}
	if b.ring == nil {
		b.ring = make([]*gstack.PacketBuffer, backlogPackets)
	}
	if b.empty() {
		b.bypassed = 0
	}
	b.ring[b.head%backlogPackets] = pkt.IncRef()
	b.head++
	b.bytes += size
	b.waiting.Store(b.head - b.tail)
	return true
}

// front returns the oldest packet.
func (b *backlog) front() *gstack.PacketBuffer { return b.ring[b.tail%backlogPackets] }

// mayBypass reports whether a packet of size bytes that cannot wait here may go before those that
// do.
func (b *backlog) mayBypass(size int) bool { return b.bypassed+size <= bypassBytes }

// pop takes the oldest packet out. It is held until release.
func (b *backlog) pop() {
	b.bytes -= b.front().Size()
	b.tail++
	b.bypassed = 0
	b.waiting.Store(b.head - b.tail)
}

// release lets go of the packets that were taken out.
func (b *backlog) release() {
	for ; b.released != b.tail; b.released++ {
		p := &b.ring[b.released%backlogPackets]
		(*p).DecRef()
		*p = nil
	}
}

// queueable reports whether packets of a kind wait in the backlog.
func (s *sender) queueable(k kind) bool {
	return k == kindSegment || k == kindReset && !s.backlog.empty()
}

// enqueue puts a segment into the backlog.
func (s *sender) enqueue(pkt *gstack.PacketBuffer) error {
	b := &s.backlog
	if b.closed {
		return dv.ErrClosed
	}
	if !b.push(pkt, pkt.Size()) {
		return dv.ErrRingFull
	}
	s.count.backlogged.Add(1)
	if n := uint64(b.waiting.Load()); n > s.count.backlogMax.Load() {
		s.count.backlogMax.Store(n)
	}
	if !b.armed {
		b.pause = backlogPause
		s.armDrain()
	}
	return nil
}

// armDrain sets the timer.
func (s *sender) armDrain() {
	s.backlog.armed = true
	s.backlog.timer.Reset(s.backlog.pause)
}

// drain posts what waits, as far as there is room, and reports whether anything moved. It does not
// flush.
func (s *sender) drain() bool {
	b, before := &s.backlog, s.backlog.tail
	for !b.empty() {
		err := s.post(b.front(), kindSegment)
		if err == dv.ErrRingFull {
			break
		}
		if err != nil {
			_ = s.refuse(b.front(), err)
		}
		b.pop()
	}
	return b.tail != before
}

// tryDrain drains the backlog if something waits, unless a sender holds the lock, which does so
// itself. It does not wait.
func (s *sender) tryDrain() {
	if s.backlog.waiting.Load() == 0 || !s.tryLock() {
		return
	}
	defer s.unlock()
	s.reclaim()
	s.flush()
}

// tryDrainAll has the receive workers make room for what waits to be sent.
func (e *Endpoint) tryDrainAll() {
	for _, s := range e.tx {
		s.tryDrain()
	}
}

// expire is called by the timer. It arms that again while something waits.
func (s *sender) expire() {
	s.lock()
	defer s.unlock()
	b := &s.backlog
	b.armed = false
	if b.stale.Swap(false) {
		s.dropAll()
	}
	if b.closed || b.empty() {
		return
	}
	if s.q.Reclaim() > 0 {
		s.moved()
	}
	if s.drain() {
		b.pause = backlogPause
	} else {
		b.pause = min(2*b.pause, maxBacklogPause)
	}
	s.flush()
	if !b.empty() {
		s.armDrain()
	}
}

// dropAll drops what waits, and counts it. The queue's lock is held.
func (s *sender) dropAll() {
	b := &s.backlog
	for ; !b.empty(); b.pop() {
		s.captureRefused(b.front(), "it waited for room when the link went away")
		s.count.backlogDropped.Add(1)
	}
	b.release()
}

// dropQueued drops what waits, soon, in the timer's goroutine: the caller holds locks, so that it
// must not wait itself.
func (s *sender) dropQueued() {
	if s.backlog.waiting.Load() > 0 {
		s.backlog.stale.Store(true)
		s.backlog.timer.Reset(0)
	}
}

// close sends what there is room for and drops the rest. Nothing waits any more, and the queue is
// not used by the timer, when it returns.
func (s *sender) close() {
	s.lock()
	defer s.unlock()
	s.reclaim()
	s.ring()
	s.backlog.closed = true
	s.backlog.timer.Stop()
	s.completions.timer.Stop()
	s.dropAll()
}
