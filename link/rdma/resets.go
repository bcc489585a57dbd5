package rdma

import (
	"sync"
	"sync/atomic"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// Resets are TCP connections that were sent a reset. One is counted once.
type Resets struct {
	Known   int // the stack had them, and ended them
	Unknown int // the stack did not have them, or no more, and something came for them
}

// maxResets bounds how many connections are told apart: what comes for a connection that the stack
// does not have may be a flood.
const maxResets = 1 << 16

// resets notes the connections that are reset.
type resets struct {
	on atomic.Bool

	mu    sync.Mutex             // guards what follows; the last lock that is taken
	seen  map[hdr.Tuple]struct{} // at most maxResets
	count Resets
}

// NoteResets begins to note the connections that are reset, once. It costs what is sent nothing but
// resets.
func (e *Endpoint) NoteResets() {
	e.resets.mu.Lock()
	defer e.resets.mu.Unlock()
	if e.resets.seen == nil {
		e.resets.seen = map[hdr.Tuple]struct{}{}
		e.resets.on.Store(true)
	}
}

// Resets is what was reset since NoteResets. It may be called at any time.
func (e *Endpoint) Resets() Resets {
	e.resets.mu.Lock()
	defer e.resets.mu.Unlock()
	return e.resets.count
}

// sent notes a segment with RST. A refused SYN is no connection: its answer has sequence number 0
// (RFC 9293 section 3.10.7.1), and the answer to a segment of an unknown connection no ACK.
func (r *resets) sent(p *hdr.Segment) {
	if !r.on.Load() {
		return
	}
	seq, _ := hdr.Numbers(p.TCP())
	known := p.Flags()&hdr.FlagACK != 0
	if known && seq == 0 {
		return
	}
	flow, _ := p.Flow()
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, again := r.seen[*flow]; again || len(r.seen) == maxResets {
		return
	}
	r.seen[*flow] = struct{}{}
	if known {
		r.count.Known++
	} else {
		r.count.Unknown++
	}
}
