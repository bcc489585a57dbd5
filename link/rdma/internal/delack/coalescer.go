package delack

import (
	"io"
	"iter"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/internal/random"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

const (
	defaultDelay = 5 * time.Millisecond
	patientDelay = 40 * time.Millisecond  // Linux's shortest, TCP_DELACK_MIN
	maxDelay     = 400 * time.Millisecond // below 0.5 s: RFC 1122 section 4.2.3.2
	burstSize    = 64                     // written by the timer under one doorbell

	// fullTrust says how many ACKs in a row have to be sent in vain, because data followed with the
	// same number within patientDelay, until those of a flow are held for that long.
	fullTrust = 2
)

// Options changes what a Coalescer does.
type Options struct {
	// Delay gives the longest an ACK is held, at most 400 ms. Default 5 ms, and 40 ms, as on Linux,
	// in a flow whose data mostly comes later than after 5 ms, but before 40. Timers of the Go
	// runtime may add a millisecond.
	Delay time.Duration
	// Off passes every packet on at once.
	Off bool
	// Clock gives the time that the coalescer goes by; the zero value is the system's. In front of
	// an Endpoint it is the Endpoint's.
	Clock clock.Clock
	// Random gives the random numbers of its key; nil: the system's. In front of an Endpoint the
	// key is the Endpoint's.
	Random io.Reader
}

// Stats counts what a Coalescer did with pure ACKs.
type Stats struct {
	Held  uint64 // not sent at once
	Saved uint64 // of these, never sent: a later packet said the same and more
	Timed uint64 // of these, sent because nothing did

	// netstack counts an ACK as sent when it is held. These are what it counts too much: Saved and
	// Waiting packets.
	Waiting      uint64 // held now
	SavedBytes   uint64 // of what was never sent, from the Ethernet header on
	WaitingBytes uint64 // of what is held now
}

// Coalescer delays pure ACKs as a queueing discipline, for use as gstack.NICOptions.QDisc.
// netstack acknowledges at once whatever comes in, so that a server sends two packets per request;
// held for a moment, the ACK rides on the response.
//
// An ACK is held for at most Delay, and only while less than two segments' worth of data is
// unacknowledged on the wire (RFC 1122 section 4.2.3.2, RFC 5681 section 4.2). Never held:
// duplicate ACKs and window updates (no new data), SACK, what answers data that has come twice, the
// ACK that ends a loss (it follows one of those), to or from a zero window, anything with a flag
// besides ACK, the first of a connection.
// One ACK per flow is held; a later ACK of the flow takes its place, and every other packet of the
// flow takes it along.
//
// The longer delay, see Options.Delay, is for no more than one segment's worth of data. A sender
// waits for that ACK with its loss probe (RFC 8985 section 7.2), and one that waits for the ACK
// before it sends on (RFC 896) does so once: the flow has the shorter delay from then on.
type Coalescer struct {
	lower  Writer
	off    bool
	clock  clock.Clock
	epoch  time.Time
	key    random.HashKey
	timer  clock.Timer
	closed atomic.Bool

	held, saved, savedBytes, timed atomic.Uint64

	mu             sync.Mutex
	flows          flowTable
	short, patient heldQueue
	turn           uint32        // of the ACK that was held last; wraps
	wake           time.Duration // when the timer fires; never: it is not armed
	burst          [burstSize]*gstack.PacketBuffer
}

var _ gstack.QueueingDiscipline = (*Coalescer)(nil)

// Writer carries a Coalescer's packets on: the link below.
type Writer interface {
	// WritePacket writes one packet, whose headers s are, parsed with the Coalescer's key.
	WritePacket(pkt *gstack.PacketBuffer, s hdr.Segment) tcpip.Error
	// WriteBurst writes ACKs, which it loses rather than wait for room.
	WriteBurst(pkts []*gstack.PacketBuffer)
	// Answers reports whether an ACK of the flow with this hash, by that key, is not to be held: it
	// answers what has come twice.
	Answers(hash uint64) bool
}

// New makes a queueing discipline in front of lower. It parses headers with key, as lower does.
func New(lower Writer, key random.HashKey, opts Options) *Coalescer {
	patient := opts.Delay
	if opts.Delay <= 0 {
		opts.Delay, patient = defaultDelay, patientDelay
	}
	c := &Coalescer{
		lower: lower, off: opts.Off, clock: opts.Clock, epoch: opts.Clock.Now(),
		key: key, flows: newFlowTable(), wake: never,
	}
	c.short.delay, c.patient.delay = min(opts.Delay, maxDelay), patient
	c.timer = c.clock.NewStopped(c.expire)
	return c
}

// WritePacket implements gstack.QueueingDiscipline. The headers are parsed here, once, and handed
// to the link with the packet.
func (c *Coalescer) WritePacket(pkt *gstack.PacketBuffer) tcpip.Error {
	s := hdr.ParseSent(pkt, c.key)
	if !c.off && s.IsTCP() && !c.closed.Load() {
		first, hold := c.decide(pkt, &s)
		if first != nil {
			_ = c.lower.WritePacket(first, hdr.ParseSent(first, c.key)) // lost like any packet
			first.DecRef()
		}
		if hold {
			return nil
		}
	}
	return c.lower.WritePacket(pkt, s)
}

// smallMSS says what IPv6 and all but the oddest IPv4 paths carry, for when the segment size is not
// known: RFC 9293 section 3.7.1.
const smallMSS = 536

// decide takes the flow's held ACK out if it must go before pkt, and holds pkt if that may wait.
func (c *Coalescer) decide(
	pkt *gstack.PacketBuffer, s *hdr.Segment,
) (first *gstack.PacketBuffer, hold bool) {
	_, hash := s.Flow()
	key := hash | 1
	_, ack := hdr.Numbers(s.TCP())
	flags, window := s.Flags(), s.Window()
	pure := s.Payload == 0 && flags == hdr.FlagACK
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.flows.find(key)
	if f == nil {
		f = c.flows.place(key)
		first = f.removeHeld()
		*f = flow{
			key: key, acked: ack, window: window,
			loss: flags&hdr.FlagACK == 0 || s.Payload == 0 && s.MayHaveSACK(),
		}
		c.flows.use(f, flags)
		return first, false
	}
	c.flows.use(f, flags)
	if f.timed {
		c.judge(f, ack, s.Payload)
	}
	if pure && c.enqueue(f, c.queueOf(f, ack, int(pkt.GSOOptions.MSS), s)) {
		if f.held != nil {
			c.save(f.removeHeld())
		}
		f.held, f.heldACK, f.heldWindow = pkt.IncRef(), ack, window
		c.held.Add(1)
		return nil, true
	}
	if held := f.removeHeld(); held != nil {
		// The same number again is a duplicate ACK, so both go.
		if pure && ack == f.heldACK || flags&hdr.FlagACK == 0 || hdr.Before(ack, f.heldACK) {
			first = held
		} else {
			c.save(held)
		}
	}
	f.loss = pure && (ack == f.acked || first != nil || s.MayHaveSACK())
	f.acked, f.window = ack, window
	if flags&(hdr.FlagSYN|hdr.FlagRST) != 0 {
		f.key = 0
	}
	return first, false
}

// save lets go of an ACK that need not be sent.
func (c *Coalescer) save(held *gstack.PacketBuffer) {
	c.saved.Add(1)
	c.savedBytes.Add(uint64(held.Size()))
	held.DecRef()
}

// queueOf returns where s, a pure ACK, may wait, by the rules above; nil: nowhere. mss is 0 if it
// is not known.
func (c *Coalescer) queueOf(f *flow, ack uint32, mss int, s *hdr.Segment) *heldQueue {
	if f.loss || s.Window() == 0 || f.window == 0 ||
		f.held != nil && !hdr.Before(f.heldACK, ack) || s.MayHaveSACK() || c.answers(s) {
		return nil
	}
	if mss == 0 {
		mss = smallMSS
	}
	fresh := int32(ack - f.acked)
	switch {
	case fresh <= 0 || int(fresh) >= 2*mss:
		return nil
	case f.trust == fullTrust && int(fresh) <= mss:
		return &c.patient
	}
	return &c.short
}

// answers reports whether an ACK will tell of data that has come twice.
func (c *Coalescer) answers(s *hdr.Segment) bool {
	_, hash := s.Flow()
	return c.lower.Answers(hash)
}

// judge learns from what follows an ACK that was sent by the timer: would it have been better held?
func (c *Coalescer) judge(f *flow, ack uint32, payload int) {
	f.timed = false
	if payload > 0 && ack == f.acked && c.now()-f.began < c.patient.delay {
		f.trust = min(f.trust+1, fullTrust)
	} else {
		f.trust = 0
	}
}

// Stats may be called at any time.
func (c *Coalescer) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := Stats{
		Held: c.held.Load(), Saved: c.saved.Load(), SavedBytes: c.savedBytes.Load(),
		Timed: c.timed.Load(),
	}
	for f := range c.flows.all() {
		if f.held != nil {
			s.Waiting++
			s.WaitingBytes += uint64(f.held.Size())
		}
	}
	return s
}

