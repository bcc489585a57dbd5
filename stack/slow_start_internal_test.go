package stack

import (
	"math"
	"net"
	"reflect"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/seqnum"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/rdma-netstack/rdma-netstack/clock"
)

// TestSlowStartDue: slow start begins again where it has ended and the round trip is short.
func TestSlowStartDue(t *testing.T) {
	const least, ms = 20 * time.Millisecond, time.Millisecond
	ended := func(rtt time.Duration, state tcpip.CongestionControlState, ssthresh,
		cwnd uint32) *tcpip.TCPInfoOption {
		return &tcpip.TCPInfoOption{RTT: rtt, CcState: state, SndSsthresh: ssthresh, SndCwnd: cwnd}
	}
	for _, tt := range []struct {
		name string
		info *tcpip.TCPInfoOption
		want bool
	}{
		{"ended, and the round trip is short", ended(21*ms, tcpip.Open, 30, 40), true},
		{"it goes on", ended(21*ms, tcpip.Open, 1<<31, 40), false},
		{"a queue has built up", ended(25*ms, tcpip.Open, 30, 40), false},
		{"in a recovery", ended(21*ms, tcpip.SACKRecovery, 30, 40), false},
	} {
		if got := (&slowStart{least: least}).endedForNothing(tt.info); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
	if (&slowStart{least: ms}).endedForNothing(ended(ms, tcpip.Open, 30, 40)) {
		t.Error("within a rack")
	}
}

// TestHeldThreshold: timeouts one after the other leave half of the window that there was before.
func TestHeldThreshold(t *testing.T) {
	x := new(slowStart)
	for i, step := range []struct {
		state          tcpip.CongestionControlState
		ssthresh, cwnd uint32
		want           uint32
	}{
		{tcpip.Open, 1 << 31, 400, 0},
		{tcpip.SACKRecovery, 2, 5, 0},     // its own threshold counts when it is over
		{tcpip.SACKRecovery, 399, 402, 0}, // slow start had gone on to more
		{tcpip.RTORecovery, 280, 1, 0},
		{tcpip.RTORecovery, 2, 1, 201},
		{tcpip.RTORecovery, 2, 1, 201},
		{tcpip.RTORecovery, 200, 8, 0},
		{tcpip.Open, 60, 100, 0}, // what two losses leave
		{tcpip.Open, 2, 5, 50},
		{tcpip.Open, 2, 5, 25}, // the path has become that narrow
		{tcpip.Open, 4, 6, 0},
	} {
		info := tcpip.TCPInfoOption{CcState: step.state, SndSsthresh: step.ssthresh,
			SndCwnd: step.cwnd}
		if got := x.heldThreshold(&info); got != step.want {
			t.Errorf("step %d: %d, want %d", i, got, step.want)
		}
	}
}

// TestSlowStartOver: a connection is looked at until it has written nothing for a while.
func TestSlowStartOver(t *testing.T) {
	ep, g := newEndpoint(t)
	fields := findTCPFields(reflect.TypeFor[tcp.Endpoint]())
	o := slowStarts{clock: clock.Clock{}, net: g, fields: &fields}
	defer o.close()
	conn := &TCPConn{ep: ep, recovery: newRecoveryCount(ep, &fields, nil)}
	sweep := func() {
		o.lookAtAll()
		o.next = tcpip.MonotonicTime{}
	}
	o.noteFull(conn)
	sweep()
	o.noteFull(conn)
	if sweep(); len(o.all) != 1 {
		t.Error("forgotten while it writes")
	}
	o.next = g.Clock().NowMonotonic().Add(time.Hour)
	for range 3 {
		if o.lookAtAll(); len(o.all) != 1 {
			t.Error("forgotten between sweeps")
		}
	}
	o.next = tcpip.MonotonicTime{}
	if sweep(); len(o.all) != 0 {
		t.Error("it is not forgotten")
	}
}

// TestAllowPauses: the least timeout of a connection that fills its window is longer than its round
// trip by what it was before, and that again once it is forgotten.
func TestAllowPauses(t *testing.T) {
	ep, g := newEndpoint(t)
	fields := findTCPFields(reflect.TypeFor[tcp.Endpoint]())
	o := slowStarts{clock: clock.Clock{}, net: g, fields: &fields}
	defer o.close()
	const before = 120 * time.Millisecond
	at := writable(fields.snd.in(reflect.ValueOf(ep).Elem()))
	at.Set(reflect.New(fields.snd.pointsTo())) // as of a connection
	defer at.SetZero()
	fields.setLeastTimeout(ep, before)
	conn := &TCPConn{ep: ep, recovery: newRecoveryCount(ep, &fields, nil)}
	for range 2 {
		o.noteFull(conn)
		x := o.all[ep]
		for _, roundTrip := range []time.Duration{80 * time.Millisecond, 90 * time.Millisecond} {
			x.allowPauses(ep, &fields, roundTrip)
			if got := fields.leastTimeout(ep); got != before+roundTrip {
				t.Errorf("%v, want %v and %v", got, before, roundTrip)
			}
		}
		for range 2 {
			o.next = tcpip.MonotonicTime{}
			o.lookAtAll()
		}
		if len(o.all) != 0 || fields.leastTimeout(ep) != before {
			t.Errorf("%v when it is forgotten, want %v", fields.leastTimeout(ep), before)
		}
	}
}

// TestUndoNeedless: what recoveries and timeouts have lowered is as before where the link says that
// nothing was lost, once they are over.
func TestUndoNeedless(t *testing.T) {
	const window, lowered, initial = 400, 280, math.MaxUint32
	type events struct{ recoveries, timeouts, lost, needless int }
	for _, tt := range []struct {
		name              string
		threshold         uint32 // before
		events            events
		window            int
		state             tcpip.CongestionControlState
		undone            uint64
		wantUp, wantLater uint32 // the threshold, and that at the sweep after the end
	}{
		{"a needless recovery in slow start", initial, events{recoveries: 1, needless: 1}, lowered,
			tcpip.Open, 1, initial, initial},
		{"a needless recovery", 300, events{recoveries: 1, needless: 1}, lowered, tcpip.Open, 1,
			window, window},
		{"needless timeouts", 500, events{timeouts: 2, needless: 1}, 1, tcpip.Open, 2, 500, 500},
		{"a needless probe", 300, events{needless: 1}, lowered, tcpip.Open, 0, window, window},
		{"a needless probe, and growth", 500, events{needless: 1}, window, tcpip.Open, 0, 500, 500},
		{"HyStart, and a needless probe", initial, events{needless: 1}, window, tcpip.Open, 0,
			lowered, lowered},
		{"a recovery that goes on", 300, events{recoveries: 1, needless: 1}, lowered,
			tcpip.SACKRecovery, 1, lowered, window},
		{"something lost", 300, events{recoveries: 1, lost: 1}, lowered, tcpip.Open, 0, lowered,
			lowered},
		{"something lost of one of two flights", 300,
			events{recoveries: 2, lost: 1, needless: 1}, lowered, tcpip.Open, 0, lowered, lowered},
		{"nothing known of it", 300, events{recoveries: 1}, lowered, tcpip.Open, 0, lowered,
			lowered},
		{"a needless probe long ago by now", lowered, events{needless: 1}, window + 1, tcpip.Open,
			0, window, window},
		{"nothing lowered", lowered, events{needless: 1}, window, tcpip.Open, 0, lowered, lowered},
	} {
		conn, x := newSettled(t, window, tt.threshold)
		x.times = maxSlowStarts
		ep, fields := conn.ep.(*tcp.Endpoint), conn.recovery.fields
		snd := fields.snd.target(reflect.ValueOf(ep).Elem())
		before := fields.cubicOf(ep)
		e := &ep.Stats().(*tcp.Stats).SendErrors
		e.FastRetransmit.IncrementBy(uint64(tt.events.recoveries))
		e.Timeouts.IncrementBy(uint64(tt.events.timeouts))
		for range tt.events.lost {
			conn.recovery.NoteLost()
		}
		for range tt.events.needless {
			conn.recovery.NoteNeedless()
		}
		writable(fields.cwnd.in(snd)).SetInt(int64(tt.window))
		fields.setThreshold(ep, lowered)
		if tt.name != "nothing lowered" {
			fields.setCubic(ep,
				tcp.TCPCubicState{Beta: 0.7, K: 5, WMax: lowered, T: before.T.Add(1)})
		}
		for i, want := range []uint32{tt.wantUp, tt.wantLater, tt.wantLater} {
			state := tt.state
			if i > 0 {
				state = tcpip.Open
			}
			writable(fields.state.in(snd)).Set(reflect.ValueOf(state))
			var info tcpip.TCPInfoOption
			ep.GetSockOpt(&info)
			x.undoNeedless(ep, fields, &info)
			held := int(want)
			if want == initial {
				held = tcp.InitialSsthresh // without which HyStart does nothing
			}
			if info.SndSsthresh != want || fields.ssthresh.int(snd) != held {
				t.Errorf("%s, sweep %d: threshold %d, %d, want %d", tt.name, i, info.SndSsthresh,
					fields.ssthresh.int(snd), held)
			}
		}
		is := fields.cubicOf(ep)
		undone := tt.wantLater != lowered || tt.name == "nothing lowered"
		if is.K == before.K != undone || is.WMax == before.WMax != undone ||
			is.T == before.T != undone || is.WLastMax == before.WLastMax != undone {
			t.Errorf("%s: CUBIC is %+v, was %+v", tt.name, is, before)
		}
		if n := conn.recovery.undone; n != tt.undone || x.noteLosses(e) !=
			(uint64(tt.events.recoveries+tt.events.timeouts) > tt.undone) {
			t.Errorf("%s: %d undone, want %d", tt.name, n, tt.undone)
		}
	}
}

// TestUndoBegins: slow start begins again, so often, where all that was lowered is undone.
func TestUndoBegins(t *testing.T) {
	for lost, want := range []int{tcp.InitialSsthresh, 400} {
		conn, x := newSettled(t, 400, 300)
		ep, fields := conn.ep.(*tcp.Endpoint), conn.recovery.fields
		snd := fields.snd.target(reflect.ValueOf(ep).Elem())
		ep.Stats().(*tcp.Stats).SendErrors.Timeouts.IncrementBy(uint64(lost))
		for i := range maxSlowStarts + 1 {
			writable(fields.cwnd.in(snd)).SetInt(400)
			fields.setThreshold(ep, 300)
			var info tcpip.TCPInfoOption
			ep.GetSockOpt(&info)
			x.undoNeedless(ep, fields, &info)
			conn.recovery.NoteNeedless()
			writable(fields.cwnd.in(snd)).SetInt(280)
			fields.setThreshold(ep, 280)
			ep.GetSockOpt(&info)
			x.undoNeedless(ep, fields, &info)
			if i == maxSlowStarts {
				want = 400
			}
			if got := fields.ssthresh.int(snd); got != want {
				t.Errorf("%d lost, %d times before: threshold %d, want %d", lost, i, got, want)
			}
			x.needless = false
		}
	}
}

// TestUndoLate: a probe lowers the window at the acknowledgement behind the one that tells of it,
// which may be behind a sweep. Later ones are not undone by that.
func TestUndoLate(t *testing.T) {
	for sweeps, want := range []uint32{400, 400, 280} {
		conn, x := newSettled(t, 400, 300)
		x.times = maxSlowStarts
		ep, fields := conn.ep.(*tcp.Endpoint), conn.recovery.fields
		snd := fields.snd.target(reflect.ValueOf(ep).Elem())
		var info tcpip.TCPInfoOption
		conn.recovery.NoteNeedless()
		for range sweeps {
			ep.GetSockOpt(&info)
			x.undoNeedless(ep, fields, &info)
		}
		writable(fields.cwnd.in(snd)).SetInt(280)
		fields.setThreshold(ep, 280)
		ep.GetSockOpt(&info)
		x.undoNeedless(ep, fields, &info)
		if info.SndSsthresh != want {
			t.Errorf("after %d sweeps: threshold %d, want %d", sweeps, info.SndSsthresh, want)
		}
	}
}

// newSettled returns a connection with a window and a threshold, in segments, as the sweep before
// has seen it.
func newSettled(t *testing.T, window, threshold uint32) (*TCPConn, *slowStart) {
	r := newDirectRig(t, false)
	ln, err := r.receiver.Listen("tcp4", "192.0.2.2:80")
	must(t, err)
	t.Cleanup(func() { ln.Close() })
	from, err := r.sender.DialTCP("tcp4", nil, ln.Addr().(*net.TCPAddr))
	must(t, err)
	t.Cleanup(func() { from.Close() })
	conn := from
	ep, fields := conn.ep.(*tcp.Endpoint), conn.recovery.fields
	snd := fields.snd.target(reflect.ValueOf(ep).Elem())
	writable(fields.cwnd.in(snd)).SetInt(int64(window))
	if threshold != math.MaxUint32 {
		fields.setThreshold(ep, int(threshold))
	}
	fields.setCubic(ep, tcp.TCPCubicState{Beta: 0.7, K: 3, WMax: 350, WLastMax: 320})
	var info tcpip.TCPInfoOption
	ep.GetSockOpt(&info)
	x := &slowStart{conn: conn}
	x.undoNeedless(ep, fields, &info)
	return conn, x
}

// TestKeepRanges: a connection that fills its window keeps more of the ranges that SACK reports
// than netstack does, after a timeout too, up to a bound, and no more once it is forgotten.
func TestKeepRanges(t *testing.T) {
	const netstackRanges = 100
	ep, _ := newEndpoint(t)
	fields := findTCPFields(reflect.TypeFor[tcp.Endpoint]())
	board := tcp.NewSACKScoreboard(1000, 0)
	writable(fields.scoreboard.in(reflect.ValueOf(ep).Elem())).Set(reflect.ValueOf(board))
	report := func() int {
		for i := range seqnum.Value(2*moreRanges + 1) {
			board.Insert(header.SACKBlock{Start: 2000*i + 1000, End: 2000*i + 2000})
		}
		ranges, _ := board.Copy()
		return len(ranges)
	}
	if n := report(); n != netstackRanges {
		t.Fatalf("netstack keeps %d ranges", n)
	}
	board.Reset()
	kept := fields.keepRanges(ep, nil)
	for range 3 { // sweeps
		kept = fields.keepRanges(ep, kept)
	}
	if n := report(); n < moreRanges || n > netstackRanges+moreRanges {
		t.Errorf("%d ranges are kept, want %d", n, netstackRanges+moreRanges)
	}
	board.Reset() // a timeout
	if n := report(); n != netstackRanges {
		t.Errorf("%d ranges are kept after a timeout", n)
	}
	kept = fields.keepRanges(ep, kept)
	if n := report(); n < moreRanges || n > netstackRanges+moreRanges {
		t.Errorf("%d ranges are kept at the first sweep after a timeout", n)
	}
	board.Delete(4000 * moreRanges)
	fields.keepFewRanges(ep, kept)
	if n := report(); n != netstackRanges {
		t.Errorf("%d ranges are kept of a connection that is forgotten", n)
	}
}

// TestWindowPacing: the stack's own rate follows the window after a loss, gives way to that of the
// program, and ends in slow start, after a timeout, on short paths and with the connection.
func TestWindowPacing(t *testing.T) {
	ep, g := newEndpoint(t)
	s := new(Stack)
	s.conns.net = g
	c := &TCPConn{ep: ep, laddr: &net.TCPAddr{IP: net.IPv4zero.To4()},
		recovery: newRecoveryCount(ep, new(tcpFields), nil)}
	c.stack = s
	x := slowStart{conn: c, least: 100 * time.Millisecond}
	var lost tcp.SendErrors
	for _, tt := range []struct {
		name                 string
		state                tcpip.CongestionControlState
		cwnd, ssthresh       uint32
		recoveries, timeouts uint64 // since the one before
		want                 uint64 // of segments of 1448 bytes and 66 of headers
	}{
		{"nothing is lost", tcpip.Open, 100, 100, 0, 0, 0},
		{"slow start", tcpip.Open, 50, 100, 1, 0, 0},
		{"the window grows slowly", tcpip.Open, 100, 100, 0, 0, 1_816_800},
		{"by a little", tcpip.Open, 102, 100, 0, 0, 1_816_800},
		{"by more", tcpip.Open, 150, 100, 0, 0, 2_725_200},
		{"a recovery", tcpip.SACKRecovery, 75, 75, 9, 0, 1_362_600},
		{"a timeout", tcpip.RTORecovery, 1, 37, 0, 1, 0},
		{"slow start behind it", tcpip.Open, 2, 37, 0, 0, 0},
		{"above the threshold", tcpip.Open, 100, 37, 0, 0, 0},
		{"a loss", tcpip.Open, 100, 37, 1, 0, 1_816_800},
		{"both", tcpip.Open, 100, 37, 5, 1, 0},
		{"nothing is lost since", tcpip.Open, 100, 37, 0, 0, 0},
	} {
		for range tt.recoveries {
			lost.FastRetransmit.Increment()
		}
		for range tt.timeouts {
			lost.Timeouts.Increment()
		}
		x.noteLosses(&lost)
		x.paceByWindow(&tcpip.TCPInfoOption{CcState: tt.state, SndCwnd: tt.cwnd,
			SndSsthresh: tt.ssthresh})
		var rate uint64
		if p := c.pacing.Load(); p != nil {
			rate = p.rate
		}
		if n := s.conns.paced.byWindow.Load(); rate != tt.want || (n == 1) != (rate > 0) {
			t.Errorf("%s: %d bytes/s, want %d; %d connections", tt.name, rate, tt.want, n)
		}
	}
	c.setWindowPacing(1000)
	x.spread, x.least = true, pacedRound-1
	x.paceByWindow(&tcpip.TCPInfoOption{SndCwnd: 100, SndSsthresh: 37})
	if c.pacing.Load() != nil {
		t.Error("a short path has a rate")
	}
	c.setWindowPacing(1000)
	must := func(what string, program, window int64) {
		t.Helper()
		p := &s.conns.paced
		if p.byProgram.Load() != program || p.byWindow.Load() != window {
			t.Errorf("%s: %d rates of the program, %d of windows", what, p.byProgram.Load(),
				p.byWindow.Load())
		}
	}
	must("at first", 0, 1)
	c.setPacing(5)
	c.setWindowPacing(1000)
	c.setWindowPacing(0)
	must("with one of the program", 1, 0)
	c.setPacing(0)
	c.setWindowPacing(1000)
	must("without", 0, 1)
	c.closed.Store(true)
	c.setWindowPacing(2000)
	must("closed", 0, 0)
}

// newEndpoint returns one of TCP that is not connected, and its netstack.
func newEndpoint(t *testing.T) (*tcp.Endpoint, *gstack.Stack) {
	g := gstack.New(gstack.Options{
		NetworkProtocols:   []gstack.NetworkProtocolFactory{ipv4.NewProtocol},
		TransportProtocols: []gstack.TransportProtocolFactory{tcp.NewProtocol}})
	t.Cleanup(g.Destroy)
	ep, terr := g.NewEndpoint(tcp.ProtocolNumber, ipv4.ProtocolNumber, new(waiter.Queue))
	if terr != nil {
		t.Fatal(terr)
	}
	t.Cleanup(ep.Close)
	return ep.(*tcp.Endpoint), g
}

// TestCubicWindow: the window is CUBIC's, at most half as large again, and never smaller.
func TestCubicWindow(t *testing.T) {
	c := tcp.TCPCubicState{C: 0.4, K: 4, WMax: 100}
	for _, tt := range []struct {
		elapsed time.Duration
		cwnd    int
		want    int
	}{
		{0, 70, 74}, {2 * time.Second, 80, 96}, {4 * time.Second, 96, 100},
		{4 * time.Second, 110, 110}, {9 * time.Second, 140, 150}, {time.Minute, 100, 150},
	} {
		if got := cubicWindow(&c, tt.elapsed, tt.cwnd); got != tt.want {
			t.Errorf("%v after a loss, window %d: %d, want %d", tt.elapsed, tt.cwnd, got, tt.want)
		}
	}
}
