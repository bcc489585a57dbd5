package rdma

import (
	"encoding/binary"

	"github.com/rdma-netstack/rdma-netstack/dv"
)

// MaxSent is the most bytes that one call of Steering.Send is given.
const MaxSent = 2 + 0xffff

// send gives a frame to the other process, or to a later moment, and reports whether it could.
func (w *worker) send(frame []byte, s *Steering) bool { return w.sendBy(frame, s.Send) }

// relay gives the other process a frame that only we have received.
func (w *worker) relay(frame []byte, s *Steering) {
	if w.kind == BackendRings && w.origin <= originHeld && frame[0]&1 == 0 {
		w.sendBy(frame, s.Relay)
	}
}

func (w *worker) sendBy(frame []byte, send func(frame []byte) bool) bool {
	if send == nil {
		return false
	}
	if len(frame) <= 0xffff {
		w.away = binary.BigEndian.AppendUint16(w.away[:0], uint16(len(frame)))
		w.away = append(w.away, frame...)
		if send(w.away) {
			w.count.sentAway.Add(1)
			return true
		}
	}
	w.count.sentAwayLost.Add(1)
	return false
}

// origin is where a worker's frames come from.
type origin uint8

const (
	originQueue   origin = iota
	originHeld           // our own queues, earlier
	originRelayed        // the other process, which has received them
	originGiven          // likewise, and the flow is ours from here on
)

// Injector delivers frames that have come by Steering.Send or Relay. Any goroutine may call
// its methods.
type Injector struct {
	e *Endpoint
	w *worker // of the attachment delivered to last
}

// NewInjector makes an Injector, the only one of e, as long as it is not closed.
func (e *Endpoint) NewInjector() *Injector { return &Injector{e: e} }

// Deliver delivers frames that our own Send was given, one after the other, as if they were
// received now. The caller keeps the memory. Without an attachment, and after Endpoint.Close, they
// are dropped.
func (i *Injector) Deliver(frames []byte) { i.deliver(frames, originHeld) }

// Relayed is Deliver of frames that the other process's Relay was given. They are not relayed back.
func (i *Injector) Relayed(frames []byte) { i.deliver(frames, originRelayed) }

// Give is Relayed of frames that its Send was given: their flows are this endpoint's from here on.
func (i *Injector) Give(frames []byte) { i.deliver(frames, originGiven) }

func (i *Injector) deliver(frames []byte, from origin) {
	i.e.injecting.Lock()
	defer i.e.injecting.Unlock()
	if !i.attach() {
		return
	}
	w, n := i.w, 0
	w.origin = from
	for len(frames) >= 2 {
		size := int(binary.BigEndian.Uint16(frames))
		if frames = frames[2:]; size > len(frames) || size < minFrame {
			break // not of our making
		}
		p := dv.Packet{Data: frames[:size:size], Frame: dv.NoFrame, Flags: dv.RxL3OK | dv.RxL4OK}
		if w.vlan != 0 {
			p.Flags |= dv.RxVLAN
			p.VLAN = w.vlan
		}
		w.frames[n] = p
		frames = frames[size:]
		if n++; n == len(w.frames) {
			w.receive(n)
			n = 0
		}
	}
	if n > 0 {
		w.receive(n)
	}
	clear(w.frames[:])
}

// minFrame is the shortest frame: an Ethernet header.
const minFrame = 14

// attach finds the attachment to deliver to; false: there is none.
func (i *Injector) attach() bool {
	e := i.e
	e.mu.Lock()
	s, g := e.attachment, e.workers
	e.mu.Unlock()
	if s == nil || s.stopped() {
		return false
	}
	kind := e.Backend()
	if i.w != nil && i.w.attachment == s {
		i.w.group, i.w.kind = g, kind
		return true
	}
	i.release()
	w := &worker{e: e, attachment: s, group: g, q: noRxQueue{}, kind: kind,
		count: e.injectedCounters(),
		vlan:  e.vlan, merge: newMerger(batchFrames)}
	w.merge.off = e.opts.NoMerge
	i.w = w
	return true
}

func (i *Injector) release() {
	if i.w != nil {
		i.w.chunks.release()
		i.w.count.waiting.release()
		i.w = nil
	}
}

// Close frees what Deliver needed.
func (i *Injector) Close() {
	i.e.injecting.Lock()
	defer i.e.injecting.Unlock()
	i.release()
}

// injectedCounters are those of the Injector.
func (e *Endpoint) injectedCounters() *rxCounters {
	if c := e.injected.Load(); c != nil {
		return c
	}
	c := new(rxCounters)
	c.waiting.random = e.random
	e.injected.Store(c)
	return c
}

// noRxQueue is the receive queue of an Injector: frames are the caller's.
type noRxQueue struct{}

func (noRxQueue) Index() int                                  { return 0 }
func (noRxQueue) Poll([]dv.Packet) int                        { return 0 }
func (noRxQueue) Segments(to [][]byte, _ *dv.Packet) [][]byte { return to }
func (noRxQueue) Release([]dv.Packet)                         {}
func (noRxQueue) Arm()                                        {}
func (noRxQueue) Wait() error                                 { return dv.ErrClosed }
func (noRxQueue) Wake()                                       {}

var _ rxQueue = noRxQueue{}
