package tcpfix

import (
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// begin arms the timer, and reports whether flows may be kept.
func (r *resender) begin() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.armed {
		return !r.closed
	}
	r.armed = true
	if r.timer == nil {
		r.timer = r.clock.AfterFunc(resendTick, r.expire)
	} else {
		r.timer.Reset(resendTick)
	}
	return true
}

// resendDue is a flow to send something of.
type resendDue struct {
	key  hdr.Tuple
	flow *resendFlow
	like *gstack.PacketBuffer // of the flow; a reference
	size int                  // segments
}

// expire is the timer's.
func (r *resender) expire() {
	r.mu.Lock()
	r.armed = false
	r.mu.Unlock()
	r.sendDue()
	if r.number.Load() > 0 {
		r.begin()
	}
}

// repeat has all flows wait anew, and sends something of each.
func (r *resender) repeat() {
	for i := range r.shards {
		shard := &r.shards[i]
		shard.mu.Lock()
		for _, f := range shard.flows {
			f.linkUp()
		}
		shard.mu.Unlock()
	}
	r.sendDue()
}

// sendDue sends what is due.
func (r *resender) sendDue() {
	for i := range r.shards {
		shard := &r.shards[i]
		for _, d := range r.due(shard) {
			r.send(shard, d)
			d.like.DecRef()
		}
	}
}

// send sends the first segments of a flow again, or forgets the flow.
func (r *resender) send(shard *resendShard, d resendDue) {
	for i := range d.size {
		if r.post(d.like, func() *gstack.PacketBuffer {
			shard.mu.Lock()
			defer shard.mu.Unlock()
			if i > 0 {
				return d.flow.next(r.clock.NowMonotonic())
			}
			return d.flow.first(r.clock.NowMonotonic())
		}) {
			r.count.Add(1)
			continue
		}
		shard.mu.Lock()
		defer shard.mu.Unlock()
		if shard.flows[d.key] == d.flow {
			r.drop(shard, d.key)
		}
		return
	}
}

// due finds the flows of a shard that have waited long enough, and forgets those that need nothing
// any more.
func (r *resender) due(shard *resendShard) (due []resendDue) {
	now := r.clock.NowMonotonic()
	shard.mu.Lock()
	defer shard.mu.Unlock()
	for t, f := range shard.flows {
		switch still, stuck := now.Sub(f.moved), f.stuck(now); {
		case len(f.parts) == 0 && still >= resendIdle, f.tries == maxResends && still >= f.wait():
			r.drop(shard, t)
		case len(f.parts) > 0 && (f.due || stuck || still >= f.wait()):
			f.tries, f.due = f.tries+1, false
			f.moved = now
			due = append(due, resendDue{t, f, f.parts[0].pkt.IncRef(), f.round.begin(stuck)})
		}
	}
	return due
}

// clear forgets all flows.
func (r *resender) clear() {
	for i := range r.shards {
		shard := &r.shards[i]
		shard.mu.Lock()
		for t := range shard.flows {
			r.drop(shard, t)
		}
		shard.mu.Unlock()
	}
}

// close forgets all flows and keeps none any more. It may be called again.
func (r *resender) close() {
	r.mu.Lock()
	r.closed = true
	if r.timer != nil {
		r.timer.Stop()
	}
	r.mu.Unlock()
	r.clear()
}
