package tcpfix

import (
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// resender is a retransmission timer for connections whose own does not run.
//
// Behaviour: netstack counts the packets in flight (sender.Outstanding) and arms its timer only
// while there are some. While it recovers from a loss (RFC 6675) it does not count what a SACK
// reports lost, and when the acknowledgement comes it subtracts all of it: the count ends below the
// truth, often at 0. With RACK (RFC 8985) each acknowledgement then turns the retransmission timer
// off and the timer of the tail loss probe on. That sends one segment again, finds Outstanding at 0
// and arms nothing (transport/tcp/snd.go postXmit, SetPipe, rack.go schedulePTO). If the probe or
// its acknowledgement is lost, nothing is ever sent again. A round trip measured while Outstanding
// is 0 does not end the doubling of the timeout (updateRTO), so that it grows to minutes.
//
// Fix: the first unacknowledged segment of such a flow is sent again from here, when netstack has
// sent no data and the peer has acknowledged none for a while. The acknowledgement moves netstack
// on. The count is right until netstack repeats something and once all is acknowledged, so only
// flows in between are kept, and none where nothing is lost.
//
// Upstream: github.com/google/gvisor/issues/6113. No longer needed when TestNetstackStalls fails.
type resender struct {
	clock  tcpip.Clock
	post   Poster
	ends   []atomic.Uint64 // by hash: 32 bits of it, and where the flow's data ends
	number atomic.Int32    // of flows kept
	count  atomic.Uint64   // of segments sent
	shards [resendShards]resendShard

	mu     sync.Mutex  // guards what follows
	timer  tcpip.Timer // nil: not needed yet
	armed  bool        // the timer is set
	closed bool
}

// Poster posts what build returns, if anything, to the queue of the packet like, with nothing of
// its flow posted in between. It returns false if netstack has given the connection up: nothing of
// it is to be sent any more.
type Poster func(like *gstack.PacketBuffer, build func() *gstack.PacketBuffer) (alive bool)

// resendShard is a part of the flows. Its mutex is taken with that of a send queue held.
type resendShard struct {
	mu    sync.Mutex
	flows map[hdr.Tuple]*resendFlow // outgoing
	_     [48]byte
}

const (
	resendShards = 16
	resendEnds   = 1 << 14 // a power of two; of two flows in one place the later stays
	// maxResendFlows bounds the flows of a shard, maxResendParts the packets of a flow. What is
	// beyond has netstack's timers only.
	maxResendFlows = 512
	maxResendParts = 8192
	// resendTick is how often flows are looked at, while there are some.
	resendTick = 50 * time.Millisecond
	// resendIdle is after how long without data in flight a flow is forgotten: netstack has seen
	// the last acknowledgement by then.
	resendIdle = time.Second
)

// open makes r ready. post is called from the timer's goroutine.
func (r *resender) open(clock tcpip.Clock, post Poster) {
	r.clock, r.post, r.ends = clock, post, make([]atomic.Uint64, resendEnds)
	for i := range r.shards {
		r.shards[i].flows = make(map[hdr.Tuple]*resendFlow)
	}
}

// shard is where a flow's state is, by its hash.
func (r *resender) shard(hash uint64) *resendShard { return &r.shards[hash>>60&(resendShards-1)] }

// sent takes note of an outgoing segment.
func (r *resender) sent(pkt *gstack.PacketBuffer, s *hdr.Segment) {
	size, limits := uint32(s.Payload), s.Flags()&(hdr.FlagSYN|hdr.FlagRST) != 0
	if s.Flags()&hdr.FlagFIN != 0 {
		size++
	}
	if size == 0 && !limits && r.number.Load() == 0 {
		return
	}
	t, hash := s.Flow()
	shard := r.shard(hash)
	if limits {
		r.ends[hash&(resendEnds-1)].Store(0)
		r.forget(shard, t)
		return
	}
	seq, _ := hdr.Numbers(s.TCP())
	end, repeated := seq, false
	if size > 0 {
		end, repeated = r.repeats(hash, seq, seq+size)
	}
	if !repeated && r.number.Load() == 0 {
		return
	}
	shard.mu.Lock()
	defer shard.mu.Unlock()
	f := shard.flows[*t]
	if f == nil {
		if !repeated || !r.begin() || len(shard.flows) == maxResendFlows {
			return
		}
		f = &resendFlow{una: seq, end: end}
		shard.flows[*t] = f
		r.number.Add(1)
	}
	now := r.clock.NowMonotonic()
	timeout := repeated && f.timedOut(seq, now)
	f.note(s, now)
	if size > 0 {
		f.add(pkt, seq, size, now)
	}
	if timeout {
		f.goBack()
	}
}

// repeats reports whether data from seq to end has been sent before, as far as is known, and where
// the flow's data ends.
func (r *resender) repeats(hash uint64, seq, end uint32) (last uint32, repeated bool) {
	if last, known := r.end(hash); known && hdr.Before(seq, last) {
		return last, true
	}
	r.ends[hash&(resendEnds-1)].Store(hash>>32<<32 | uint64(end))
	return end, false
}

// end is where the data of a flow ends that has been sent, if that is known.
func (r *resender) end(hash uint64) (last uint32, known bool) {
	slot := r.ends[hash&(resendEnds-1)].Load()
	return uint32(slot), slot>>32 == hash>>32 && slot != 0
}

// received takes note of what an incoming segment acknowledges. It may change the timestamp that
// the segment echoes, see goBack, and take its SACK option out, see hideTail.
func (r *resender) received(s *hdr.Segment) (c Changes) {
	if r.number.Load() == 0 {
		return 0
	}
	t, hash := s.Flow()
	shard := r.shard(hash)
	if s.Flags()&(hdr.FlagSYN|hdr.FlagRST) != 0 {
		r.forget(shard, t)
		return 0
	}
	shard.mu.Lock()
	defer shard.mu.Unlock()
	f := shard.flows[*t]
	if f == nil || s.Flags()&hdr.FlagACK == 0 {
		return 0
	}
	now := r.clock.NowMonotonic()
	f.ackAt = now
	if f.acknowledged(s, now) && f.finLeft() {
		f.due = true
		r.soon()
	}
	if f.hideTail(s) {
		c |= SACKRemoved
	}
	if f.back.age(s) {
		c |= EchoAged
	}
	return c
}

// forget drops a flow that begins or ends.
func (r *resender) forget(shard *resendShard, t *hdr.Tuple) {
	if r.number.Load() == 0 {
		return
	}
	shard.mu.Lock()
	defer shard.mu.Unlock()
	r.drop(shard, *t)
}

// drop is called with the shard's mutex held.
func (r *resender) drop(shard *resendShard, t hdr.Tuple) {
	if f := shard.flows[t]; f != nil {
		f.release(len(f.parts))
		delete(shard.flows, t)
		r.number.Add(-1)
	}
}
