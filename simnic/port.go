package simnic

import (
	"sync/atomic"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
)

// port is one of the two attachment points of a NIC for a wire.
type port struct{ wire atomic.Pointer[wire.Wire] }

// attach starts reception from w. A second wire is refused: StatusBadState.
func (p *port) attach(w wire.Wire, recv func([]frame.Frame)) error {
	if !p.wire.CompareAndSwap(nil, &w) {
		return errorf(StatusBadState, "a wire is connected already")
	}
	if err := w.Start(recv); err != nil {
		p.wire.Store(nil)
		return err
	}
	return nil
}

// detach closes the wire.
func (p *port) detach() error {
	if w := p.wire.Swap(nil); w != nil {
		return (*w).Close()
	}
	return nil
}

// offloads returns those of the wire; none without a wire.
func (p *port) offloads() frame.Offload {
	if w := p.wire.Load(); w != nil {
		return (*w).Offloads()
	}
	return 0
}

// egress sends frames out of one port, in batches. It completes checksums and
// segments frames where the wire does not. It belongs to a burst; one goroutine
// uses it.
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

// add queues a frame, in order.
func (c *egress) add(f *frame.Frame) {
	if c.owner == ownerWire && f.Longest() > c.nic.maxFrame() {
		c.nic.counters.add(ctrWireTooLong, f.Packets())
		return
	}
	can := c.port.offloads()
	switch {
	case f.GSO != frame.GSONone && can&f.NeededOffload() == 0:
		c.segment(f)
	case f.GSO == frame.GSONone && f.NeedsCsum && can&frame.OffloadCsum == 0:
		c.complete(*f)
	default:
		c.push(*f)
	}
}

func (c *egress) push(f frame.Frame) {
	if c.n == len(c.frames) {
		c.send()
	}
	c.frames[c.n] = f
	c.n++
}

// complete queues a frame with its checksum done.
func (c *egress) complete(f frame.Frame) {
	if !c.mutable {
		f.Data = append(c.room(len(f.Data))[:0], f.Data...)
	}
	f.CompleteChecksum()
	c.push(f)
}

// room is memory that lasts until the next send.
func (c *egress) room(n int) []byte {
	w := c.space()
	if w.used+n > len(w.mem) || c.n == len(c.frames) {
		c.send()
	}
	b := w.mem[w.used : w.used+n]
	w.used += n
	return b
}

// space returns the workspace, kept until flush.
func (c *egress) space() *workspace {
	if c.work == nil {
		c.work = c.nic.spaces.get()
	}
	return c.work
}

// cut queues the packets that an unsegmented frame stands for.
func (c *egress) segment(f *frame.Frame) {
	h := int(f.HdrLen)
	payload := f.Data[h:]
	w := c.space()
	w.template = append(w.template[:0], f.Data[:h]...)
	s, ok := frame.NewSegmenter(w.template, int(f.MSS), len(payload))
	if !ok {
		c.nic.counters.add(c.lost, f.Packets())
		return
	}
	for g := s.Packets(); g.Next(); {
		b := c.room(h + g.Len)
		copy(b[h:], payload[g.At:g.At+g.Len])
		g.Header(b, frame.Sum(b[h:]))
		c.push(frame.Frame{Data: b, Waited: f.Waited})
	}
}

// send passes the queued frames to the wire.
func (c *egress) send() {
	if c.n == 0 {
		return
	}
	c.burst.leave()
	frames := c.frames[:c.n]
	sent := 0
	if w := c.port.wire.Load(); w != nil {
		sent, _ = (*w).Send(frames) // the error does not matter: the rest is counted as dropped
	}
	var t tally
	for i := range frames[:sent] {
		f := &frames[i]
		t.add(c.exit(), castOf(macBits(f.Data)), f.Packets(), f.Bytes())
	}
	t.flush()
	for i := range frames[sent:] {
		c.nic.counters.add(c.lost, frames[sent+i].Packets())
	}
	c.n = 0
	if c.work != nil {
		c.work.used = 0
	}
}

// exit returns the counter of sent frames.
func (c *egress) exit() *direction {
	if c.owner == ownerWire {
		return &c.nic.counters.tx[c.owner]
	}
	return &c.nic.counters.rx[c.owner]
}

// flush sends the remaining frames and returns the workspace to its pool.
func (c *egress) flush() {
	c.send()
	if c.work != nil {
		c.nic.spaces.put(c.work)
		c.work = nil
	}
}
