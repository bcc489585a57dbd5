package stack

import (
	"math"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/seqnum"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/rdma-netstack/rdma-netstack/clock"
)

const (
	// maxSlowStarts says how often one begins slow start again, and maxSlowStarters how many are
	// looked at.
	maxSlowStarts   = 8
	maxSlowStarters = 1024
	maxVainStarts   = 1
	// slowStartSweep says how often connections that write more than their window are looked at.
	slowStartSweep = 300 * time.Millisecond
	// undoSweep says how often a connection is looked at of which a flight was needless.
	undoSweep = 50 * time.Millisecond
	// sampledRound gives the shortest round trip that HyStart is right about: netstack knows round
	// trips in milliseconds.
	sampledRound = 2 * time.Millisecond
	// pacedRound gives the shortest round trip of connections that are kept to the rate of their
	// window: within a rack no queue is shorter than a window.
	pacedRound = 5 * time.Millisecond
	// firstResends gives the segments that are sent again before the peer acknowledges any.
	firstResends = 5
	// looksShare bounds the cost: a look at n segments is followed by n divided by so many segments
	// sent again without one.
	looksShare = 8
)

// slowStart follows the slow start of one connection.
type slowStart struct {
	conn     *TCPConn
	least    time.Duration // the shortest round trip
	times    int
	vain     int    // of these, after which the window was not larger by a quarter
	ended    uint32 // the window at which slow start ended last; 0: not yet
	over     bool   // it does not begin again
	window   uint32 // at the last look outside of a timeout, in segments
	quiet    bool   // it has not had more to write than its window since the sweep before
	timedOut bool
	answers  uint64 // segments received, at the sweep before
	// At the sweep before: segments sent again as a recovery began, and timeouts. spread: one began
	// since the last timeout.
	recoveries, timeouts uint64
	spread               bool
	settled              settled
	needless             bool          // nothing was lost of a flight before settled
	ranges               sackRanges    // see tcpFields.keepRanges
	minRTO               time.Duration // the connection's by itself, see allowPauses
}

// allowPauses gives a connection a timeout that is longer than its round trip by minRTO at least.
//
// netstack's least timeout does not depend on the round trip, and the timeout is no longer than the
// round trip where all are alike. At 80 ms an acknowledgement that is 40 ms late, as after a pause
// of either host, comes behind it. netstack then takes the connection for one that has rested,
// although data is in flight, and lowers its window to ten segments (transport/tcp/snd.go,
// sendData). Linux's timeout is the round trip and 200 ms at least (tcp_rtt_estimator of
// net/ipv4/tcp_input.c).
//
// Upstream: docs/upstream/43-rest-in-flight.md. No longer needed when TestLongPauses of
// tests/conformance/roads passes without it.
func (x *slowStart) allowPauses(c *tcp.Endpoint, fields *tcpFields, roundTrip time.Duration) {
	fields.setLeastTimeout(c, x.minRTO+roundTrip)
}

// goesOn reports whether a connection has more to write although its writer has not been told since
// the sweep before that it may go on: it is in a timeout, or the peer answers what fills a buffer.
func (x *slowStart) goesOn(c *tcp.Endpoint, fields *tcpFields) bool {
	before := x.answers
	x.answers = c.Stats().(*tcp.Stats).SegmentsReceived.Value()
	return x.timedOut || x.answers != before && fields.unsentBy(c) > 0
}

// lookAt begins slow start again where that is due, holds the threshold in timeouts, and lets the
// window grow.
func (x *slowStart) lookAt(c *tcp.Endpoint, fields *tcpFields, now tcpip.MonotonicTime) {
	var info tcpip.TCPInfoOption
	x.timedOut = false
	if c.GetSockOpt(&info) != nil || tcp.EndpointState(c.State()) != tcp.StateEstablished {
		return
	}
	x.timedOut = info.CcState == tcpip.RTORecovery
	if x.least == 0 || info.RTT < x.least {
		x.least = info.RTT
	}
	x.allowPauses(c, fields, info.RTT)
	x.undoNeedless(c, fields, &info)
	if x.noteLosses(&c.Stats().(*tcp.Stats).SendErrors) {
		if least := x.heldThreshold(&info); least > 0 {
			fields.setThreshold(c, int(least))
		} else if info.CcState == tcpip.Open {
			fields.growCubic(c, now)
			_ = c.GetSockOpt(&info) // which it has answered before
		}
		x.paceByWindow(&info)
		return
	}
	x.window = info.SndCwnd
	if x.over || !x.endedForNothing(&info) {
		return
	}
	x.times++
	if info.SndCwnd < x.ended+x.ended/4 {
		x.vain++
	}
	x.ended = info.SndCwnd
	if !fields.setThreshold(c, tcp.InitialSsthresh) {
		setControlAnew(c)
	}
	x.over = x.times == maxSlowStarts || x.vain == maxVainStarts
}

