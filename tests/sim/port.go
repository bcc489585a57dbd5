package sim

import (
	"sync"
	"time"
)

// arrival is frames that reach a port at one time.
type arrival struct {
	at     time.Duration
	frames *[][]byte
}

// port is a socket of the switch.
type port struct {
	index    int
	inspect  inspector
	harm     Harm // beside the network's
	cut      bool // the link is down
	last     time.Duration
	due      map[time.Duration]*[][]byte
	arrivals chan arrival

	mu       sync.Mutex // covers what follows
	sent     [][]byte
	inbox    [][]byte // arrived, while receive is busy
	busy     bool
	came     uint64         // frames that the host has sent
	handed   uint64         // frames that it was given
	receive  func([][]byte) // nil: nobody is there
	finished sync.Cond      // busy was set to false
}

// plug adds a port for a host.
func (n *network) plug(ordered bool) *port {
	p := &port{index: len(n.ports), due: map[time.Duration]*[][]byte{},
		arrivals: make(chan arrival, 1),
		inspect: inspector{n.largest, ordered, map[flowKey]uint32{},
			&synCounts{last: map[flowKey]uint32{}}}}
	p.finished.L = &p.mu
	n.ports = append(n.ports, p)
	return p
}

// put queues a frame that the host sends, which becomes the switch's. Any goroutine may call it.
func (p *port) put(f []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent = append(p.sent, f)
	p.came++
}

// counts is how many frames the host has sent and was given. idle says that it works on none.
func (p *port) counts() (came, handed uint64, idle bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.came, p.handed, !p.busy
}

// take returns what the host has sent.
func (p *port) take() [][]byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.sent
	p.sent = nil
	return f
}

// deliver hands frames to the host on a goroutine of its own, which may have to wait, in order.
func (p *port) deliver(frames [][]byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.receive == nil {
		return
	}
	p.inbox = append(p.inbox, frames...)
	if !p.busy {
		p.busy = true
		go p.drain()
	}
}

// drain delivers until the inbox is empty.
func (p *port) drain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.inbox) > 0 && p.receive != nil {
		frames, receive := p.inbox, p.receive
		p.inbox = nil
		p.handed += uint64(len(frames))
		p.mu.Unlock()
		receive(frames)
		p.mu.Lock()
	}
	p.busy, p.inbox = false, nil
	p.finished.Broadcast()
}

// connect says who receives; nil: nobody any more. It waits for a reception under way.
func (p *port) connect(receive func([][]byte)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.receive = receive
	for receive == nil && p.busy {
		p.finished.Wait()
	}
}
