package tcpfix

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// reorderWindow has netstack hear of a gap only when the frame in it is late by more than
// reordering explains.
//
// Behaviour: netstack takes the first frame that is overtaken by three others for lost, and what it
// does then is not undone when the frame comes after all (RFC 3522, RFC 8985 section 6.2 step 4):
// the congestion window stays cut. From then on RACK waits, but segments that SACK reports outside
// of a recovery keep counting as in flight when they are acknowledged (transport/tcp/snd.go
// SetPipe), until the window is full of them. On a path of 20 ms on which 1 % of the frames are
// late by up to 5 ms a transfer makes 1.6 MB/s, and 22 with Linux.
//
// Fix: duplicate acknowledgements with SACK are held back, the last one, until the gap is older
// than a quarter of the shortest round trip (RFC 8985 section 6.2), and then delivered by a timer.
// SACK in what acknowledges something is taken out meanwhile. Once a gap has been shown all SACK
// passes, until all is acknowledged that had been sent then. The window grows when it proves short,
// and is 0 after three losses without a frame that was late.
//
// Upstream: docs/upstream/07-reordering.md. No longer needed when the rows "late" of
// tests/conformance/roads pass without it.
type reorderWindow struct {
	clock   tcpip.Clock
	deliver func(frame []byte)
	sentEnd func(hash uint64) (end uint32, known bool)

	rtts   []atomic.Uint64 // by hash: 32 bits of it, and the round trip of the handshake in us
	number atomic.Int32    // of flows kept
	held   atomic.Uint64   // acknowledgements held back
	late   atomic.Uint64   // of these, delivered later
	closed atomic.Bool
	timer  tcpip.Timer // of forgetIdle; set while flows are kept
	shards [reorderShards]reorderShard
}

const (
	reorderShards = 16
	reorderRTTs   = 1 << 12 // a power of two; of two flows in one place the later stays
	// maxReorderFlows bounds the flows of a shard: those beyond are seen by netstack as they are.
	maxReorderFlows = 256
	// reorderIdle says after how long without a gap a flow is forgotten, within as long again:
	// while any is kept, all segments are looked at.
	reorderIdle = 10 * time.Second
	// wholeRoundTrip bounds the window, in quarters of the round trip, and reorderPersist says for
	// how many gaps it stays grown (RFC 8985 section 6.2 step 4).
	wholeRoundTrip = 4
	reorderPersist = 16
	// lossesInRow says after how many gaps that were losses there is no window.
	lossesInRow = 3
)

// reorderShard holds a part of the flows. Its mutex is taken with that of a send queue held.
type reorderShard struct {
	mu    sync.Mutex
	flows map[hdr.Tuple]*reorderFlow // outgoing
	_     [48]byte
}

// reorderFlow holds what is known of the gaps of one flow. The shard's mutex guards it.
type reorderFlow struct {
	hash  uint64
	una   uint32 // acknowledged
	nxt   uint32 // sent
	gap   bool   // SACK has told of something behind una,
	since tcpip.MonotonicTime
	held  []byte // the last acknowledgement held back; empty: none
	timer tcpip.Timer
	turn  int // of the timer

	shown   bool // SACK passes until all before recover is acknowledged
	open    bool // the gap that was shown is not closed
	recover uint32
	shownAt tcpip.MonotonicTime
	resent  bool // netstack has sent data again since the gap began

	steps, persist int           // of the window
	grownAt        uint32        // the end of what was sent when a DSACK has made it grow
	late           time.Duration // the longest gap that closed by itself
	losses         int           // gaps in a row that did not
	minRTT         time.Duration // 0: not known
	probe          uint32        // the end of data whose acknowledgement is a sample
	probeAt        tcpip.MonotonicTime
	probing        bool
	used           tcpip.MonotonicTime // when there was a gap last

	gate reportGate // of what netstack is to know of a gap that is shown
}