// noteLosses notes what was lost since the sweep before, and reports whether anything was since the
// connection began. A tail loss probe says only that an acknowledgement was late.
func (x *slowStart) noteLosses(e *tcp.SendErrors) bool {
	recoveries, timeouts := e.FastRetransmit.Value(), e.Timeouts.Value()
	switch {
	case timeouts != x.timeouts:
		x.spread = false
	case recoveries != x.recoveries:
		x.spread = true
	}
	x.recoveries, x.timeouts = recoveries, timeouts
	return recoveries+timeouts > x.conn.recovery.undone
}

// undo looks only at what is to be undone.
func (x *slowStart) undo(c *tcp.Endpoint, fields *tcpFields) {
	var info tcpip.TCPInfoOption
	if c.GetSockOpt(&info) == nil && tcp.EndpointState(c.State()) == tcp.StateEstablished {
		x.undoNeedless(c, fields, &info)
	}
}

// undoNeedless gives a connection back the threshold that it had before recoveries and timeouts in
// which nothing was lost (RFC 4015), and has CUBIC go on as if there had been none. It leaves the
// window to slow start, as that of before would leave in one burst.
//
// Upstream: docs/upstream/44-spurious-undo.md. No longer needed when TestSpuriousUndo of
// tests/conformance/upstream fails.
func (x *slowStart) undoNeedless(c *tcp.Endpoint, fields *tcpFields, info *tcpip.TCPInfoOption) {
	is := x.conn.recovery.settle(info)
	if is.losses != x.settled.losses && info.CcState != tcpip.Open {
		return // not decided yet
	}
	// A probe lowers the window when the peer acknowledges what was sent behind it, and CUBIC's
	// epoch begins anew. So it does where slow start has just ended.
	lowered := is.losses != x.settled.losses || is.window < x.settled.window ||
		is.cubic.T != x.settled.cubic.T && x.settled.threshold != noThreshold
	needless := is.lost == x.settled.lost && is.needless != x.settled.needless
	if lowered && (needless || x.needless) {
		x.conn.recovery.undone += is.losses - x.settled.losses
		is.threshold, is.cubic = max(x.settled.window, x.settled.threshold), x.settled.cubic
		fields.setThreshold(c, x.thresholdWithout(is))
		fields.setCubic(c, is.cubic)
		_ = c.GetSockOpt(info) // which it has answered before
		x.spread, x.ended = false, 0
		x.conn.setWindowPacing(0)
	}
	x.settled, x.needless = is, needless
}

// thresholdWithout returns the threshold of a connection whose needless losses were undone. What
// had a probe sent has ended slow start as well, so that it begins again where nothing else was
// lost.
func (x *slowStart) thresholdWithout(is settled) int {
	switch {
	case is.threshold == noThreshold:
	case is.losses == x.conn.recovery.undone && x.times < maxSlowStarts:
		x.times++
	default:
		return int(is.threshold)
	}
	return tcp.InitialSsthresh
}

// noThreshold is what a connection tells of its threshold before it has one.
const noThreshold = math.MaxUint32

// settled describes a connection at the last sweep at which it recovered from nothing.
type settled struct {
	losses            uint64 // recoveries and timeouts until then
	lost, needless    uint32 // flights, see recoveryCount
	window, threshold uint32 // in segments
	cubic             tcp.TCPCubicState
}

