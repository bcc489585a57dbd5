package sim

import (
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/link/packet"
)

// NetdevPlan is an interface with packet sockets.
type NetdevPlan struct {
	// Room is how many frames it takes at once, 0 for any number; Drain is how long it takes to
	// send them.
	Room  int
	Drain time.Duration
	// Backlog is how many frames wait before a socket at most.
	Backlog int
	// Merge is how many TCP segments that come at once it merges at most, 0: none.
	Merge int
	// Lag is how much later than frames its readers run.
	Lag time.Duration
}

// netdev is an interface of Linux's on a port of the switch: each of the packet.Interfaces that are
// open on it gets a copy of each frame. It and they have one mutex, and no goroutine of their own.
type netdev struct {
	plan  NetdevPlan
	name  string
	port  *port // nil: it is on a NIC
	clock *ticker
	put   func(frame []byte)    // sends a frame
	above func(frames [][]byte) // gets what was received, after the sockets; nil: nobody does

	mu    sync.Mutex // covers what follows, and all of the sockets but what they say
	gone  bool       // removed
	down  bool       // without carrier
	mtu   int        // bytes
	open  []*sockets
	queue int // frames under way, of plan.Room
	// frames that came, those of them that did while it was gone or down, and frames that the
	// switch was given
	came, lost, sent uint64
	closed           socketCounts // of sockets that are closed
	merged           uint64       // frames that several segments were merged into
	// frames that a rule of the device could have led to rings, of hosts on their kernel's address:
	// to ports to dial from, and SYNs
	unsteered uint64
}

// socketCounts are the frames of sockets. Each of those that came is in one counter, as is each
// that was posted.
type socketCounts struct {
	Came                                          uint64
	Filtered, Muted, Dropped, Discarded, Received uint64
	Queued                                        uint64 // of sockets that are open

	Posted, Sent, Refused, Abandoned uint64
	Waiting                          uint64 // of sockets that are open
}

// add adds others' counts.
func (c *socketCounts) add(o socketCounts) {
	c.Came += o.Came
	c.Filtered += o.Filtered
	c.Muted += o.Muted
	c.Dropped += o.Dropped
	c.Discarded += o.Discarded
	c.Received += o.Received
	c.Queued += o.Queued
	c.Posted += o.Posted
	c.Sent += o.Sent
	c.Refused += o.Refused
	c.Abandoned += o.Abandoned
	c.Waiting += o.Waiting
}

// check says whether each frame is in one counter.
func (c *socketCounts) check() error {
	if c.Filtered+c.Muted+c.Dropped+c.Discarded+c.Received+c.Queued != c.Came ||
		c.Sent+c.Refused+c.Abandoned+c.Waiting != c.Posted {
		return fmt.Errorf("packet sockets do not know where all frames are: %+v", *c)
	}
	return nil
}

// plugNetdev puts an interface on a port of its own.
func (n *network) plugNetdev(name string, p NetdevPlan) *netdev {
	d := &netdev{plan: p, name: name, mtu: n.plan.MTU, port: n.plug(false), clock: n.clock}
	d.put = d.port.put
	d.port.connect(d.receive)
	return d
}

// openSockets is stack.Config.Uplink.OpenInterface.
func (d *netdev) openSockets(cfg packet.Config) (packet.Interface, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.gone:
		return nil, fmt.Errorf("there is no interface %s here: %w", d.name, unix.ENODEV)
	case cfg.Device != d.name || len(cfg.MAC) != 6 || cfg.MTU > d.mtu:
		return nil, fmt.Errorf("%s does not open %+v: %w", d.name, cfg, unix.EINVAL)
	}
	s := &sockets{dev: d, cfg: cfg, changed: make(chan struct{}, 1), done: make(chan struct{}),
		resized: make(chan struct{}, 1)}
	for i := range max(1, cfg.Queues) {
		s.rx = append(s.rx, &rxSocket{of: s, index: i, token: make(chan struct{}, 1)})
		s.tx = append(s.tx, &txSocket{of: s})
	}
	d.open = append(d.open, s)
	return s, nil
}

// receive is what the port calls.
func (d *netdev) receive(frames [][]byte) {
	if d.deliver(frames) && d.above != nil {
		d.above(frames)
	}
}

// deliver gives frames to the sockets, unless none come.
func (d *netdev) deliver(frames [][]byte) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.came += uint64(len(frames))
	if d.gone || d.down {
		d.lost += uint64(len(frames))
		return false
	}
	g := grouper{most: d.plan.Merge}
	for _, f := range g.merge(frames) {
		if f.gso > 0 {
			d.merged++
		}
		for _, s := range d.open {
			s.arrive(f)
		}
	}
	return true
}

// transmit gives the switch a frame, with mu held.
func (d *netdev) transmit(f []byte) {
	d.sent++
	d.put(f)
}

// room reports whether the interface takes one more frame, with mu held.
func (d *netdev) room() bool {
	if d.plan.Room == 0 {
		return true
	}
	if d.queue >= d.plan.Room {
		return false
	}
	if d.queue++; d.queue == 1 {
		d.clock.AfterFunc(d.plan.Drain, func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.queue = 0
		})
	}
	return true
}

// setDown takes the carrier away, or gives it back.
func (d *netdev) setDown(down bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.down = down
	for _, s := range d.open {
		notify(s.changed)
	}
}

// setMTU gives the interface another MTU.
func (d *netdev) setMTU(mtu int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mtu = mtu
	for _, s := range d.open {
		notify(s.resized)
	}
}

// setGone removes the interface, which ends its sockets, or makes it again.
func (d *netdev) setGone(gone bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.gone = gone
	for _, s := range slices.Clone(d.open) {
		if gone {
			s.end(fmt.Errorf("%w: %s was removed: %w", packet.ErrGone, d.name, unix.ENODEV))
		}
	}
}

// counts are those of all sockets there have been.
func (d *netdev) counts() socketCounts {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.closed
	for _, s := range d.open {
		c.add(s.counts())
	}
	return c
}

// quiet says what is wrong with sockets that nothing comes to.
func (d *netdev) quiet() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.open {
		if c := s.counts(); !s.muted || c.Discarded > 0 {
			return fmt.Errorf("packet sockets of %s are muted: %v; nobody has received %d frames "+
				"before", d.name, s.muted, c.Discarded)
		}
	}
	return nil
}

// check says what is wrong with the books of the interface and its sockets.
func (d *netdev) check() error {
	c := d.counts()
	if err := c.check(); err != nil {
		return fmt.Errorf("%s: %w", d.name, err)
	}
	if d.port == nil {
		return nil
	}
	sent, handed, idle := d.port.counts()
	d.mu.Lock()
	defer d.mu.Unlock()
	if idle && (d.came != handed || d.sent != sent) {
		return fmt.Errorf("%s has sent %d frames and got %d, the switch got %d and gave %d", d.name,
			d.sent, d.came, sent, handed)
	}
	return nil
}

// left reports sockets that nobody has closed.
func (d *netdev) left() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := len(d.open); n > 0 {
		return fmt.Errorf("%d packet interfaces are left open on %s", n, d.name)
	}
	return nil
}

// notify puts a token into a channel that has none.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// group reports whether a frame is to several hosts, and not to all.
func group(mac net.HardwareAddr) bool {
	return mac[0]&1 != 0 && mac.String() != "ff:ff:ff:ff:ff:ff"
}
