package rdma

import (
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/capture"
)

// taps are the captures of an endpoint. nil: there are none.
type taps = atomic.Pointer[[]*capture.Tap]

// AddTap has t record the frames of all queues from now on, on whatever backend: received ones
// before segments are merged, sent ones as they are posted.
func (e *Endpoint) AddTap(t *capture.Tap) {
	e.changeTaps(func(all []*capture.Tap) []*capture.Tap { return append(all, t) })
}

// RemoveTap ends what AddTap began. A batch at hand may still come to t.
func (e *Endpoint) RemoveTap(t *capture.Tap) {
	e.changeTaps(func(all []*capture.Tap) []*capture.Tap {
		return slices.DeleteFunc(all, func(other *capture.Tap) bool { return other == t })
	})
}

// changeTaps publishes a changed copy of the list.
func (e *Endpoint) changeTaps(edit func([]*capture.Tap) []*capture.Tap) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var all []*capture.Tap
	if p := e.taps.Load(); p != nil {
		all = slices.Clone(*p)
	}
	if all = edit(all); len(all) == 0 {
		e.taps.Store(nil)
		return
	}
	e.taps.Store(&all)
}

// capture copies a batch of received frames as they came. receive commits it once it is known which
// are dropped.
func (w *worker) capture(taps []*capture.Tap, frames []dv.Packet) {
	if !w.captured.Begin(taps, capture.In, w.q.Index()) {
		return
	}
	timed := w.captured.WantsNICTime()
	if timed {
		w.nicTime.follow(w, frames)
		w.timed = true
	}
	var one [1][]byte
	f := capture.Frame{Bufs: one[:]}
	for i := range frames {
		p := &frames[i]
		one[0], f.Tag, f.Tagged = p.Data, p.VLAN, p.Flags&dv.RxVLAN != 0
		if timed {
			f.NICTime = w.nicTime.of(p.Timestamp)
		}
		w.captured.Add(&f)
	}
}

// nicTime is the NIC's clock as the worker knows it. The zero value knows nothing.
type nicTime struct {
	clock dv.Clock
	known bool
	set   time.Time // when the clock was compared with the system's
}

// nicTimeSet says how long the NIC's clock runs by itself, and nicTimeDrift by how much it may then
// be behind: crystals differ by 100 ppm at most.
const nicTimeSet, nicTimeDrift = time.Second, 100 * time.Microsecond

// follow compares the clock with the system's, by the newest frame.
func (n *nicTime) follow(w *worker, frames []dv.Packet) {
	newest := frames[len(frames)-1].Timestamp
	if w.device != nil && newest != 0 {
		n.compare(w.device.Clock, newest, w.e.opts.Clock.Now())
	}
}

// compare compares the clock, which get returns, with the system's, by a time stamp that was there
// at now.
func (n *nicTime) compare(get func() (dv.Clock, bool), newest uint64, now time.Time) {
	if n.known {
		n.adjust(newest, now)
	} else if n.clock, n.known = get(); n.known {
		n.clock.Set(newest, now)
		n.set = now
	}
}

// adjust takes into account that the newest frame was there at now. It came before: how long before
// is not known, as the worker may have waited for a processor. So the clock is moved back whenever
// it is ahead of the system's, and forward by no more than it can have lost.
func (n *nicTime) adjust(newest uint64, now time.Time) {
	at, due := n.clock.Time(newest), now.Sub(n.set) >= nicTimeSet
	if due {
		at = at.Add(time.Duration(float64(nicTimeDrift) * now.Sub(n.set).Seconds()))
		n.set = now
	}
	if ahead := at.After(now); ahead || due {
		if ahead {
			at = now
		}
		n.clock.Set(newest, at)
	}
}

// of says when the NIC took a time stamp; zero: it did not say.
func (n *nicTime) of(ticks uint64) time.Time {
	if !n.known || ticks == 0 {
		return time.Time{}
	}
	return n.clock.Time(ticks)
}

// capture records s.packet: as sent, or with the reason why it is not. The queue's lock is held
// here and below.
func (s *sender) capture(taps []*capture.Tap, refusal string) {
	if !s.captured.Begin(taps, capture.Out, s.number) {
		return
	}
	p := &s.packet
	f := capture.Frame{Bufs: p.Bufs, Tag: p.VLAN, Tagged: p.Flags&dv.TxVLAN != 0,
		Unsummed: p.Flags&dv.TxL4Csum != 0}
	if p.MSS > 0 {
		f.MSS, f.Headers = p.MSS, p.HdrLen
	}
	s.captured.Add(&f)
	if refusal != "" {
		s.captured.Drop(0, refusal)
	}
	s.captured.Commit()
}

// capturePosted records the packet that has just been posted.
func (s *sender) capturePosted(taps []*capture.Tap) {
	refusal := ""
	if s.kind == BackendNone {
		refusal = "there is neither device nor packet port"
	}
	s.capture(taps, refusal)
}

// captureRefused records a packet that is not sent.
func (s *sender) captureRefused(pkt *gstack.PacketBuffer, refusal string) {
	if taps := s.taps.Load(); taps != nil {
		s.describe(pkt)
		s.capture(*taps, refusal)
		clear(s.packet.Bufs) // the views are the caller's
	}
}

// refuse notes that a packet is not sent and returns what the stack is told; nil without an error.
func (s *sender) refuse(pkt *gstack.PacketBuffer, err error) tcpip.Error {
	if err != nil {
		s.captureRefused(pkt, refusalOf(err))
	}
	return s.netstackError(err)
}

// refuseRest records the packets behind one that was refused: their sender drops them, too.
func (s *sender) refuseRest(pkts []*gstack.PacketBuffer) {
	if s.taps.Load() == nil {
		return
	}
	for _, pkt := range pkts {
		s.captureRefused(pkt, "a packet in front of it was not sent")
	}
}

// refuseDatagram is refuse for a datagram that is no packet of the stack's.
func (s *sender) refuseDatagram(d *Datagram, err error) {
	if taps := s.taps.Load(); taps != nil {
		s.describeDatagram(d.Headers, d.Payload, d.Segment)
		s.capture(*taps, refusalOf(err))
		clear(s.packet.Bufs)
	}
}

// refusalOf returns the reason in a capture.
func refusalOf(err error) string {
	switch {
	case errors.Is(err, dv.ErrRingFull):
		return "the send ring had no room in time"
	case errors.Is(err, dv.ErrFrameSize):
		return "it is too short or too long for the port"
	}
	return err.Error()
}
