package sim

import (
	"bytes"
	"hash/crc32"
	"net"
	"slices"

	"github.com/rdma-netstack/rdma-netstack/link/packet"
)

// sockets are the packet sockets of one process on a netdev, as package link/packet has them: what
// they promise is at its least. Frames come without any word
// on their checksums, the look after the last frame is left out, and memory is used again.
type sockets struct {
	dev     *netdev
	cfg     packet.Config
	rx      []*rxSocket
	tx      []*txSocket
	changed chan struct{} // capacity 1
	resized chan struct{} // capacity 1
	done    chan struct{}

	// Guarded by dev.mu.
	muted  bool
	groups []net.HardwareAddr // nil: all
	only   func([]byte) bool  // says which frames are taken; nil: all
	err    error
	closed bool
	past   socketCounts // what queues do not count
}

var (
	_ packet.Interface = (*sockets)(nil)
	_ packet.MTUTeller = (*sockets)(nil)
)

func (s *sockets) Name() string                 { return s.dev.name }
func (s *sockets) MAC() net.HardwareAddr        { return s.cfg.MAC }
func (s *sockets) VLAN() uint16                 { return s.cfg.VLAN }
func (s *sockets) NumQueues() int               { return len(s.rx) }
func (s *sockets) Rx(i int) packet.Receiver     { return s.rx[i] }
func (s *sockets) Tx(i int) packet.Sender       { return s.tx[i] }
func (s *sockets) LinkChanged() <-chan struct{} { return s.changed }
func (s *sockets) Done() <-chan struct{}        { return s.done }

// MTUChanged implements packet.MTUTeller.
func (s *sockets) MTUChanged() <-chan struct{} { return s.resized }

// MTU implements packet.Interface.
func (s *sockets) MTU() int {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	return s.mtu()
}

// mtu is MTU, with dev.mu held.
func (s *sockets) mtu() int {
	if s.cfg.MTU == 0 {
		return s.dev.mtu
	}
	return min(s.cfg.MTU, s.dev.mtu)
}

// SetGroups implements packet.Interface.
func (s *sockets) SetGroups(groups []net.HardwareAddr) error {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	s.groups = append([]net.HardwareAddr{}, groups...)
	return nil
}

// Mute implements packet.Interface.
func (s *sockets) Mute() error {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	s.muted = true
	s.abandon()
	return nil
}

// abandon drops what has not been received or sent yet, with dev.mu held.
func (s *sockets) abandon() {
	for i, q := range s.rx {
		s.past.Discarded += uint64(len(q.queue))
		s.past.Abandoned += uint64(len(s.tx[i].waiting))
		q.queue, s.tx[i].waiting = nil, nil
	}
}

// Unmute implements packet.Interface.
func (s *sockets) Unmute() error {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	s.muted = false
	return nil
}

// Dropped implements packet.Interface.
func (s *sockets) Dropped() uint64 {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	return s.past.Dropped
}

// LinkUp implements packet.Interface.
func (s *sockets) LinkUp() bool {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	return !s.dev.down && !s.dev.gone
}

// Err implements packet.Interface.
func (s *sockets) Err() error {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	return s.err
}

// end ends all waits, with dev.mu held.
func (s *sockets) end(why error) {
	if s.err == nil {
		s.err = why
		close(s.done)
	}
	for _, q := range s.rx {
		q.Wake()
	}
}

// Close implements packet.Interface.
func (s *sockets) Close() error {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	s.end(packet.ErrClosed)
	s.abandon()
	s.dev.closed.add(s.counts())
	s.dev.open = slices.DeleteFunc(s.dev.open, func(o *sockets) bool { return o == s })
	return nil
}

// counts are those of the sockets, with dev.mu held.
func (s *sockets) counts() socketCounts {
	c := s.past
	for i, q := range s.rx {
		c.Queued += uint64(len(q.queue))
		c.Waiting += uint64(len(s.tx[i].waiting) + len(s.tx[i].posted))
	}
	return c
}

// arrive takes a copy of a frame that is for us, with dev.mu held.
func (s *sockets) arrive(f heldFrame) {
	s.past.Came++
	q := s.rx[crc32.ChecksumIEEE(flowBytes(f.data))%uint32(len(s.rx))]
	switch to := net.HardwareAddr(f.data[:6]); {
	case s.muted || s.err != nil:
		s.past.Muted++
	case s.only != nil && !s.only(f.data):
		s.past.Filtered++
	case to[0]&1 == 0 && !bytes.Equal(to, s.cfg.MAC), group(to) && s.groups != nil &&
		!slices.ContainsFunc(s.groups, func(g net.HardwareAddr) bool { return bytes.Equal(g, to) }):
		s.past.Filtered++
	case s.dev.plan.Backlog > 0 && len(q.queue) >= s.dev.plan.Backlog:
		s.past.Dropped++
	default:
		q.queue = append(q.queue, heldFrame{slices.Clone(f.data), f.gso})
		q.came()
	}
}

// came wakes the owner of the queue, which may have to wait for a processor, with dev.mu held.
func (q *rxSocket) came() {
	d := q.of.dev
	switch {
	case d.plan.Lag == 0:
		q.Wake()
	case !q.late:
		q.late = true
		d.clock.AfterFunc(d.plan.Lag, func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			q.late = false
			q.Wake()
		})
	}
}

// flowBytes are those of a frame that all frames of its flow have in common: the addresses.
func flowBytes(f []byte) []byte {
	if len(f) >= 54 && f[12] == 0x86 {
		return f[22:54]
	}
	if len(f) >= 34 && f[12] == 0x08 && f[13] == 0 {
		return f[26:34]
	}
	return f[:12]
}

// rxSocket is a packet.Receiver.
type rxSocket struct {
	of    *sockets
	index int
	token chan struct{} // capacity 1: for Wait

	queue []heldFrame // guarded by dev.mu
	late  bool        // the owner does not know of them all yet; guarded by dev.mu

	// The owner's.
	skip bool     // the next Receive does not look
	had  [][]byte // what the last Receive has given
}

// rxBatch is how many frames a Receive takes at most.
const rxBatch = 32

// Index implements packet.Receiver.
func (q *rxSocket) Index() int { return q.index }

// Receive implements packet.Receiver. What the caller had before is overwritten.
func (q *rxSocket) Receive(dst []packet.Frame) int {
	for _, f := range q.had {
		for i := range f {
			f[i] = 0xdb
		}
	}
	q.had = q.had[:0]
	if q.skip {
		q.skip = false
		return 0
	}
	d := q.of.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	n := min(len(dst), len(q.queue), rxBatch)
	for i, f := range q.queue[:n] {
		dst[i] = packet.Frame{Data: f.data, GSOSize: f.gso}
		if f.gso > 0 { // the kernel has verified the headers of what it has merged
			dst[i].Flags = packet.RxChecksumOK | packet.RxHeaderOK
		}
		q.had = append(q.had, f.data)
	}
	q.queue = q.queue[n:]
	q.of.past.Received += uint64(n)
	q.skip = n > 0 && n < rxBatch
	return n
}

// Arm implements packet.Receiver.
func (q *rxSocket) Arm() { q.skip = true }

// Wait implements packet.Receiver.
func (q *rxSocket) Wait() error {
	d := q.of.dev
	d.mu.Lock()
	err, some := q.of.err, len(q.queue) > 0 && !q.late
	d.mu.Unlock()
	if err != nil || some {
		return err
	}
	<-q.token
	return q.of.Err()
}

// Wake implements packet.Receiver.
func (q *rxSocket) Wake() { notify(q.token) }
