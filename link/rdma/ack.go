package rdma

import (
	"io"
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
	defaultACKDelay = 5 * time.Millisecond
	maxACKDelay     = 400 * time.Millisecond // below 0.5 s: RFC 1122 section 4.2.3.2
	ackFlows        = 4096                   // flows remembered at a time, a power of two
	maxHeld         = 4096                   // ACKs held at a time
	ackBurst        = 64                     // written by the timer under one doorbell
)

// ACKOptions changes what an ACKCoalescer does.
type ACKOptions struct {
	// Delay is the longest an ACK is held, default 5 ms (Linux waits for 40 ms and more), at most
	// 400 ms. Timers of the Go runtime may add a millisecond.
	Delay time.Duration
	// Off passes every packet on at once.
	Off bool
	// Clock is the time, and Random the random numbers, that the coalescer goes by; the zero values
	// are the system's. In front of an *Endpoint both are the Endpoint's.
	Clock  clock.Clock
	Random io.Reader
}

// ACKStats counts what an ACKCoalescer did with pure ACKs.
type ACKStats struct {
	Held  uint64 // not sent at once
	Saved uint64 // of these, never sent: a later packet said the same and more
	Timed uint64 // of these, sent because nothing did

	// netstack counts an ACK as sent when it is held. These are what it counts too much: Saved and
	// Waiting packets.
	Waiting      uint64 // held now
	SavedBytes   uint64 // of what was never sent, from the Ethernet header on
	WaitingBytes uint64 // of what is held now
}

// ACKCoalescer is a queueing discipline that delays pure ACKs, for use as gstack.NICOptions.QDisc.
// netstack acknowledges at once whatever comes in, so that a server sends two packets per request;
// held for a moment, the ACK rides on the response.
//
// An ACK is held for at most Delay, and only while less than two segments' worth of data is
// unacknowledged on the wire (RFC 1122 section 4.2.3.2, RFC 5681 section 4.2). Never held:
// duplicate ACKs and window updates (no new data), SACK, the ACK that ends a loss (it follows one
// of those), to or from a zero window, anything with a flag besides ACK, the first of a connection.
// One ACK per flow is held; a later ACK of the flow takes its place, and every other packet of the
// flow takes it along.
type ACKCoalescer struct {
	lower  packetWriter
	delay  time.Duration
	off    bool
	clock  clock.Clock
	key    random.HashKey
	timer  clock.Timer
	closed atomic.Bool

	held, saved, savedBytes, timed atomic.Uint64

	mu    sync.Mutex
	flows []ackFlow // by hash; of two flows in one place the later stays
	queue ackQueue  // flows with an ACK held, the oldest first
	burst [ackBurst]*gstack.PacketBuffer
}

// ackFlow is what is known of one direction of a connection.
type ackFlow struct {
	key        uint64 // hash of addresses and ports; 0: free
	held       *gstack.PacketBuffer
	heldACK    uint32
	acked      uint32 // the ACK number that was sent last
	turn       uint32 // counts what was held, so that the queue knows what it waits for
	window     uint16 // sent last
	heldWindow uint16 // of held
	loss       bool   // the last ACK was a duplicate or had SACK, or there was none
}

// ackQueue is a ring.
type ackQueue struct {
	entries    [maxHeld]ackDeadline
	head, tail uint32 // free-running: entries between tail and head wait
}

type ackDeadline struct {
	flow, turn uint32
	until      time.Time
}

var _ gstack.QueueingDiscipline = (*ACKCoalescer)(nil)

// packetWriter is the link below. writeBurst is for ACKs, which it loses rather than wait.
type packetWriter interface {
	writePacket(pkt *gstack.PacketBuffer, s hdr.Segment) tcpip.Error
	writeBurst(pkts []*gstack.PacketBuffer)
}

// NewACKCoalescer makes a queueing discipline in front of lower, which is the NIC's link endpoint.
// With an *Endpoint it also saves the allocation per packet that netstack's default discipline
// makes.
func NewACKCoalescer(lower gstack.LinkWriter, opts ACKOptions) *ACKCoalescer {
	if e, ok := lower.(*Endpoint); ok {
		opts.Clock = e.opts.Clock
		c := newACKCoalescer(e, opts)
		c.key = e.flows.Key()
		return c
	}
	return newACKCoalescer(linkWriter{lower}, opts)
}

func newACKCoalescer(lower packetWriter, opts ACKOptions) *ACKCoalescer {
	if opts.Delay <= 0 {
		opts.Delay = defaultACKDelay
	}
	c := &ACKCoalescer{
		lower: lower, delay: min(opts.Delay, maxACKDelay), off: opts.Off,
		clock: opts.Clock, key: random.From(opts.Random).HashKey(),
		flows: make([]ackFlow, ackFlows),
	}
	c.timer = c.clock.NewStopped(c.expire)
	return c
}

// WritePacket implements gstack.QueueingDiscipline. The headers are parsed here, once, and handed
// to the link with the packet.
func (c *ACKCoalescer) WritePacket(pkt *gstack.PacketBuffer) tcpip.Error {
	s := hdr.ParseSent(pkt, c.key)
	if !c.off && s.IsTCP() && !c.closed.Load() {
		first, hold := c.decide(pkt, &s)
		if first != nil {
			_ = c.lower.writePacket(first, hdr.ParseSent(first, c.key)) // lost like any packet
			first.DecRef()
		}
		if hold {
			return nil
		}
	}
	return c.lower.writePacket(pkt, s)
}