// paceByWindow keeps what the program writes to a fifth more than a window in each round trip, once
// segments were lost and slow start is over, as Linux does with a paced socket
// (tcp_update_pacing_rate of net/ipv4/tcp_input.c). What acknowledgements make room for leaves in
// bursts else, which short queues drop. A timeout is a path that was gone, not a queue.
func (x *slowStart) paceByWindow(info *tcpip.TCPInfoOption) {
	switch {
	case !x.spread || x.least < pacedRound ||
		info.CcState == tcpip.Open && info.SndCwnd < info.SndSsthresh:
		x.conn.setWindowPacing(0)
	case info.CcState != tcpip.RTORecovery:
		payload, headers := x.conn.segmentSizes()
		window := float64(info.SndCwnd) * float64(payload+headers)
		x.conn.setWindowPacing(uint64(1.2 * window / x.least.Seconds()))
	}
}

// heldThreshold returns the threshold that a connection is to have whose timeouts have lowered it
// again and again: half of the window before the first (RFC 5681 section 3.1). 0: they have not.
func (x *slowStart) heldThreshold(info *tcpip.TCPInfoOption) uint32 {
	half, low := x.window/2, x.window/4
	switch {
	case info.CcState == tcpip.FastRecovery || info.CcState == tcpip.SACKRecovery:
		x.window = max(x.window, info.SndCwnd) // slow start may have gone on since the sweep before
	case info.SndSsthresh < low && info.SndCwnd < low:
		if info.CcState == tcpip.Open {
			x.window = half
		}
		return half
	case info.CcState == tcpip.Open:
		x.window = info.SndCwnd
	}
	return 0
}

// endedForNothing reports whether slow start has ended, and the round trip is short, so that no
// queue has built up.
func (x *slowStart) endedForNothing(info *tcpip.TCPInfoOption) bool {
	return info.CcState == tcpip.Open && info.SndSsthresh <= info.SndCwnd &&
		info.RTT >= sampledRound &&
		info.RTT < x.least+x.least/8
}

// slowStarts mends the windows of connections that have more to write than these: slow start goes
// on that was left for no loss, a threshold is held in timeouts, CUBIC grows by fractions, and
// after a loss writes are spread over the round trip.
//
// netstack's HyStart ends slow start for good when an acknowledgement is late, as after a pause of
// some ms of either host or of a radio link; RFC 9406 section 4.2 goes on more slowly, and back to
// slow start when the round trip is short again.
//
// Slow start goes on from the window that it has ended with, until HyStart ends it again.
//
// Upstream: docs/upstream/18-hystart-pause.md. No longer needed when the rows "pauses" of
// tests/conformance/roads pass without it. The threshold is that of 20-threshold.md, the fractions
// are those of 33-cubic-fraction.md, the rest is that of 34-cubic-idle.md, the timeout that of
// 43-rest-in-flight.md.
type slowStarts struct {
	clock  clock.Clock
	net    *gstack.Stack
	fields *tcpFields // of netstack

	mu     sync.Mutex // guards what follows; held during a sweep
	all    map[*tcp.Endpoint]*slowStart
	timer  clock.Timer         // set while there is something in all; nil: not needed yet
	next   tcpip.MonotonicTime // when all is looked at
	closed bool
}