func (r *reorderWindow) open(clock tcpip.Clock, sentEnd func(uint64) (uint32, bool),
	deliver func(frame []byte)) {
	r.clock, r.sentEnd, r.deliver = clock, sentEnd, deliver
	r.rtts = make([]atomic.Uint64, reorderRTTs)
	for i := range r.shards {
		r.shards[i].flows = make(map[hdr.Tuple]*reorderFlow)
	}
	r.timer = clock.AfterFunc(reorderIdle, r.forgetIdle)
	r.timer.Stop()
}

func (r *reorderWindow) shard(hash uint64) *reorderShard {
	return &r.shards[hash>>60&(reorderShards-1)]
}

// noteHandshake takes note of the round trip of a handshake.
func (r *reorderWindow) noteHandshake(hash uint64, rtt time.Duration) {
	us := min(uint64(max(rtt.Microseconds(), 1)), 1<<32-1)
	r.rtts[hash&(reorderRTTs-1)].Store(hash>>32<<32 | us)
}

// path returns the round trip of a flow's handshake; 0: it is not known.
func (r *reorderWindow) path(hash uint64) time.Duration {
	if slot := r.rtts[hash&(reorderRTTs-1)].Load(); slot>>32 == hash>>32 {
		return time.Duration(uint32(slot)) * time.Microsecond
	}
	return 0
}

// sent takes note of an outgoing segment, and reports whether the flow has had gaps.
func (r *reorderWindow) sent(pkt *gstack.PacketBuffer, s *hdr.Segment) (gaps bool) {
	special := s.Flags()&(hdr.FlagSYN|hdr.FlagRST) != 0
	if r.number.Load() == 0 || s.Payload == 0 && !special {
		return false
	}
	t, hash := s.Flow()
	shard := r.shard(hash)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	f := shard.flows[*t]
	switch {
	case f == nil:
	case special:
		r.forgetFlow(shard, t, f)
	default:
		seq, _ := hdr.Numbers(s.TCP())
		f.sent(seq, seq+uint32(s.Payload), r.clock.NowMonotonic())
		f.gate.of, _ = pkt.Owner.(connection)
		return true
	}
	return false
}

// sent takes note of data sent.
func (f *reorderFlow) sent(seq, end uint32, now tcpip.MonotonicTime) {
	if hdr.Before(seq, f.nxt) {
		f.resent, f.probing = true, false
		return
	}
	f.nxt = end
	if !f.probing {
		f.probe, f.probeAt, f.probing = end, now, true
	}
}

// windowNow returns how old a gap is to be before it is shown.
func (f *reorderFlow) windowNow() time.Duration {
	if f.losses >= lossesInRow {
		return 0
	}
	return min(max(f.minRTT/4*time.Duration(f.steps), 2*f.late), f.minRTT)
}

// received takes note of an incoming segment. It may take the SACK option out, and may keep the
// segment: it is not to be delivered now.
func (r *reorderWindow) received(s *hdr.Segment) (c Changes) {
	const mask = hdr.FlagSYN | hdr.FlagRST
	sacks := s.TCP()[12]>>4 >= sackWords && s.MayHaveSACK()
	if r.number.Load() == 0 && !sacks || s.Flags()&hdr.FlagACK == 0 {
		return 0
	}
	t, hash := s.Flow()
	shard := r.shard(hash)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	f := shard.flows[*t]
	if s.Flags()&mask != 0 {
		r.forgetFlow(shard, t, f)
		return 0
	}
	var sack []byte
	if sacks {
		sack = s.Options().SACK
	}
	first := f == nil
	if first {
		if len(sack) < 10 || len(sack) == 10 && startsBelow(s, sack) {
			return 0
		}
		if f = r.beginFlow(shard, s, hash); f == nil {
			return 0
		}
	}
	return r.judgeACK(shard, f, s, sack, first)
}

// startsBelow reports whether the first block of a SACK option begins below the ACK number: what it
// names has come twice (RFC 2883).
func startsBelow(s *hdr.Segment, sack []byte) bool {
	_, ack := hdr.Numbers(s.TCP())
	return hdr.Before(binary.BigEndian.Uint32(sack[2:]), ack)
}

