package tcpfix

import (
	"bytes"
	"encoding/binary"
	"slices"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// reportGate lets netstack hear of what has come, of one flow with a gap, as fast as it works that
// out.
//
// Behaviour: within a recovery netstack looks at each segment in flight, three times, for every
// acknowledgement (transport/tcp/snd.go SetPipe, rack.go detectLoss): with 3,000 of them it takes
// 0.3 to 1 ms. A receiver that misses something acknowledges each frame that comes, 8,000 in a
// second of 100 Mbit/s. What netstack has not looked at waits in its queue, for up to a second, in
// which it sends again what was acknowledged long ago, and stands still when all has come.
//
// Fix: while segments of the connection wait for netstack, acknowledgements are held back, and left
// out if a later one, with what was delivered last, says all that they say. netstack's queue is
// looked at again from time to time. Short flights are not concerned.
//
// Upstream: docs/upstream/41-recovery-cost.md. No longer needed when TestRecoveryCost of
// tests/conformance/upstream fails.
type reportGate struct {
	of      connection // nil: not known, and nothing is held back
	waiting []report   // in the order of their arrival
	told    ranges     // by the acknowledgement that was delivered last
	timer   tcpip.Timer
	passes  bool // what waited is delivered, and received anew
}

const (
	// busyAt says from how many segments on that wait for netstack acknowledgements are held back,
	// and gatePause how often is looked whether so many do.
	busyAt    = 4
	gatePause = 500 * time.Microsecond
	// leastFlight gives the bytes in flight from which on that is done.
	leastFlight = 128 << 10
	// maxReports bounds how many wait, and someReports how many are delivered at a time: the rest
	// may become needless.
	maxReports  = 512
	someReports = 8
	// maxRanges says how many ranges a SACK option has at most.
	maxRanges = 4
)

// report holds an acknowledgement that waits.
type report struct {
	frame    []byte
	ack, seq uint32
	stamp    [2]uint32 // timestamp and echo
	stamped  bool
	twice    bool // it tells of data that has come twice, which netstack counts
	ranges   ranges
}

// ranges holds those of a SACK option.
type ranges struct {
	all [maxRanges]span
	n   int
}

// rangesOf reads the blocks of a SACK option.
func rangesOf(blocks []byte) (r ranges) {
	for ; len(blocks) >= 8 && r.n < maxRanges; blocks = blocks[8:] {
		r.all[r.n] = span{binary.BigEndian.Uint32(blocks), binary.BigEndian.Uint32(blocks[4:])}
		r.n++
	}
	return r
}

// haveAll reports whether one of the ranges has all of x.
func (r *ranges) haveAll(x span) bool { return covered(r.all[:r.n], x.seq, x.end) }

// gateReport says what becomes of an acknowledgement without data that netstack is to know, of a
// flow with a gap that has sent up to end. blocks are those of its SACK option. It may be kept.
func (r *reorderWindow) gateReport(shard *reorderShard, f *reorderFlow, s *hdr.Segment,
	blocks []byte, end uint32) Changes {
	g := &f.gate
	if g.passes {
		return 0
	}
	x := reportOf(s, blocks)
	if n := len(g.waiting); n > 0 && hdr.Before(g.waiting[n-1].ack, x.ack) {
		g.waiting = slices.DeleteFunc(g.waiting, func(y report) bool {
			return y.superseded(&x, &ranges{})
		})
	}
	for n := len(g.waiting); n > 0 && g.waiting[n-1].superseded(&x, g.toldBefore(n-1)); n-- {
		g.waiting = g.waiting[:n-1]
	}
	if len(g.waiting) == 0 && (end-x.ack < leastFlight || !g.netstackBehind()) {
		g.told = x.ranges
		return 0
	}
	x.frame = bytes.Clone(s.Frame)
	if g.waiting = append(g.waiting, x); len(g.waiting) == 1 {
		g.lookLater(r, shard, s)
	}
	r.held.Add(1)
	return Held
}

// netstackBehind reports whether so many segments wait for netstack.
func (g *reportGate) netstackBehind() bool { return g.of != nil && g.of.Unread(busyAt) == busyAt }

// lookLater sets the timer that looks whether netstack still is busy.
func (g *reportGate) lookLater(r *reorderWindow, shard *reorderShard, s *hdr.Segment) {
	if g.timer != nil {
		g.timer.Reset(gatePause)
		return
	}
	t, _ := s.Flow()
	key := *t
	g.timer = r.clock.AfterFunc(gatePause, func() { r.deliverReports(shard, &key) })
}

// toldBefore returns what netstack is told in front of the report that waits at i.
func (g *reportGate) toldBefore(i int) *ranges {
	if i > 0 {
		return &g.waiting[i-1].ranges
	}
	return &g.told
}

func reportOf(s *hdr.Segment, blocks []byte) (x report) {
	x.seq, x.ack = hdr.Numbers(s.TCP())
	x.ranges = rangesOf(blocks)
	sack := s.Options().SACK
	x.twice = len(sack) >= 10 && startsBelow(s, sack)
	if stamp := s.Options().Timestamp; len(stamp) == hdr.TimestampLen {
		x.stamped = true
		x.stamp = [2]uint32{binary.BigEndian.Uint32(stamp[2:]), binary.BigEndian.Uint32(stamp[6:])}
	}
	return x
}

// superseded reports whether a later acknowledgement says all that x says which told does not. It
// is as acceptable: a forged one does not take the place of a genuine one.
func (x *report) superseded(by *report, told *ranges) bool {
	const maxStep = 1 << 20 // a second of a clock that counts microseconds
	if x.twice || x.seq != by.seq || hdr.Before(by.ack, x.ack) || x.stamped != by.stamped ||
		by.stamp[0]-x.stamp[0] > maxStep || by.stamp[1]-x.stamp[1] > maxStep {
		return false
	}
	for _, y := range x.ranges.all[:x.ranges.n] {
		if hdr.Before(by.ack, y.end) && !by.ranges.haveAll(y) && !told.haveAll(y) {
			return false
		}
	}
	return true
}

// noteRemoved notes that netstack is not told what a segment reports.
func (r *reorderWindow) noteRemoved(s *hdr.Segment) {
	t, hash := s.Flow()
	shard := r.shard(hash)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if f := shard.flows[*t]; f != nil {
		f.gate.told = ranges{}
	}
}

// deliverReports delivers what waits, to be received anew, unless netstack is busy.
func (r *reorderWindow) deliverReports(shard *reorderShard, t *hdr.Tuple) {
	waiting := r.takeReports(shard, t)
	if len(waiting) == 0 {
		return
	}
	r.late.Add(uint64(len(waiting)))
	for i := range waiting {
		r.deliver(waiting[i].frame)
	}
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if f := shard.flows[*t]; f != nil {
		if f.gate.passes = false; len(f.gate.waiting) > 0 {
			f.gate.timer.Reset(gatePause)
		}
	}
}

// takeReports returns what is to be delivered now.
func (r *reorderWindow) takeReports(shard *reorderShard, t *hdr.Tuple) (waiting []report) {
	shard.mu.Lock()
	defer shard.mu.Unlock()
	f := shard.flows[*t]
	if f == nil || len(f.gate.waiting) == 0 {
		return nil
	}
	g := &f.gate
	if len(g.waiting) < maxReports && g.netstackBehind() {
		g.timer.Reset(gatePause)
		return nil
	}
	waiting = slices.Clone(g.waiting[:min(len(g.waiting), someReports)])
	g.waiting = slices.Delete(g.waiting, 0, len(waiting))
	g.passes, g.told = true, waiting[len(waiting)-1].ranges
	return waiting
}

// close forgets what waits.
func (g *reportGate) close() {
	g.waiting = nil
	if g.timer != nil {
		g.timer.Stop()
	}
}
