package rdma

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/internal/random"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// netstack bounds what waits for a socket by its receive buffer, but for TCP segments without
// payload, which it queues without a bound (gVisor pkg/tcpip/transport/tcp/segment_queue.go): a
// stranger who sends ACKs to a listening port faster than it refuses them has it queue all of them,
// and clients wait behind. So the segments without payload that have not been worked off are
// counted here, and from some number on only those go to the stack that most deserve it. Segments
// with payload, and what a slow reader leaves unread, are not counted: they are bounded, and cannot
// keep ACKs out.
//
// netstack does not tell when it has done with a segment: it works on a clone of the packet,
// which PacketBufferOptions.OnRelease does not follow, and takes the headers' memory for itself
// when somebody else has a view of it. But the clone shares all other memory of the packet. So
// one packet in 32, drawn at random so that nobody can arrange which, has an empty view of some
// memory behind its headers, of which the worker keeps another, and looks whether that is the
// only one left. Each stands for 32.

const (
	// DefaultRxLimit gives the default of Options.RxLimit, in bytes.
	DefaultRxLimit = 16 << 20
	// minRxLimit says what Options.RxLimit has to be at least, in bytes: half a batch.
	minRxLimit = 256 << 10
	// sampleShare counts the packets that a sample stands for.
	sampleShare = 32
	// waitingSize says what a segment without payload takes while it waits, in bytes: netstack's
	// segment and packet, a view and a chunk with the frame.
	waitingSize = tcp.SegOverheadSize + 256
	// collectMisses says how many samples still in use end a search for those that are not. Those
	// sampled first are mostly the first to be free.
	collectMisses = 4
)

// waiting holds what is known of the segments that one worker delivered and that the stack has not
// worked off. The worker adds to them; whoever asks how many they are looks which are worked off,
// as a worker whose queue is quiet does not.
type waiting struct {
	skip   uint32        // packets until the next sample; the worker's
	off    bool          // nothing is sampled: marks do not work; see checkBuffers
	random random.Source // seeds draw; written before the worker starts
	draw   *rand.Rand    // the worker's; nil until needed

	mu         sync.Mutex     // guards what follows, but not reading packets
	samples    []*buffer.View // a ring, a power of two long; nil until needed
	head, tail uint32         // free-running: the samples from tail to head are in use
	packets    atomic.Int64   // estimated to wait
}

// add takes note of a packet, and returns what v holds as its buffer.
func (q *waiting) add(v *buffer.View) buffer.Buffer {
	if q.off {
		return buffer.MakeWithView(v)
	}
	if q.skip > 0 {
		q.skip--
		return buffer.MakeWithView(v)
	}
	q.skip = q.stream().Uint32N(2*sampleShare - 1)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.collectLocked()
	if int(q.head-q.tail) == len(q.samples) {
		q.grow()
	}
	mark := buffer.NewViewSize(1)
	q.samples[q.head%uint32(len(q.samples))] = mark.Clone()
	q.head++
	q.publish()
	return marked(v, mark)
}

// marked is v, of at least one byte, with mark behind it as an empty view. A buffer takes no empty
// view: so mark has one byte, and v one less, while it is made.
func marked(v, mark *buffer.View) buffer.Buffer {
	v.CapLength(v.Size() - 1)
	b, behind := buffer.MakeWithView(v), buffer.MakeWithView(mark)
	b.Merge(&behind)
	v.Grow(1)
	mark.CapLength(0)
	return b
}

// stream returns what samples are drawn by.
func (q *waiting) stream() *rand.Rand {
	if q.draw == nil {
		q.draw = q.random.Stream()
	}
	return q.draw
}

// publish stores the estimate. mu is held.
func (q *waiting) publish() { q.packets.Store(int64(q.head-q.tail) * sampleShare) }

// grow doubles the ring. mu is held.
func (q *waiting) grow() {
	old, n := q.samples, q.head-q.tail
	q.samples = make([]*buffer.View, max(64, 2*len(old)))
	for i := range n {
		q.samples[i] = old[(q.tail+i)%uint32(len(old))]
	}
	q.head, q.tail = n, 0
}

// collect lets go of samples that nobody else has a view of. Any goroutine may call it.
func (q *waiting) collect() {
	if q.packets.Load() == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.collectLocked()
}

// collectLocked does what collect does, with mu held. A sample that is still in use waits for its
// turn behind the others.
func (q *waiting) collectLocked() {
	for misses := 0; q.head != q.tail && misses < collectMisses; q.tail++ {
		v := &q.samples[q.tail%uint32(len(q.samples))]
		sample := *v
		*v = nil
		if unshared(sample) {
			sample.Release()
			continue
		}
		misses++
		q.samples[q.head%uint32(len(q.samples))] = sample
		q.head++
	}
	q.publish()
}

