package simnic

import (
	"sync/atomic"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
)

// port is one of the two attachment points of a NIC for a wire.
type port struct{ wire atomic.Pointer[wire.Wire] }

// attachWire starts reception from w. A second wire is refused: StatusBadState.
func (p *port) attachWire(w wire.Wire, recv func([]frame.Frame)) error {
	if !p.wire.CompareAndSwap(nil, &w) {
		return statusErrorf(StatusBadState, "a wire is connected already")
	}
	if err := w.Start(recv); err != nil {
		p.wire.Store(nil)
		return err
	}
	return nil
}

// detachWire closes the wire.
func (p *port) detachWire() error {
	if w := p.wire.Swap(nil); w != nil {
		return (*w).Close()
	}
	return nil
}

// wireOffloads returns those of the wire; none without a wire.
func (p *port) wireOffloads() frame.Offload {
	if w := p.wire.Load(); w != nil {
		return (*w).Offloads()
	}
	return 0
}

// egress sends frames out of one port, in batches. It completes checksums and segments frames where
// the wire does not. It belongs to a burst; one goroutine uses it.
type egress struct {
	nic     *NIC
	burst   *rxBurst
	port    *port
	owner   owner
	lost    counter // of packets that the wire did not take
	mutable bool    // frames may be changed in place
	frames  [maxBurst]frame.Frame
	n       int
	work    *workspace
}

// workspace is memory for frames that had to be copied.
type workspace struct {
	mem      [arenaSize]byte
	used     int
	template []byte // headers of the frame being segmented
}

// queueFrame queues a frame, in order.
func (c *egress) queueFrame(f *frame.Frame) {
	if c.owner == ownerWire && f.Longest() > c.nic.maxFrame() {
		c.nic.counters.addTo(ctrWireTooLong, f.Packets())
		return
	}
	can := c.port.wireOffloads()
	switch {
	case f.GSO != frame.GSONone && can&f.NeededOffload() == 0:
		c.cutFrame(f)
	case f.GSO == frame.GSONone && f.NeedsCsum && can&frame.OffloadCsum == 0:
		c.queueComplete(*f)
	default:
		c.pushFrame(*f)
	}
}

func (c *egress) pushFrame(f frame.Frame) {
	if c.n == len(c.frames) {
		c.sendQueued()
	}
	c.frames[c.n] = f
	c.n++
}

// queueComplete queues a frame with its checksum done.
func (c *egress) queueComplete(f frame.Frame) {
	if !c.mutable {
		f.Data = append(c.roomFor(len(f.Data))[:0], f.Data...)
	}
	f.CompleteChecksum()
	c.pushFrame(f)
}

// roomFor returns n bytes of memory that last until the next send.
func (c *egress) roomFor(n int) []byte {
	w := c.takeWorkspace()
	if w.used+n > len(w.mem) || c.n == len(c.frames) {
		c.sendQueued()
	}
	b := w.mem[w.used : w.used+n]
	w.used += n
	return b
}

// takeWorkspace returns the workspace, kept until flushEgress.
func (c *egress) takeWorkspace() *workspace {
	if c.work == nil {
		c.work = c.nic.spaces.get()
	}
	return c.work
}

// cut queues the packets that an unsegmented frame stands for.
func (c *egress) cutFrame(f *frame.Frame) {
	h := int(f.HdrLen)
	payload := f.Data[h:]
	w := c.takeWorkspace()
	w.template = append(w.template[:0], f.Data[:h]...)
	s, ok := frame.NewSegmenter(w.template, int(f.MSS), len(payload))
	if !ok {
		c.nic.counters.addTo(c.lost, f.Packets())
		return
	}
	for g := s.Packets(); g.Next(); {
		b := c.roomFor(h + g.Len)
		copy(b[h:], payload[g.At:g.At+g.Len])
		g.Header(b, frame.Sum(b[h:]))
		c.pushFrame(frame.Frame{Data: b, Waited: f.Waited})
	}
}

// sendQueued passes the queued frames to the wire.
func (c *egress) sendQueued() {
	if c.n == 0 {
		return
	}
	c.burst.unlockQueue()
	frames := c.frames[:c.n]
	sent := 0
	if w := c.port.wire.Load(); w != nil {
		sent, _ = (*w).Send(frames) // the error does not matter: the rest is counted as dropped
	}
	var t tally
	for i := range frames[:sent] {
		f := &frames[i]
		t.countPackets(c.exitCounter(), castOf(macBits(f.Data)), f.Packets(), f.Bytes())
	}
	t.flushTally()
	for i := range frames[sent:] {
		c.nic.counters.addTo(c.lost, frames[sent+i].Packets())
	}
	c.n = 0
	if c.work != nil {
		c.work.used = 0
	}
}

// exitCounter returns the counter of sent frames.
func (c *egress) exitCounter() *direction {
	if c.owner == ownerWire {
		return &c.nic.counters.tx[c.owner]
	}
	return &c.nic.counters.rx[c.owner]
}

// flushEgress sends the remaining frames and returns the workspace to its pool.
func (c *egress) flushEgress() {
	c.sendQueued()
	if c.work != nil {
		c.nic.spaces.put(c.work)
		c.work = nil
	}
}