// beginFlow begins to look at a flow, at its first gap; nil: it does not.
func (r *reorderWindow) beginFlow(shard *reorderShard, s *hdr.Segment, hash uint64) *reorderFlow {
	_, ack := hdr.Numbers(s.TCP())
	end, known := r.sentEnd(hash)
	if !known || !hdr.Before(ack, end) || r.closed.Load() ||
		len(shard.flows) == maxReorderFlows {
		return nil
	}
	f := &reorderFlow{hash: hash, una: ack, nxt: end, grownAt: ack, steps: 1,
		used: r.clock.NowMonotonic(), minRTT: r.path(hash)}
	t, _ := s.Flow()
	shard.flows[*t] = f
	if r.number.Add(1) == 1 {
		r.timer.Reset(reorderIdle)
	}
	return f
}

// forgetIdle forgets the flows that have had no gap for long.
func (r *reorderWindow) forgetIdle() {
	now := r.clock.NowMonotonic()
	for i := range r.shards {
		shard := &r.shards[i]
		shard.mu.Lock()
		for t, f := range shard.flows {
			if now.Sub(f.used) >= reorderIdle && !f.gap {
				r.forgetFlow(shard, &t, f)
			}
		}
		shard.mu.Unlock()
	}
	if r.number.Load() > 0 {
		r.timer.Reset(reorderIdle)
	}
}

// forgetFlow forgets a flow, which may be nil. The shard's mutex is held.
func (r *reorderWindow) forgetFlow(shard *reorderShard, t *hdr.Tuple, f *reorderFlow) {
	if f != nil {
		f.endGap()
		f.gate.close()
		delete(shard.flows, *t)
		r.number.Add(-1)
	}
}

// endGap ends a gap.
func (f *reorderFlow) endGap() {
	f.gap, f.held = false, f.held[:0]
	f.turn++
	if f.timer != nil {
		f.timer.Stop()
	}
}

// judgeACK says what becomes of an acknowledgement; sack is its option, or nil. Of the first of a
// flow it is not known whether it acknowledges something.
func (r *reorderWindow) judgeACK(shard *reorderShard, f *reorderFlow, s *hdr.Segment, sack []byte,
	first bool) Changes {
	now, gap := r.clock.NowMonotonic(), len(sack) >= 10
	twice := gap && startsBelow(s, sack) // what was sent again had arrived
	pure := s.Payload <= 0 && s.Flags()&hdr.FlagFIN == 0
	_, ack := hdr.Numbers(s.TCP())
	end, known := r.sentEnd(f.hash)
	overtaken := hdr.Before(ack, f.una)
	switch {
	case !known || hdr.Before(end, ack):
		return 0 // of what was never sent
	case twice:
		f.wasNeedless()
		if overtaken {
			return 0
		}
		gap = len(sack) > 10
	case overtaken && pure && gap && !f.shown:
		r.held.Add(1)
		return Held // a later one has said more
	case overtaken:
		return 0
	}
	advanced := ack != f.una
	if advanced {
		f.advanceTo(ack, now)
	}
	blocks := sack[min(len(sack), 2):]
	if twice {
		blocks = blocks[8:]
	}
	sent := !gap || ofDataSent(blocks, ack, end)
	if sent && f.shown && pure {
		return r.gateReport(shard, f, s, blocks, end)
	}
	if !sent || f.shown || !gap {
		return 0
	}
	f.used = now
	if !f.gap {
		f.since, f.resent = now, false
		w := f.windowNow()
		if w == 0 {
			f.showGap(now, end)
			return 0
		}
		f.gap = true
		r.armTimer(shard, f, s, w)
	}
	if pure {
		f.held = append(f.held[:0], s.Frame...)
	}
	if twice { // which netstack is to know now
		sack[1], sack = 2+8, blocks
	} else if pure && !advanced && !first {
		r.held.Add(1)
		return Held
	}
	for i := range sack {
		sack[i] = hdr.OptNop
	}
	return SACKRemoved
}