// Close implements gstack.QueueingDiscipline: what is held is sent, as it may be all that a peer in
// LAST-ACK waits for, and packets still written are passed on.
func (c *Coalescer) Close() {
	c.closed.Store(true)
	c.timer.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writeDue(never)
}

const (
	waysOfSet = 4 // flows of one set
	// The table has firstSets sets, and twice as many whenever flows in use have lost their
	// places to others too often: as many within idleSeconds as a quarter of the sets. Up to
	// maxSets: 64 KiB, up to 4 MiB. Both are powers of two.
	firstSets = 256
	maxSets   = 16384
	// idleSeconds says after how many seconds without a packet a flow makes room for another.
	idleSeconds = 10
)

// flow holds what is known of one direction of a connection: a cache line.
type flow struct {
	key        uint64 // hash of addresses and ports; 0: free
	held       *gstack.PacketBuffer
	began      time.Duration // when the ACK that was held last was, for the first time
	heldACK    uint32
	acked      uint32 // the ACK number that was sent last
	turn       uint32 // Coalescer.turn of held: its entry in a queue has the same
	used       uint32 // flowTable.seconds at the last packet; 0: it may be forgotten
	window     uint16 // sent last
	heldWindow uint16 // of held
	loss       bool   // the last ACK was a duplicate or had SACK, or there was none
	ends       bool   // a FIN was sent
	patient    bool   // held waits in the queue of that name
	timed      bool   // the timer has sent what was held, and nothing was sent since
	trust      uint8  // fullTrust: may be held for longer
}

