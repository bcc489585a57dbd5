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

// nicTimeSet is how long the NIC's clock runs by itself, and nicTimeDrift by how much it may then
// be behind: crystals differ by 100 ppm at most.
const nicTimeSet, nicTimeDrift = time.Second, 100 * time.Microsecond

// follow compares the clock with the system's, by the newest frame.
func (n *nicTime) follow(w *worker, frames []dv.Packet) {
	newest := frames[len(frames)-1].Timestamp
	if w.device == nil || newest == 0 {
		return
	}
	now := w.e.opts.Clock.Now()
	if n.known {
		n.adjust(newest, now)
	} else if n.clock, n.known = w.device.Clock(); n.known {
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

// of is when the NIC received the frame; zero: it did not say.
func (n *nicTime) of(p *dv.Packet) time.Time {
	if !n.known || p.Timestamp == 0 {
		return time.Time{}
	}
	return n.clock.Time(p.Timestamp)
}