// noteFull notes that a connection has more to write than it may send.
func (o *slowStarts) noteFull(conn *TCPConn) {
	c, ok := conn.ep.(*tcp.Endpoint)
	if !ok {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if x := o.all[c]; x != nil {
		x.quiet = false
		return
	}
	if o.closed || len(o.all) == maxSlowStarters {
		return
	}
	if o.all == nil {
		o.all = make(map[*tcp.Endpoint]*slowStart)
	}
	switch {
	case o.timer == nil:
		o.timer = o.clock.AfterFunc(slowStartSweep, o.lookAtAll)
	case len(o.all) == 0:
		o.timer.Reset(slowStartSweep)
	}
	o.fields.beginEpoch(c, o.net.Clock().NowMonotonic())
	x := &slowStart{conn: conn, ranges: o.fields.keepRanges(c, nil),
		minRTO: o.fields.leastTimeout(c)}
	var info tcpip.TCPInfoOption
	if c.GetSockOpt(&info) == nil {
		x.allowPauses(c, o.fields, info.RTT)
		x.settled = conn.recovery.settle(&info)
	}
	o.all[c] = x
	conn.recovery.countSent()
}

// lookAtAll looks at all connections, and forgets those that write no more.
func (o *slowStarts) lookAtAll() {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := o.net.Clock().NowMonotonic()
	all, pause := !now.Before(o.next), slowStartSweep
	for c, x := range o.all {
		if all {
			o.lookAt(c, x, now)
		} else if x.needless {
			x.undo(c, o.fields)
		}
		if x.needless {
			pause = undoSweep
		}
	}
	if all {
		o.next = now.Add(slowStartSweep)
	}
	if len(o.all) > 0 && !o.closed {
		o.timer.Reset(min(pause, o.next.Sub(now)))
	}
}

// lookAt looks at a connection, or forgets it.
func (o *slowStarts) lookAt(c *tcp.Endpoint, x *slowStart, now tcpip.MonotonicTime) {
	x.ranges = o.fields.keepRanges(c, x.ranges)
	if x.lookAt(c, o.fields, now); x.quiet && !x.goesOn(c, o.fields) {
		delete(o.all, c)
		x.conn.setWindowPacing(0)
		x.allowPauses(c, o.fields, 0)
		o.fields.keepFewRanges(c, x.ranges)
	}
	x.quiet = true
}

func (o *slowStarts) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed, o.all = true, nil
	if o.timer != nil {
		o.timer.Stop()
	}
}

// setControlAnew sets the congestion control that a connection has: netstack begins anew with it.
func setControlAnew(ep *tcp.Endpoint) {
	var control tcpip.CongestionControlOption
	if ep.GetSockOpt(&control) == nil {
		_ = ep.SetSockOpt(&control) // one that it has cannot be unknown
	}
}

// recoveryCount corrects what netstack counts as in flight while a connection recovers from a loss.
// It owns the connection's packets, as which the link tells it of each segment that netstack sends
// again, with the connection's lock held. That lock guards it.
//
// What RACK has found lost goes on counting as in flight unless SACK tells of data behind it
// (transport/tcp/snd.go SetPipe). Where a whole flight is lost that is more than the window:
// one segment is sent again, and nothing else until the timeout, after which the marks are still
// there and begin the same again. The window is made larger by what counts for nothing: as much is
// sent again as the peer has acknowledged meanwhile, up to half of what was lost or the threshold
// (slow start of RFC 5681, RFC 6937).
//
// What is lost and was sent again netstack counts up to RFC 6675's HighRxt, and where RACK has
// begun a recovery that stays where it began (rack.go DoRecovery). Each acknowledgement makes room
// for as much anew: all that is lost leaves at once, into the queue that has just lost it, and new
// data behind it. For connections that write more than their window HighRxt is raised.
//
// Upstream: docs/upstream/05-go-back.md and 40-resend-echo.md. No longer needed when
// TestGoBackOfNetstack fails, and TestFilledQueue of tests/conformance/roads passes without it.
type recoveryCount struct {
	ep     *tcp.Endpoint
	fields *tcpFields
	next   *seqnum.Value // SND.NXT; nil: not looked for yet

	last, una seqnum.Value // FastRecovery.Last of the recovery, and SND.UNA as it began
	lost      int32        // segments lost as it began, and not sent again
	inFlight  int32        // segments in flight as it began
	skip      int32        // so many segments sent again are not looked at
	end       seqnum.Value // SND.NXT at the last timeout

	follows    bool // a recovery
	raised     bool // its window is larger than netstack has made it
	timedOut   bool // a timeout took all before end for lost
	countsSent bool // HighRxt is raised

	// Flights of which some was sent again: that had lost something, and that had not. The link
	// writes them.
	lostFlights, needlessFlights atomic.Uint32

	net    *gstack.Stack
	silent atomic.Bool // the peer was, for too long
	undone uint64      // recoveries and timeouts, undone; guarded by the lock of slowStarts
}

// settle describes the connection as it is.
func (c *recoveryCount) settle(info *tcpip.TCPInfoOption) settled {
	e := &c.ep.Stats().(*tcp.Stats).SendErrors
	return settled{e.FastRetransmit.Value() + e.Timeouts.Value(), c.lostFlights.Load(),
		c.needlessFlights.Load(), info.SndCwnd, info.SndSsthresh, c.fields.cubicOf(c.ep)}
}

