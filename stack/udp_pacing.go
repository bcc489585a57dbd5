package stack

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/internal/pacing"
	"github.com/rdma-netstack/rdma-netstack/link/rdma"
)

// socketPacing holds the rate of a socket, from the first SetPacing on.
type socketPacing struct {
	rate  atomic.Uint64 // bytes per second; 0: no limit
	begun time.Time
	timer clock.Timer // wakes the one who waits, who sets and stops it

	// turn goes to one writer at a time, from before it waits for the rate until its datagram is
	// sent and counted.
	turn      sync.Mutex
	datagrams pacing.Datagrams // guarded by turn
}

// patience says what becomes of a datagram that the rate does not let out yet.
type patience uint8

const (
	waitForRate patience = iota
	sendAtOnce           // EAGAIN
)

// admit returns for how long no datagram may leave; 0 or less: one may. turn is held.
func (p *socketPacing) admit(c clock.Clock) time.Duration {
	now := c.Since(p.begun)
	p.datagrams.SetRate(p.rate.Load(), now)
	return p.datagrams.Admit(now)
}

// admitNow reports whether a datagram may leave without a wait. turn is held.
func (p *socketPacing) admitNow(c clock.Clock) bool {
	allowed := p.admit(c) <= 0
	p.datagrams.Rest()
	return allowed
}

// count notes a datagram that goes to the link. turn is held.
func (p *socketPacing) count(d *rdma.Datagram) {
	p.datagrams.Sent(len(d.Payload) + d.Count()*len(d.Headers))
}

// pacedSockets counts sockets with a rate.
type pacedSockets struct {
	now   atomic.Int64
	waits atomic.Uint64 // of writes
}

// change notes that a socket has another rate; 0: none.
func (p *pacedSockets) change(before, after uint64) {
	if before != 0 {
		p.now.Add(-1)
	}
	if after != 0 {
		p.now.Add(1)
	}
}