// smallMSS is what IPv6 and all but the oddest IPv4 paths carry, for when the segment size is not
// known: RFC 9293 section 3.7.1.
const smallMSS = 536

// decide takes the flow's held ACK out if it must go before pkt, and holds pkt if that may wait.
func (c *ACKCoalescer) decide(
	pkt *gstack.PacketBuffer, s *hdr.Segment,
) (first *gstack.PacketBuffer, hold bool) {
	_, hash := s.Flow()
	key := hash | 1
	_, ack := hdr.Numbers(s.TCP())
	flags, window := s.Flags(), s.Window()
	pure := s.Payload == 0 && flags == hdr.FlagACK
	c.mu.Lock()
	defer c.mu.Unlock()
	place := uint32(key>>32) & (ackFlows - 1)
	f := &c.flows[place]
	if f.key != key {
		first = f.removeHeld()
		*f = ackFlow{
			key: key, acked: ack, window: window, turn: f.turn,
			loss: flags&hdr.FlagACK == 0 || s.Payload == 0 && s.MayHaveSACK(),
		}
		return first, false
	}
	if pure && f.mayHold(ack, window, int(pkt.GSOOptions.MSS), s) && c.enqueue(f, place) {
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
func (c *ACKCoalescer) save(held *gstack.PacketBuffer) {
	c.saved.Add(1)
	c.savedBytes.Add(uint64(held.Size()))
	held.DecRef()
}

// mayHold decides whether s, a pure ACK, may be held, by the rules above. mss is 0 if it is not
// known.
func (f *ackFlow) mayHold(ack uint32, window uint16, mss int, s *hdr.Segment) bool {
	if f.loss || window == 0 || f.window == 0 || f.held != nil && !hdr.Before(f.heldACK, ack) ||
		s.MayHaveSACK() {
		return false
	}
	if mss == 0 {
		mss = smallMSS
	}
	fresh := int32(ack - f.acked)
	return fresh > 0 && int(fresh) < 2*mss
}

// enqueue has the flow's ACK sent in time; one that waits already keeps its time. False: no room.
func (c *ACKCoalescer) enqueue(f *ackFlow, place uint32) bool {
	if f.held != nil {
		return true
	}
	q := &c.queue
	if q.head-q.tail == maxHeld || c.closed.Load() {
		return false
	}
	f.turn++
	q.entries[q.head%maxHeld] = ackDeadline{place, f.turn, c.clock.Now().Add(c.delay)}
	if q.head++; q.head-q.tail == 1 {
		c.timer.Reset(c.delay)
	}
	return true
}

// removeHeld removes the held ACK, if any; the caller gets the reference.
func (f *ackFlow) removeHeld() *gstack.PacketBuffer {
	held := f.held
	f.held = nil
	return held
}

// expire runs when the oldest ACK's time is over, and re-arms the timer while others wait. It
// writes with the mutex held, so that nothing newer of a flow can go out before: netstack, for one,
// takes the window of an ACK that was overtaken for new, sends beyond what the peer can take, and
// the two never recover.
func (c *ACKCoalescer) expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for n := c.due(); n > 0; n = c.due() {
		c.timed.Add(uint64(n))
		c.lower.writeBurst(c.burst[:n])
		for _, pkt := range c.burst[:n] {
			pkt.DecRef()
		}
		clear(c.burst[:n])
	}
}

// due moves ACKs whose time is over to burst, as many as go in, and returns their number.
func (c *ACKCoalescer) due() int {
	q, now, n := &c.queue, c.clock.Now(), 0
	for q.tail != q.head && n < len(c.burst) {
		e := &q.entries[q.tail%maxHeld]
		f := &c.flows[e.flow]
		if f.held != nil && f.turn == e.turn {
			if wait := e.until.Sub(now); wait > 0 {
				c.timer.Reset(wait)
				return n
			}
			f.acked, f.window = f.heldACK, f.heldWindow
			c.burst[n] = f.removeHeld()
			n++
		}
		q.tail++
	}
	return n
}

// Stats may be called at any time.
func (c *ACKCoalescer) Stats() ACKStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := ACKStats{
		Held: c.held.Load(), Saved: c.saved.Load(), SavedBytes: c.savedBytes.Load(),
		Timed: c.timed.Load(),
	}
	for i := range c.flows {
		if held := c.flows[i].held; held != nil {
			s.Waiting++
			s.WaitingBytes += uint64(held.Size())
		}
	}
	return s
}

// Close implements gstack.QueueingDiscipline: what is held is dropped, as the NIC is going away,
// and packets still written are passed on.
func (c *ACKCoalescer) Close() {
	c.closed.Store(true)
	c.timer.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.flows {
		if held := c.flows[i].removeHeld(); held != nil {
			held.DecRef()
		}
	}
	c.queue.tail = c.queue.head
}

// linkWriter makes a packetWriter of any link.
type linkWriter struct{ gstack.LinkWriter }

func (l linkWriter) writePacket(pkt *gstack.PacketBuffer, _ hdr.Segment) tcpip.Error {
	var list gstack.PacketBufferList
	list.PushBack(pkt)
	_, err := l.WritePackets(list)
	return err
}

func (l linkWriter) writeBurst(pkts []*gstack.PacketBuffer) {
	var list gstack.PacketBufferList
	for _, pkt := range pkts {
		list.PushBack(pkt)
	}
	_, _ = l.WritePackets(list)
}