// release lets go of all samples.
func (q *waiting) release() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for ; q.tail != q.head; q.tail++ {
		q.samples[q.tail%uint32(len(q.samples))].Release()
	}
	q.samples = nil
	q.publish()
}

// pressure says how much waits in the stack.
type pressure uint8

const (
	pressureNone   pressure = iota
	pressureHalf            // half of the limit: those of connections and all SYNs go on
	pressureHigh            // three quarters of it: those of connections and some SYNs do
	pressureSevere          // seven eighths of it: those of connections do
	pressureFull            // all of it: none do
)

// waitingBytes returns what is estimated to wait, of all workers.
func (e *Endpoint) waitingBytes() uint64 {
	packets := int64(0)
	for _, c := range e.rxCounters() {
		packets += c.waiting.packets.Load()
	}
	return uint64(packets) * uint64(waitingSize)
}

// collectWaiting returns waitingBytes behind a look at what has been worked off.
func (e *Endpoint) collectWaiting() uint64 {
	for _, c := range e.rxCounters() {
		c.waiting.collect()
	}
	return e.waitingBytes()
}

// pressure classifies what waits, or did a moment ago, once per batch.
func (w *worker) pressure() pressure { return w.e.admission.hold.apply(w.pressureNow()) }

// pressureNow classifies what waits.
func (w *worker) pressureNow() pressure {
	limit := w.e.rxLimit
	if w.e.waitingBytes() < limit/2 {
		return pressureNone
	}
	w.e.admission.begin()
	switch all := w.e.collectWaiting(); {
	case all < limit/2:
		return pressureNone
	case all < limit/4*3:
		return pressureHalf
	case all < limit/8*7:
		return pressureHigh
	case all < limit:
		return pressureSevere
	}
	return pressureFull
}

// unbounded is true of what the stack may queue without a bound: TCP without payload, and what may
// turn out to be that, as fragments of it.
func unbounded(frame []byte, l *hdr.Packet) bool {
	if l.Fragment {
		return l.Proto != hdr.ProtoUDP
	}
	size := l.End - l.L4
	return l.IsTCP() && size <= int(frame[l.L4+12]>>4)*4
}

// sheds decides whether a frame is to be dropped because too much waits already, and counts it.
func (w *worker) sheds(frame []byte, l *hdr.Packet, p pressure) bool {
	if p == pressureNone || !unbounded(frame, l) || w.mayPass(frame, l, p) {
		return false
	}
	return !w.drop(dropShed)
}

// mayPass reports whether a frame of the unbounded kind may still go to the stack.
func (w *worker) mayPass(frame []byte, l *hdr.Packet, p pressure) bool {
	if p == pressureFull || l.Fragment {
		return false
	}
	s := hdr.Received(frame, l, w.e.flows.Key())
	if s.Flags()&(hdr.FlagSYN|hdr.FlagACK) == hdr.FlagSYN {
		return p == pressureHalf || p == pressureHigh && w.e.admission.prefersSYN(&s)
	}
	return w.attachment.networks.Load().connected(&s) || w.e.admission.answersSYNACK(&s)
}

// admission tells, when too many TCP segments without payload wait for all to be let in, which of
// them are hardly a flood's, see flood.go. A flood has forged or ever new addresses, and does
// not look at the answers. So these go first:
//
//   - a SYN from an address to which a connection has sent data lately: netstack sends data only
//     once the handshake has proved the address;
//   - a SYN that was dropped and comes again, as any client sends it, after a second;
//   - an ACK of a SYN-ACK that was sent lately. The listener has no state of that if it was a SYN
//     cookie (RFC 4987 section 3.6), and the client never repeats the ACK.
//
// All of it is in tables of fixed size. Any goroutine may use it.
type admission struct {
	key   random.HashKey // of the segments that are shown
	peers recent         // remote addresses to which data was sent
	flood atomic.Pointer[floodTables]
	hold  pressureHold
}

// floodTables are made when many segments wait for the first time, and stay then.
type floodTables struct {
	syns    recent // SYNs dropped: flow and sequence number
	synACKs recent // sent: flow and sequence number
}

const (
	// recentPeers is for how many addresses there is room.
	recentPeers = 4096
	// recentSYNs and recentSYNACKs are for how many of them there is room, 4 bytes each. A SYN that
	// is repeated after a second is known with 50,000 others between in two of three cases.
	recentSYNs    = 1 << 17
	recentSYNACKs = 1 << 16
)

func newAdmission(key random.HashKey, c clock.Clock) *admission {
	return &admission{key: key, peers: newRecent(recentPeers), hold: pressureHold{now: c.Now}}
}