// NoteLost notes that a flight had lost something of which some was sent again.
func (c *recoveryCount) NoteLost() { c.lostFlights.Add(1) }

// NoteNeedless notes that nothing was lost of such a flight.
func (c *recoveryCount) NoteNeedless() { c.needlessFlights.Add(1) }

// TimeOut returns for how long the peer may leave data unacknowledged in silence: the connection's
// user timeout, or the time of its retransmissions. Operations fail with ETIMEDOUT once it has.
func (c *recoveryCount) TimeOut(silent time.Duration) (limit time.Duration) {
	var user tcpip.TCPUserTimeoutOption
	_ = c.ep.GetSockOpt(&user) // every TCP endpoint has it
	if limit = time.Duration(user); limit == 0 {
		var most tcpip.TCPMaxRetriesOption
		_ = c.net.TransportProtocolOption(tcp.ProtocolNumber, &most)
		limit = retransmissionTime(int(most))
	}
	if silent >= limit {
		c.silent.Store(true)
	}
	return limit
}

// retransmissionTime returns how long n timeouts take of which the first is of 200 ms, and the last
// are of two minutes: tcp_model_timeout of Linux's net/ipv4/tcp_timer.c, 924.6 s for 15.
func retransmissionTime(n int) (d time.Duration) {
	for rto := 200 * time.Millisecond; n >= 0; n-- {
		d += rto
		rto = min(2*rto, 2*time.Minute)
	}
	return d
}

// countSent makes what a recovery sends again count as in flight from now on.
func (c *recoveryCount) countSent() {
	if c != nil {
		c.ep.LockUser()
		defer c.ep.UnlockUser()
		c.countsSent = true
	}
}

// KUID and KGID implement tcpip.PacketOwner. Nothing asks for them.
func (*recoveryCount) KUID() uint32 { return 0 }

func (*recoveryCount) KGID() uint32 { return 0 }

// SentBefore returns SND.NXT, which netstack moves once it has sent a segment. False: there is no
// such field.
func (c *recoveryCount) SentBefore() (end uint32, known bool) {
	if c.next == nil {
		at := c.fields.sndNxt.in(c.fields.snd.target(reflect.ValueOf(c.ep).Elem()))
		if !at.IsValid() {
			return 0, false
		}
		if c.next, known = writable(at).Addr().Interface().(*seqnum.Value); !known {
			return 0, false
		}
	}
	return uint32(*c.next), true
}

// Unread returns how many of the segments that the connection has received wait for netstack, at
// most most. It needs no lock.
func (c *recoveryCount) Unread(most int) int { return c.fields.countUnread(c.ep, most) }

// CountResend notes that data up to end is sent again. A recovery that begins starts anew.
func (c *recoveryCount) CountResend(end uint32) {
	f, v := c.fields, reflect.ValueOf(c.ep).Elem()
	snd := f.snd.target(v)
	recovery := f.recovery.in(snd)
	if at := f.highRxt.in(recovery); c.countsSent && at.IsValid() {
		highest, ok := writable(at).Addr().Interface().(*seqnum.Value)
		if last := seqnum.Value(end) - 1; ok && highest.LessThan(last) {
			*highest = last
		}
	}
	if f.state.int(snd) == int(tcpip.RTORecovery) {
		c.timedOut, c.end = true, seqnum.Value(f.sndNxt.int(snd))
	}
	switch {
	case !f.active.bool(recovery):
		c.follows = false
	case f.sack.bool(v):
		c.makeRoom(snd, recovery)
	}
}

