package tcpfix

import (
	"slices"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/internal/random"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// pacedResends holds what one flow has to send later than netstack has sent it.
//
// Behaviour: a recovery sends at once all that it finds lost, as far as the window has room
// (RFC 6675 section 5). Where slow start has filled a queue that is every second segment of a
// flight: a thousand leave within milliseconds, into the queue that has just lost them. Those that
// are lost again leave at once again, and new data behind them, up to 21,000 in 4 s of 100 Mbit/s.
//
// Fix: beyond a few segments three quarters of the flight that has lost some are sent in a round
// trip, a little more than the window that netstack has then (RFC 9438 section 4.6). What netstack
// sends meanwhile waits behind it, so that the order stays, and leaves at twice the rate of the
// window once that flight is acknowledged. Short flights and short paths are not concerned.
//
// Upstream: docs/upstream/42-recovery-burst.md. No longer needed when TestRecoveryBurst of
// tests/conformance/upstream fails.
type pacedResends struct {
	waiting []delayed            // in the order in which netstack has sent them
	passes  *gstack.PacketBuffer // of these, the one that is sent now
	timer   tcpip.Timer          // set while something waits; nil: not needed yet
	flight  uint32               // bytes in flight when the first of these was sent again
	end     uint32               // of that flight
	share   float64              // of the flight that is sent in a round trip
	credit  float64              // bytes that could be sent at at; negative: sent before their time
	at      tcpip.MonotonicTime
}

// delayed is a packet, and a reference to it.
type delayed struct {
	seq, end uint32
	again    bool // the data was sent before
	pkt      *gstack.PacketBuffer
}

const (
	// pacedFrom gives the least round trip that what is sent again is spread over, and pacedUpTo
	// the most that it is spread over: a longer one may have been an outage.
	pacedFrom, pacedUpTo = 5 * time.Millisecond, time.Second
	// pacedBurst gives the segments that leave at once. pacedShare of a flight leaves in a round
	// trip, and laterShare of the window once that flight is acknowledged, as Linux has a paced
	// socket send in slow start.
	pacedBurst = 10
	pacedShare = 0.75
	laterShare = 2
	// pacedPause is the least time between two of those that have waited.
	pacedPause = time.Millisecond
)

// paceResend says what becomes of data that netstack sends. It may be kept for later, or dropped as
// the same waits already.
func (r *resender) paceResend(shard *resendShard, t *hdr.Tuple, f *resendFlow, x delayed,
	now tcpip.MonotonicTime) (drop bool) {
	p := &f.paced
	if len(p.waiting) == 0 {
		if !x.again || f.recent < pacedFrom || !f.beginPacing(now) {
			return false
		}
		if p.credit > 0 {
			p.credit -= float64(x.end - x.seq)
			return false
		}
	}
	r.spared.Add(1)
	if x.again && p.has(x.seq, x.end) {
		return true
	}
	x.pkt.IncRef()
	if p.waiting = append(p.waiting, x); len(p.waiting) > 1 {
		return true
	}
	if p.timer == nil {
		key := *t
		p.timer = r.clock.AfterFunc(f.untilCredit(), func() { r.sendDelayed(shard, &key) })
	} else {
		p.timer.Reset(f.untilCredit())
	}
	return true
}

// beginPacing reckons what may be sent again by now, and reports whether the flight is so long that
// it is to be spread.
func (f *resendFlow) beginPacing(now tcpip.MonotonicTime) bool {
	p, most := &f.paced, pacedBurst*float64(f.mss)
	if p.flight == 0 || !hdr.Before(f.una, p.end) {
		p.flight, p.end, p.share = f.end-f.una, f.end, pacedShare
		p.credit, p.at = most, now
	}
	f.earnCredit(now)
	p.credit = min(p.credit, most)
	return p.flight >= leastFlight
}

// earnCredit adds what may be sent since it was called last.
func (f *resendFlow) earnCredit(now tcpip.MonotonicTime) {
	p := &f.paced
	if len(p.waiting) > 0 && !hdr.Before(f.una, p.end) {
		p.flight, p.end, p.share = f.end-f.una, f.end, laterShare
	}
	p.credit += f.perSecond() * now.Sub(p.at).Seconds()
	p.at = now
}

// perSecond returns how many bytes are sent in a second.
func (f *resendFlow) perSecond() float64 {
	return float64(f.paced.flight) * f.paced.share / min(f.recent, pacedUpTo).Seconds()
}

// untilCredit returns after how long something may be sent.
func (f *resendFlow) untilCredit() time.Duration {
	return max(pacedPause, time.Duration(-f.paced.credit/f.perSecond()*float64(time.Second)))
}

// has reports whether data that was sent again waits.
func (p *pacedResends) has(seq, end uint32) bool {
	return slices.ContainsFunc(p.waiting, func(x delayed) bool {
		return !hdr.Before(seq, x.seq) && !hdr.Before(x.end, end)
	})
}

// sendDelayed sends what may be sent by now of what waits.
func (r *resender) sendDelayed(shard *resendShard, t *hdr.Tuple) {
	shard.mu.Lock()
	f := shard.flows[*t]
	if f == nil || len(f.paced.waiting) == 0 {
		shard.mu.Unlock()
		return
	}
	f.earnCredit(r.clock.NowMonotonic())
	like := f.paced.waiting[0].pkt.IncRef()
	shard.mu.Unlock()
	defer like.DecRef()
	alive, left := true, true
	for alive && left {
		alive = r.post(like, func() (pkt *gstack.PacketBuffer) {
			shard.mu.Lock()
			defer shard.mu.Unlock()
			if left = shard.flows[*t] == f; left {
				pkt = f.nextDelayed(r.clock.NowMonotonic())
				left = pkt != nil
			}
			return pkt
		})
		if alive && left {
			r.count.Add(1)
		}
	}
	shard.mu.Lock()
	defer shard.mu.Unlock()
	f.paced.passes = nil // if something else has dropped it
	switch {
	case shard.flows[*t] != f:
	case !alive:
		r.drop(shard, *t)
	case len(f.paced.waiting) > 0:
		f.paced.timer.Reset(f.untilCredit())
	}
}

// nextDelayed takes the first packet that waits and that the peer does not have, with a header as
// netstack would write it now; nil: there is none, or it is too early.
func (f *resendFlow) nextDelayed(now tcpip.MonotonicTime) *gstack.PacketBuffer {
	p := &f.paced
	for len(p.waiting) > 0 {
		x := p.waiting[0]
		needless := !hdr.Before(f.una, x.end) || x.again && covered(f.repair.sacked, x.seq, x.end)
		if !needless && p.credit <= 0 {
			return nil
		}
		p.waiting[0] = delayed{}
		p.waiting = p.waiting[1:]
		if needless {
			x.pkt.DecRef()
			continue
		}
		p.credit -= float64(x.end - x.seq)
		p.passes = x.pkt
		s := hdr.ParseSent(x.pkt, random.HashKey{})
		copy(s.Frame, f.macs[:])
		changeHeader(&s, func(tcp []byte) { f.renew(tcp, now) })
		return x.pkt
	}
	return nil
}

// close lets go of all that waits.
func (p *pacedResends) close() {
	for i := range p.waiting {
		p.waiting[i].pkt.DecRef()
	}
	if p.waiting = nil; p.timer != nil {
		p.timer.Stop()
	}
}