// sent takes note of an outgoing segment.
func (a *admission) sent(s *hdr.Segment) {
	if !s.IsTCP() {
		return
	}
	if s.Payload > 0 {
		flow, _ := s.Flow()
		a.peers.note(a.hashPeer(flow))
		return
	}
	const synACK = hdr.FlagSYN | hdr.FlagACK
	if flood := a.flood.Load(); flood != nil && s.Flags()&synACK == synACK {
		seq, _ := hdr.Numbers(s.TCP())
		_, hash := s.Flow()
		flood.synACKs.note(hashHandshake(hash, seq))
	}
}

// hashPeer returns the hash of a flow's remote address.
func (a *admission) hashPeer(flow *hdr.Tuple) uint64 { return a.key.Bytes(flow.Destination()) }

// hashHandshake returns the hash of a flow, given its own, and a sequence number.
func hashHandshake(flow uint64, seq uint32) uint64 { return flow ^ uint64(seq)*0x9e3779b97f4a7c15 }

// begin makes the tables for a flood.
func (a *admission) begin() {
	if a.flood.Load() == nil {
		a.flood.CompareAndSwap(nil, &floodTables{
			syns: newRecent(recentSYNs), synACKs: newRecent(recentSYNACKs)})
	}
}

// prefersSYN reports whether a received SYN goes first, and takes note of any other. The flood has
// begun.
func (a *admission) prefersSYN(s *hdr.Segment) bool {
	flow, of := s.Flow()
	if a.peers.has(a.hashPeer(flow)) {
		return true
	}
	seq, _ := hdr.Numbers(s.TCP())
	syns, hash := &a.flood.Load().syns, hashHandshake(of, seq)
	if syns.has(hash) {
		return true
	}
	syns.note(hash)
	return false
}

// answersSYNACK reports whether a received segment acknowledges a SYN-ACK that was sent lately. The
// flood has begun.
func (a *admission) answersSYNACK(s *hdr.Segment) bool {
	const mask = hdr.FlagSYN | hdr.FlagRST | hdr.FlagACK
	if s.Flags()&mask != hdr.FlagACK {
		return false
	}
	_, ack := hdr.Numbers(s.TCP())
	_, hash := s.Flow()
	return a.flood.Load().synACKs.has(hashHandshake(hash, ack-1))
}

const (
	// shortestHold and longestHold are how long the pressure of a flood is held: twice as long each
	// time that it comes back soon.
	shortestHold = time.Second
	longestHold  = 8 * time.Second
)

// pressureHold keeps the pressure up for a while after it has fallen. What the stack is given of a
// flood it works off as fast as it can, to the last segment, and the processor's time goes there:
// on a busy machine the NIC, or the kernel behind it, then drops frames of everybody. So a flood is
// let in for as long as it takes to show, and then for a small part of the time.
type pressureHold struct {
	now     func() time.Time
	holding atomic.Bool // held is not pressureNone

	mu    sync.Mutex    // guards what follows
	held  pressure      // pressureHigh at most
	until time.Time     // when it ends or ended
	time  time.Duration // how long it is held after the pressure was as high
}

// apply takes note of the pressure as measured, and returns what it counts as.
func (h *pressureHold) apply(p pressure) pressure {
	if p == pressureNone && !h.holding.Load() {
		return p
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	if !now.Before(h.until) {
		h.held = pressureNone
	}
	if level := min(p, pressureHigh); level != pressureNone && level >= h.held {
		if h.held == pressureNone {
			h.begin(now)
		}
		h.held, h.until = level, now.Add(h.time)
	}
	h.holding.Store(h.held != pressureNone)
	return max(p, h.held)
}

// begin chooses for how long a flood that begins is held.
func (h *pressureHold) begin(now time.Time) {
	if now.Sub(h.until) < 2*h.time {
		h.time = min(2*h.time, longestHold)
	} else {
		h.time = shortestHold
	}
}

// recent remembers hashes that were noted lately: of two in one place the later stays, so that the
// more are noted, the sooner one is forgotten. Its size is fixed, and nothing allocates. Any
// goroutine may use it.
type recent struct {
	slots []atomic.Uint32 // by the low bits of a hash: its high 32 bits, the lowest of them set
}

// newRecent has room for n hashes, a power of two.
func newRecent(n int) recent { return recent{make([]atomic.Uint32, n)} }

// slot returns the place of a hash, and what stands there if it was noted.
func (r *recent) slot(hash uint64) (*atomic.Uint32, uint32) {
	return &r.slots[hash&uint64(len(r.slots)-1)], uint32(hash>>32) | 1
}

// note remembers a hash. One that is there already costs no store.
func (r *recent) note(hash uint64) {
	if s, tag := r.slot(hash); s.Load() != tag {
		s.Store(tag)
	}
}

// has reports whether a hash is remembered. It is wrong about one hash in 2^31 times the number of
// slots.
func (r *recent) has(hash uint64) bool {
	s, tag := r.slot(hash)
	return s.Load() == tag
}
