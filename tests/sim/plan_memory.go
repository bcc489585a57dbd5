package sim

import (
	"time"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// MemoryPlan is what limits the memory of one of our hosts; 0 is the default.
type MemoryPlan struct {
	Backlog           int // connections that wait for Accept
	Cookies           bool
	FixedReceive      bool // receive buffers do not grow
	Send              int  // bytes that a connection may send before they are acknowledged
	UDPRead, UDPWrite int  // bytes
}

// limitMemory limits the memory of hosts in some worlds, and adds work that needs more.
func (p *Plan) limitMemory(d dice) {
	wanted := d.chance(0.12)
	burst := WorkPlan{Kind: Burst, Client: 1, Start: d.within(0, 100*time.Millisecond),
		Count: 2 + d.IntN(24), Bytes: d.IntN(3000), Back: size(d),
		Pause: one(d, 0, time.Millisecond, 30*time.Millisecond, 400*time.Millisecond)}
	flood := WorkPlan{Kind: Flood, Client: 1, Start: d.within(0, 100*time.Millisecond),
		Count: 8 + d.IntN(120), Bytes: one(d, 0, 10, 1000, maxQuestion-8),
		Pause: one(d, 0, time.Millisecond, 10*time.Millisecond)}
	if d.chance(0.5) && p.Hosts[1].Kind == Ours {
		burst.Server, burst.Client = 1, 0
		flood.Server, flood.Client = 1, 0
	}
	if !wanted {
		return
	}
	for i := range p.Hosts {
		if m := newMemory(d); p.Hosts[i].Kind == Ours {
			p.Hosts[i].Memory = p.allowed(&p.Hosts[i], m)
		}
	}
	p.Work = append(p.Work, burst, flood)
}

// allowed leaves out of m what resets or stops connections by design. A plain host is for networks
// that drop nothing. Data that ends a handshake with a SYN cookie counts as memory of the listener
// for good, so that a small buffer runs full. Where frames get lost, or come out of order, a client
// whose ACK did not come first is reset with cookies, which are in use at a full backlog, too.
func (p *Plan) allowed(h *HostPlan, m MemoryPlan) MemoryPlan {
	switch {
	case p.plain() || h.Buffers != (stack.BufferRange{}):
		m.Backlog, m.Cookies = 0, false
	case p.harmful():
		m.Cookies = false
		if m.Backlog > 0 {
			m.Backlog = 8
		}
	}
	return m
}

// newMemory draws limits.
func newMemory(d dice) (m MemoryPlan) {
	backlog, send := one(d, 1, 2, 8), one(d, 4, 16, 64)<<10
	read, write := one(d, 4, 8)<<10, one(d, 4, 8)<<10
	if d.chance(0.6) {
		m.Backlog = backlog
	}
	m.Cookies, m.FixedReceive = d.chance(0.4), d.chance(0.4)
	if d.chance(0.4) {
		m.Send = send
	}
	if d.chance(0.6) {
		m.UDPRead = read
	}
	if d.chance(0.4) {
		m.UDPWrite = write
	}
	return m
}

// plain reports whether a host has netstack by itself. It is for networks that lose nothing, and a
// full backlog drops segments.
func (p *Plan) plain() bool {
	for _, h := range p.Hosts {
		if h.Kind == Plain {
			return true
		}
	}
	return false
}

// drops reports whether a host drops segments for want of memory.
func (p *Plan) drops() bool {
	for _, h := range p.Hosts {
		if h.Memory.Backlog > 0 || h.Memory.Cookies {
			return true
		}
	}
	return false
}