// removeHeld removes the held ACK, if any; the caller gets the reference.
func (f *flow) removeHeld() *gstack.PacketBuffer {
	held := f.held
	f.held = nil
	return held
}

// flowTable finds flows by key. The lock of its Coalescer guards it.
type flowTable struct {
	sets    [][waysOfSet]flow
	seconds uint32 // the time, at the last ACK that was held; from idleSeconds on
	lost    int    // flows in use that have lost their places, since the second of since
	since   uint32
}

func newFlowTable() flowTable {
	return flowTable{sets: make([][waysOfSet]flow, firstSets), seconds: idleSeconds}
}

// set returns where a flow has its place.
func (t *flowTable) set(key uint64) *[waysOfSet]flow {
	return &t.sets[uint32(key>>32)&uint32(len(t.sets)-1)]
}

// find returns nil if the flow has no place.
func (t *flowTable) find(key uint64) *flow {
	set := t.set(key)
	for i := range set {
		if set[i].key == key {
			return &set[i]
		}
	}
	return nil
}

// place returns a place for a new flow, which may be that of another one. Flows move.
func (t *flowTable) place(key uint64) *flow {
	f := t.oldest(key)
	if f.key == 0 || t.seconds-f.used >= idleSeconds || len(t.sets) == maxSets {
		return f
	}
	if t.seconds-t.since >= idleSeconds {
		t.since, t.lost = t.seconds, 0
	}
	if t.lost++; t.lost <= len(t.sets)/4 {
		return f
	}
	t.grow()
	return t.place(key)
}

