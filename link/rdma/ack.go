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
	patientACKDelay = 40 * time.Millisecond  // Linux's shortest, TCP_DELACK_MIN
	maxACKDelay     = 400 * time.Millisecond // below 0.5 s: RFC 1122 section 4.2.3.2
	ackBurst        = 64                     // written by the timer under one doorbell

	// ackTrust is how many ACKs in a row have to be sent in vain, because data followed with the
	// same number within patientACKDelay, until those of a flow are held for that long.
	ackTrust = 2
)

// ACKOptions changes what an ACKCoalescer does.
type ACKOptions struct {
	// Delay is the longest an ACK is held, at most 400 ms. Default 5 ms, and 40 ms, as on Linux,
	// in a flow whose data mostly comes later than after 5 ms, but before 40. Timers of the Go
	// runtime may add a millisecond.
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
//
// The longer delay, see ACKOptions.Delay, is for no more than one segment's worth of data. A sender
// waits for that ACK with its loss probe (RFC 8985 section 7.2), and one that waits for the ACK
// before it sends on (RFC 896) does so once: the flow has the shorter delay from then on.
type ACKCoalescer struct {
	lower  packetWriter
	off    bool
	clock  clock.Clock
	epoch  time.Time
	key    random.HashKey
	timer  clock.Timer
	closed atomic.Bool

	held, saved, savedBytes, timed atomic.Uint64

	mu             sync.Mutex
	flows          ackTable
	short, patient ackQueue
	turn           uint32        // of the ACK that was held last; wraps
	wake           time.Duration // when the timer fires; never: it is not armed
	burst          [ackBurst]*gstack.PacketBuffer
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
	patient := opts.Delay
	if opts.Delay <= 0 {
		opts.Delay, patient = defaultACKDelay, patientACKDelay
	}
	c := &ACKCoalescer{
		lower: lower, off: opts.Off, clock: opts.Clock, epoch: opts.Clock.Now(),
		key: random.From(opts.Random).HashKey(), flows: newACKTable(), wake: never,
	}
	c.short.delay, c.patient.delay = min(opts.Delay, maxACKDelay), patient
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
	f := c.flows.find(key)
	if f == nil {
		f = c.flows.place(key)
		first = f.removeHeld()
		*f = ackFlow{
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
func (c *ACKCoalescer) save(held *gstack.PacketBuffer) {
	c.saved.Add(1)
	c.savedBytes.Add(uint64(held.Size()))
	held.DecRef()
}

// queueOf is where s, a pure ACK, may wait, by the rules above; nil: nowhere. mss is 0 if it is not
// known.
func (c *ACKCoalescer) queueOf(f *ackFlow, ack uint32, mss int, s *hdr.Segment) *ackQueue {
	if f.loss || s.Window() == 0 || f.window == 0 ||
		f.held != nil && !hdr.Before(f.heldACK, ack) || s.MayHaveSACK() {
		return nil
	}
	if mss == 0 {
		mss = smallMSS
	}
	fresh := int32(ack - f.acked)
	switch {
	case fresh <= 0 || int(fresh) >= 2*mss:
		return nil
	case f.trust == ackTrust && int(fresh) <= mss:
		return &c.patient
	}
	return &c.short
}

// judge learns from what follows an ACK that was sent by the timer: would it have been better held?
func (c *ACKCoalescer) judge(f *ackFlow, ack uint32, payload int) {
	f.timed = false
	if payload > 0 && ack == f.acked && c.now()-f.began < c.patient.delay {
		f.trust = min(f.trust+1, ackTrust)
	} else {
		f.trust = 0
	}
}

// Stats may be called at any time.
func (c *ACKCoalescer) Stats() ACKStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := ACKStats{
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
func (c *ACKCoalescer) Close() {
	c.closed.Store(true)
	c.timer.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writeDue(never)
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
