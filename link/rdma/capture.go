package rdma

import (
	"slices"
	"sync/atomic"
	"time"

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
	}
	var one [1][]byte
	f := capture.Frame{Bufs: one[:]}
	for i := range frames {
		p := &frames[i]
		one[0], f.Tag, f.Tagged = p.Data, p.VLAN, p.Flags&dv.RxVLAN != 0
		if timed {
			f.NICTime = w.nicTime.of(p)
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

// nicTimeSet is how long the NIC's clock runs by itself. Crystals differ by 100 ppm at most, so the
// error stays below 0.1 ms.
const nicTimeSet = time.Second

// follow compares the clock with the system's, by the newest frame, now and then.
func (n *nicTime) follow(w *worker, frames []dv.Packet) {
	r := deviceOf(w.own)
	now := w.e.opts.Clock.Now()
	if r == nil || n.known && now.Sub(n.set) < nicTimeSet {
		return
	}
	if n.clock, n.known = r.Clock(); n.known {
		n.clock.Set(frames[len(frames)-1].Timestamp, now)
		n.set = now
	}
}

// of is when the NIC received the frame; zero: it did not say.
func (n *nicTime) of(p *dv.Packet) time.Time {
	if !n.known || p.Timestamp == 0 {
		return time.Time{}
	}
	return n.clock.Time(p.Timestamp)
}