// makeRoom gives a recovery the window that lets it send what is lost.
func (c *recoveryCount) makeRoom(snd, recovery reflect.Value) {
	f := c.fields
	last, una := seqnum.Value(f.last.int(recovery)), seqnum.Value(f.sndUna.int(snd))
	begins := !c.follows || c.last != last
	if c.skip > 0 && !begins {
		c.skip--
		return
	}
	next := seqnum.Value(f.sndNxt.int(snd))
	if c.timedOut && (c.end.LessThanEq(una) || next.LessThan(c.end)) { // numbers wrap, after 2 GiB
		c.timedOut = false
	}
	n, ok := c.countFlight(snd, recovery)
	window := f.cwnd.in(snd)
	if !ok || !window.IsValid() {
		return
	}
	if begins {
		c.follows, c.last, c.una, c.raised = true, last, una, false
		c.lost, c.inFlight = int32(n.lost), int32(n.inFlight)
	}
	c.skip = int32(n.segments / looksShare)
	if c.raised = c.raised || n.excess > 0; !c.raised {
		return
	}
	acked := int(c.una.Size(una)) / n.size
	room := min(max(f.ssthresh.int(snd)+3, int(c.lost)/2), firstResends+int(c.inFlight)+acked)
	writable(window).SetInt(int64(room + n.excess))
}

// countFlight counts the segments of a connection that recovers as SetPipe does, and what is in
// flight. It reports whether the fields are there. The connection's lock is held.
func (c *recoveryCount) countFlight(snd, recovery reflect.Value) (n flightCount, ok bool) {
	f := c.fields
	at, board := f.firstSegment.in(f.segments.in(f.writeList.in(snd))), f.boardOf(c.ep)
	if !at.IsValid() || board == nil || board.SMSS() == 0 || f.nextSegment.index == nil {
		return n, false
	}
	n.size = int(board.SMSS())
	highest := seqnum.Value(f.highRxt.int(recovery))
	for ; !at.IsNil(); at = f.nextSegment.in(at.Elem()) {
		seg := at.Elem()
		times := f.sentTimes.int(seg)
		pkt, isPacket := writable(f.packet.in(seg)).Interface().(*gstack.PacketBuffer)
		if times == 0 || !isPacket || pkt.Data().Size() == 0 {
			break
		}
		start := seqnum.Value(f.seq.int(seg))
		n.add(board, sentSegment{
			SACKBlock: header.SACKBlock{Start: start,
				End: start.Add(seqnum.Size(pkt.Data().Size()))},
			lost:    f.lost.bool(seg) || times == 1 && c.timedOut && start.LessThan(c.end),
			again:   times > 1,
			counted: start.LessThanEq(highest)})
	}
	return n, true
}

// newRecoveryCount makes the count of a connection's recoveries right.
func newRecoveryCount(e tcpip.Endpoint, fields *tcpFields, net *gstack.Stack) *recoveryCount {
	ep, ok := e.(*tcp.Endpoint)
	if !ok {
		return nil
	}
	c := &recoveryCount{ep: ep, fields: fields, net: net}
	ep.LockUser()
	defer ep.UnlockUser()
	ep.SetOwner(c)
	return c
}

// flightCount counts the segments between SND.UNA and SND.NXT.
type flightCount struct {
	size     int // of a segment, in bytes
	segments int
	lost     int // found lost, and not sent again
	inFlight int
	excess   int // counted as in flight by netstack, and not
}

// add counts the segments of the wire that one of netstack's becomes.
func (n *flightCount) add(board *tcp.SACKScoreboard, s sentSegment) {
	for b := s.SACKBlock; b.Start.LessThan(s.End); b.Start = b.End {
		if b.End = b.Start.Add(seqnum.Size(n.size)); s.End.LessThan(b.End) {
			b.End = s.End
		}
		n.segments++
		if board.IsSACKED(b) {
			continue
		}
		behind := board.IsRangeLost(b) // and counts only if it was sent again
		inFlight := !s.lost && (s.again || !behind)
		switch {
		case inFlight:
			n.inFlight++
		case s.lost:
			n.lost++
		}
		if !behind && !inFlight {
			n.excess++
		}
		if !behind && s.counted {
			n.excess++
		}
	}
}

// sentSegment describes a segment of netstack's: whether it was lost, was sent again, and counts as
// sent again.
type sentSegment struct {
	header.SACKBlock
	lost, again, counted bool
}

// boardOf returns what a connection knows by SACK; nil: there is no such field.
func (f *tcpFields) boardOf(ep *tcp.Endpoint) *tcp.SACKScoreboard {
	at := f.scoreboard.in(reflect.ValueOf(ep).Elem())
	if !at.IsValid() {
		return nil
	}
	board, _ := writable(at).Interface().(*tcp.SACKScoreboard)
	return board
}