// oldest returns a free place for a flow, or that of the flow which was not used for longest.
func (t *flowTable) oldest(key uint64) *flow {
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
func (t *flowTable) grow() {
	old := *t
	t.sets, t.lost = make([][waysOfSet]flow, 2*len(old.sets)), 0
	for f := range old.all() {
		if f.key != 0 {
			*t.oldest(f.key) = *f
		}
	}
}

// use takes note of a packet with these flags. A flow does not count as used before its handshake
// and after its end, lest a flood of SYNs, or many short connections, have the table grow.
func (t *flowTable) use(f *flow, flags byte) {
	f.ends = f.ends || flags&hdr.FlagFIN != 0
	if f.used = t.seconds; f.ends || flags&(hdr.FlagSYN|hdr.FlagRST) != 0 {
		f.used = 0
	}
}

// all returns all places, also the free ones.
func (t *flowTable) all() iter.Seq[*flow] {
	return func(yield func(*flow) bool) {
		for i := range t.sets {
			for j := range t.sets[i] {
				if !yield(&t.sets[i][j]) {
					return
				}
			}
		}
	}
}

// maxHeld says how many ACKs wait in one queue at most, among them those that are sent already.
const maxHeld = 4096

// never means later than any time.
const never = time.Duration(math.MaxInt64)

// heldQueue holds a ring of flows with an ACK that is held for the same time, the oldest first. The
// lock of its Coalescer guards it.
type heldQueue struct {
	delay      time.Duration
	entries    [maxHeld]deadline
	head, tail uint32 // free-running: entries between tail and head wait
}

type deadline struct {
	key   uint64 // of the flow
	until time.Duration
	turn  uint32 // the flow's, if the ACK still waits
}

// now returns the time since the coalescer was made.
func (c *Coalescer) now() time.Duration { return c.clock.Since(c.epoch) }

// enqueue has the flow's ACK sent in time; one that waits already keeps its time, unless q is for a
// shorter one. False: q is nil, or has no room.
func (c *Coalescer) enqueue(f *flow, q *heldQueue) bool {
	if q == nil {
		return false
	}
	if f.held != nil && (!f.patient || q == &c.patient) {
		return true
	}
	if q == &c.patient && q.full() {
		q = &c.short
	}
	if q.full() || c.closed.Load() {
		return false
	}
	now := c.now()
	if f.held == nil {
		f.began = now
	}
	c.turn++
	f.turn, f.patient = c.turn, q == &c.patient
	c.flows.seconds = idleSeconds + uint32(now/time.Second)
	until := now + q.delay
	q.entries[q.head%maxHeld] = deadline{f.key, until, f.turn}
	q.head++
	c.arm(until, now)
	return true
}

func (q *heldQueue) full() bool { return q.head-q.tail == maxHeld }

// arm schedules expire for a time, or earlier.
func (c *Coalescer) arm(until, now time.Duration) {
	if until < c.wake {
		c.wake = until
		c.timer.Reset(until - now)
	}
}

// expire runs when the oldest ACK's time is over, and re-arms the timer while others wait. It
// writes with the mutex held, so that nothing newer of a flow can go out before: netstack, for one,
// takes the window of an ACK that was overtaken for new, sends beyond what the peer can take, and
// the two never recover.
func (c *Coalescer) expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writeDue(c.now())
}

// writeDue sends the ACKs whose time is over at now. mu is held.
func (c *Coalescer) writeDue(now time.Duration) {
	for n := c.due(now); n > 0; n = c.due(now) {
		c.timed.Add(uint64(n))
		c.lower.WriteBurst(c.burst[:n])
		for _, pkt := range c.burst[:n] {
			pkt.DecRef()
		}
		clear(c.burst[:n])
	}
}

// due moves ACKs whose time is over at now to burst, as many as go in, and returns their number.
func (c *Coalescer) due(now time.Duration) int {
	c.wake = never
	n := c.dueOf(&c.short, now, 0)
	return c.dueOf(&c.patient, now, n)
}

// dueOf is due for one queue; burst has n already.
func (c *Coalescer) dueOf(q *heldQueue, now time.Duration, n int) int {
	for q.tail != q.head && n < len(c.burst) {
		e := &q.entries[q.tail%maxHeld]
		if f := c.flows.find(e.key); f != nil && f.held != nil && f.turn == e.turn {
			if e.until > now {
				c.arm(e.until, now)
				return n
			}
			f.acked, f.window = f.heldACK, f.heldWindow
			if f.timed = !f.patient; f.patient {
				f.trust = 0
			}
			c.burst[n] = f.removeHeld()
			n++
		}
		q.tail++
	}
	return n
}
