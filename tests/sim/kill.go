package sim

import (
	"fmt"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
)

// kill ends a process as SIGKILL does, unless it has ended: its packet sockets, device nodes and
// connections to other processes are closed at once, and nothing comes from it any more. What is
// left of it in this process is closed then.
func (h *upgradedHost) kill(w *world, p *process) {
	w.spawn("kill", func(t *task) error {
		p.mu.Lock()
		if p.ending.Load() {
			p.mu.Unlock()
			return nil
		}
		w.logf("a process is killed, with %d connections", len(p.connections()))
		w.cutConnections(p)
		p.killed.Store(true)
		p.ending.Store(true)
		for _, s := range p.sockets {
			s.(*sockets).die()
		}
		h.busy.Add(1)
		for _, n := range p.nodes {
			_ = n.Close() // it may be closed already
		}
		h.busy.Add(-1)
		p.meeting.die()
		p.mu.Unlock()
		h.leave(p)
		p.abort()
		_ = h.end(p, p.stack.Close) // its device nodes are closed: no object can be undone
		return nil
	})
}

// die ends all waits, and drops what was not received or sent yet.
func (s *sockets) die() {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	s.end(packet.ErrClosed)
	s.abandon()
}

// cutConnections takes note of the connections of a process that is killed.
func (w *world) cutConnections(p *process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range p.connections() {
		w.broken[connectionOf(c.ports[0], c.ports[1])] = true
	}
}

// connectionOf is what a connection is known by: its ports, the lower first. Each job has a port of
// its own.
func connectionOf(a, b uint16) [2]uint16 { return [2]uint16{min(a, b), max(a, b)} }

// broken reports whether an end of the job's connection from a client's port was killed.
func (j *job) broken(port int) bool {
	j.w.mu.Lock()
	defer j.w.mu.Unlock()
	return j.w.broken[connectionOf(j.port, uint16(port))]
}

// unread is how many frames a process was sent by another and did not read.
func (b *past) unread() (n uint64) {
	for _, m := range b.meetings {
		m.mu.Lock()
		for _, p := range m.pipes {
			n += p.unread()
		}
		m.mu.Unlock()
	}
	return n
}

// unread is how many frames neither end has read.
func (p *messagePipe) unread() (n uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, to := range p.sent {
		for _, m := range to {
			if m[0] == 'f' || m[0] == 'r' {
				n++
			}
		}
	}
	return n
}

// firstUsual is the first of the usual priorities (dv.Config.TakesOver).
const firstUsual = 3

// settled says what is wrong with the rules of a process whose predecessor has ended long ago.
func (p *process) settled() error {
	var dev *dv.Device
	if dev = p.stack.Device(); dev == nil {
		return nil
	}
	for _, r := range dev.Rules() {
		if r.Priority < firstUsual {
			return fmt.Errorf("the process before has ended, and a rule is ahead of its place: %+v",
				r)
		}
	}
	return nil
}