// wasNeedless takes note that what was sent again had come: one of the losses was none. The window
// grows once in a round trip (RFC 8985 section 6.2 step 4). One that is as long as it may be was
// too short: frames are later than that, or are sent again by netstack and from here.
func (f *reorderFlow) wasNeedless() {
	if f.steps >= wholeRoundTrip {
		return
	}
	f.losses = max(f.losses-1, 0)
	if !hdr.Before(f.una, f.grownAt) {
		f.steps, f.persist, f.grownAt = f.steps+1, reorderPersist, f.nxt
	}
}

// ofDataSent reports whether all blocks are of data that has been sent.
func ofDataSent(blocks []byte, ack, end uint32) bool {
	for ; len(blocks) >= 8; blocks = blocks[8:] {
		from, to := binary.BigEndian.Uint32(blocks), binary.BigEndian.Uint32(blocks[4:])
		if !hdr.Before(ack, from) || !hdr.Before(from, to) || hdr.Before(end, to) {
			return false
		}
	}
	return true
}

// advanceTo takes note that what comes before ack is acknowledged.
func (f *reorderFlow) advanceTo(ack uint32, now tcpip.MonotonicTime) {
	if f.probing && !hdr.Before(ack, f.probe) {
		if rtt := now.Sub(f.probeAt); rtt > 0 && (f.minRTT == 0 || rtt < f.minRTT) {
			f.minRTT = rtt
		}
		f.probing = false
	}
	switch late := now.Sub(f.since); {
	case f.gap && !f.resent, f.open && !f.resent,
		f.open && now.Sub(f.shownAt) < f.minRTT*3/4: // nothing sent again has come so soon
		f.late, f.persist, f.losses = max(f.late, late), reorderPersist, 0
	case f.open:
		f.losses++
	}
	f.una, f.open = ack, false
	f.endGap()
	if f.shown && !hdr.Before(ack, f.recover) && len(f.gate.waiting) == 0 {
		f.shown = false
	}
}

// showGap lets SACK pass until all is acknowledged that has been sent, up to end.
func (f *reorderFlow) showGap(now tcpip.MonotonicTime, end uint32) {
	f.shown, f.open, f.recover, f.shownAt = true, true, end, now
	if f.persist--; f.persist <= 0 {
		f.steps, f.late = 1, 0
	}
}

// armTimer sets the timer that shows a gap once it is as old as the window.
func (r *reorderWindow) armTimer(shard *reorderShard, f *reorderFlow, s *hdr.Segment,
	window time.Duration) {
	t, _ := s.Flow()
	key := *t
	f.turn++
	turn := f.turn
	f.timer = r.clock.AfterFunc(window, func() {
		if frame := r.takeHeld(shard, &key, turn); len(frame) > 0 {
			r.late.Add(1)
			r.deliver(frame)
		}
	})
}

// takeHeld shows a gap, and returns the acknowledgement that was held back.
func (r *reorderWindow) takeHeld(shard *reorderShard, t *hdr.Tuple, turn int) (frame []byte) {
	shard.mu.Lock()
	defer shard.mu.Unlock()
	f := shard.flows[*t]
	if f == nil || f.turn != turn || !f.gap {
		return nil
	}
	frame, f.held, f.gap = f.held, nil, false
	if end, known := r.sentEnd(f.hash); known {
		f.showGap(r.clock.NowMonotonic(), end)
	}
	return frame
}

// clear forgets all flows.
func (r *reorderWindow) clear() {
	for i := range r.shards {
		shard := &r.shards[i]
		shard.mu.Lock()
		for t, f := range shard.flows {
			r.forgetFlow(shard, &t, f)
		}
		shard.mu.Unlock()
	}
}

// close forgets all flows and keeps none any more. It may be called again.
func (r *reorderWindow) close() {
	r.closed.Store(true)
	r.clear()
	r.timer.Stop()
}
