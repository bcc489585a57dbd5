package upstream

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/seqnum"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// sack reports data of netstack's that has come.
func (h *host) sack(port uint16, blocks ...[2]uint32) []byte {
	if port == 0 {
		port = 4000
	}
	var all []header.SACKBlock
	for _, b := range blocks {
		all = append(all, header.SACKBlock{Start: h.sequence(port, b[0]),
			End: h.sequence(port, b[1])})
	}
	b := make([]byte, header.TCPOptionsMaximumSize)
	return b[:header.EncodeSACKBlocks(all, b)]
}

// TestSuperSegment: a loss within a super-segment is not repaired before the timeout, as the SACK
// of what is behind it turns the tail loss probe off.
func TestSuperSegment(t *testing.T) {
	times := map[bool]time.Duration{}
	for _, gso := range []bool{false, true} {
		t.Logf("the NIC cuts segments: %v", gso)
		func() {
			h := newHost(t, gso)
			c := h.open(mss(1036), sackOK())
			if gso {
				h.write(c, 3000)
			} else {
				for range 3 {
					h.write(c, 1000)
					h.advance(time.Microsecond)
				}
			}
			first := h.sent()
			h.advance(10 * time.Millisecond)
			h.send(segment{flags: ack, seq: 1, ack: 1001, win: -1,
				options: options(h.sack(0, [2]uint32{2001, 3001}))})
			for _, s := range h.sentFor(2 * time.Second) {
				if s.seq == 1001 {
					times[gso] = s.at - first[0].at
					return
				}
			}
		}()
	}
	shows(t, "03-super-segments", times[true] == 0 || times[true] > 4*times[false],
		"what is missing is sent again after %v where netstack cuts segments, after %v where the "+
			"NIC does; the round trip is 10 ms", times[false], times[true])
}

// TestStandstill: a connection with data that is not acknowledged, none in flight by netstack's
// count, and no timer: it stands still for good. 22 of the first 3,000 seeds do so, the first of
// them here.
func TestStandstill(t *testing.T) {
	const much = 6 * (80<<10 + 69 + 17)
	seeds, stopped := []uint64{450, 639, 673}, 0
	for _, seed := range seeds {
		random := rand.New(rand.NewPCG(seed, 1))
		r := road{gso: true, both: true, window: 1 << 20, answer: []int{80 << 10, 69, 17},
			fate: func(time.Duration) time.Duration {
				if random.Float64() < 0.05 {
					return -1
				}
				d := time.Duration(30+random.IntN(20)) * time.Microsecond
				if random.Float64() < 0.05 {
					d += time.Duration(random.IntN(1000)) * time.Microsecond
				}
				return d
			}}
		got, took := r.run(t, much, 10*time.Minute)
		if s := r.state(); got < much && s.SndUna != s.SndNxt && s.Outstanding == 0 {
			stopped++
			t.Logf("seed %d: %d bytes came, the last after %v; then nothing for 10 minutes, with "+
				"%d bytes unacknowledged and %d packets in flight", seed, got, took,
				s.SndUna.Size(s.SndNxt), s.Outstanding)
		}
	}
	shows(t, "04-standstill", stopped > 0, "%d of %d connections stand still for good", stopped,
		len(seeds))
}

// TestRecoveryAfterTimeout: half a second in which nothing arrives, and RACK takes the flight for
// lost at the first acknowledgement; the fast recovery that it begins counts it as in flight.
func TestRecoveryAfterTimeout(t *testing.T) {
	bulk(t)
	const begins, ends = 2 * time.Second, 2500 * time.Millisecond
	const from, to = ends + 4*time.Second, ends + 5*time.Second
	rate := func(dark bool) float64 {
		reno := tcpip.CongestionControlOption("reno")
		r := road{gso: true, window: 256 << 10, delay: 10 * time.Millisecond, mark: from,
			options: []tcpip.SettableTransportProtocolOption{&reno},
			fate: func(now time.Duration) time.Duration {
				if dark && now >= begins && now < ends {
					return -1
				}
				return 0
			}}
		got, _ := r.run(t, 1<<40, to)
		return megabytes(got-r.marked, to-from)
	}
	clean, dark := rate(false), rate(true)
	shows(t, "05-go-back", dark < clean/2, "4 s after half a second without a "+
		"path the rate is %.2f MB/s, without that %.2f", dark, clean)
}

// TestFINCount: fast recovery sends the FIN again with each segment, and the next timeout gives the
// connection up because of the number of times that it was sent.
func TestFINCount(t *testing.T) {
	retries := tcpip.TCPMaxRetriesOption(3)
	h := newHost(t, false, &retries)
	c := h.open(mss(1036), sackOK())
	for range 4 {
		h.write(c, 1000)
	}
	h.ok(c.CloseWrite())
	h.sent()
	h.advance(10 * time.Millisecond)
	h.send(segment{flags: ack, seq: 1, ack: 1001, win: -1})
	fins := 0
	acked := []uint32{1001, 2001, 3001, 4001}
	var sent []segment
	for _, a := range acked[1:] {
		sent = append(sent, h.sentFor(220*time.Millisecond)...)
		h.send(segment{flags: ack, seq: 1, ack: a, win: -1})
	}
	sent = append(sent, h.sentFor(5*time.Second)...)
	timeouts := 0
	for _, s := range sent {
		if s.flags&fin != 0 {
			fins++
			if s.at > sent[0].at+time.Second {
				timeouts++
			}
		}
	}
	state := tcp.EndpointState(h.state())
	shows(t, "06-fin-count", state == tcp.StateClose && timeouts < 3,
		"the FIN was sent %d times, %d of them by timeouts; the connection is in %v, all its data "+
			"is acknowledged", fins, timeouts, state)
}

// late is a fate: share of the frames is late by d.
func late(share float64, d time.Duration) func(time.Duration) time.Duration {
	random := rand.New(rand.NewPCG(1, 1))
	return func(time.Duration) time.Duration {
		if random.Float64() < share {
			return d
		}
		return 0
	}
}

// TestReordering: 1 % of the frames are late by a quarter of the round trip, none is lost, and the
// rate is a small part of what it is without.
func TestReordering(t *testing.T) {
	bulk(t)
	rate := func(share float64) (float64, tcp.TCPSenderState) {
		r := road{gso: true, window: 2 << 20, delay: 10 * time.Millisecond, rate: 25e6,
			fate: late(share, 5*time.Millisecond)}
		got, took := r.run(t, 16<<20, time.Minute)
		return megabytes(got, took), r.state()
	}
	clean, _ := rate(0)
	slow, s := rate(0.01)
	shows(t, "07-reordering", slow < clean/2, "%.1f MB/s instead of %.1f; at the end %d packets "+
		"count as in flight, the congestion window is %d", slow, clean, s.Outstanding, s.SndCwnd)
}

// TestPause: the wire stands still for 15 ms, 10 times a second, and loses nothing.
func TestPause(t *testing.T) {
	bulk(t)
	const every, lasts = 97 * time.Millisecond, 15 * time.Millisecond
	rate := func(pauses bool) (float64, tcp.TCPSenderState) {
		r := road{gso: true, window: 8 << 20, delay: 10 * time.Millisecond, rate: 25e6,
			fate: func(now time.Duration) time.Duration {
				if at := now % every; pauses && at < lasts {
					return lasts - at
				}
				return 0
			}}
		got, took := r.run(t, 32<<20, time.Minute)
		return megabytes(got, took), r.state()
	}
	clean, _ := rate(false)
	slow, s := rate(true)
	shows(t, "18-hystart-pause", slow < clean/2, "%.1f MB/s instead of %.1f; slow start ended at "+
		"%d packets", slow, clean, s.Ssthresh)
}

// TestShortPath: on a round trip of 0.2 ms slow start ends in the second round.
func TestShortPath(t *testing.T) {
	bulk(t)
	r := road{gso: false, window: 4 << 20, delay: 100 * time.Microsecond, rate: 1.25e9}
	r.run(t, 16<<20, time.Minute)
	shows(t, "19-hystart-short-path", r.state().Ssthresh < 200,
		"slow start ended at %d packets, of the 1500 that the window has; nothing was lost",
		r.state().Ssthresh)
}

// TestThreshold: each timeout of the same segment lowers the threshold of slow start.
func TestThreshold(t *testing.T) {
	bulk(t)
	r := road{window: 512 << 10, delay: 10 * time.Millisecond,
		fate: func(now time.Duration) time.Duration {
			if now > time.Second && now < 3*time.Second {
				return -1
			}
			return 0
		}}
	r.run(t, 1<<40, 5*time.Second)
	shows(t, "20-threshold", r.state().Ssthresh <= 4, "after some timeouts of one segment the "+
		"threshold of slow start is %d packets, the flight was some 180", r.state().Ssthresh)
}

// TestCubicFraction: after a loss CUBIC's window stays as it is for as long as it is to grow by
// less than half, as each acknowledgement leaves the fraction out.
func TestCubicFraction(t *testing.T) {
	bulk(t)
	const lost, later = 1500 * time.Millisecond, 4 * time.Second
	r := road{gso: true, window: 1 << 20, delay: 40 * time.Millisecond, rate: 12.5e6}
	once := false
	r.fate = func(now time.Duration) time.Duration {
		if now > lost && !once {
			once = true
			return -1
		}
		return 0
	}
	r.run(t, 1<<40, lost+later)
	s := r.state()
	c := s.Cubic
	at := c.TimeSinceLastCongestion.Seconds() - c.K
	shows(t, "33-cubic-fraction", s.SndCwnd < s.Ssthresh+s.Ssthresh/20,
		"%d packets after the loss, %d four seconds later, where CUBIC has %.0f", s.Ssthresh,
		s.SndCwnd, c.C*at*at*at+c.WMax)
}

// TestCubicIdle: a connection that has lost something and rests for a minute has the window of a
// minute of growth at the first acknowledgement after it.
func TestCubicIdle(t *testing.T) {
	h := newHost(t, false)
	c := h.open(mss(1036), sackOK())
	for range 10 {
		h.write(c, 1000)
		h.advance(time.Microsecond)
	}
	h.sent()
	for end := range uint32(3) {
		h.send(segment{flags: ack, seq: 1, ack: 1, win: -1,
			options: options(h.sack(0, [2]uint32{1001, 2001 + 1000*end}))})
	}
	h.advance(10 * time.Millisecond)
	h.send(segment{flags: ack, seq: 1, ack: 10001, win: -1})
	h.advance(time.Minute)
	before := h.window()
	for range 5 {
		h.write(c, 1000)
		h.advance(time.Microsecond)
	}
	h.advance(10 * time.Millisecond)
	h.send(segment{flags: ack, seq: 1, ack: 15001, win: -1})
	after := h.window()
	shows(t, "34-cubic-idle", after > 10*before,
		"a window of %d packets before a minute of rest, of %d after five more are acknowledged",
		before, after)
}

// TestProbe: the peer is slow for two round trips, and the tail loss probe is sent for nothing. The
// acknowledgement of all data, which comes before the one with the report of a duplicate, counts as
// that of the probe: a loss, for which the window shrinks.
func TestProbe(t *testing.T) {
	h := newHost(t, false)
	c := h.open(mss(1040), sackOK(), stamp(5000, 0))
	for range 5 {
		h.write(c, 1000)
		h.advance(time.Microsecond)
	}
	first := h.sent()
	before := h.window()
	again := h.sentFor(50 * time.Millisecond)
	if len(first) != 5 || len(again) != 1 {
		t.Fatalf("%d segments, then %d", len(first), len(again))
	}
	val, _, _ := first[4].stamp()
	h.send(segment{flags: ack, seq: 1, ack: 5001, win: -1, options: options(stamp(5100, val))})
	after := h.window()
	val, _, _ = again[0].stamp()
	h.send(segment{flags: ack, seq: 1, ack: 5001, win: -1, options: options(stamp(5101, val),
		h.sack(0, [2]uint32{4001, 5001}))})
	shows(t, "32-probe", after < before, "the congestion window was %d packets, and is %d after "+
		"an acknowledgement of all, whose timestamp is that of the first copy", before, after)
}

// TestEqualTimes: three segments leave at one moment. An acknowledgement of the first has RACK take
// those behind it for lost a quarter of a round trip later, though none that left after them has
// arrived.
func TestEqualTimes(t *testing.T) {
	h := newHost(t, false)
	c := h.open(mss(1036), sackOK())
	for range 3 {
		h.write(c, 1000)
	}
	first := h.sent()
	if len(first) != 3 || first[0].at != first[2].at {
		t.Fatalf("%d segments: %v", len(first), first)
	}
	h.advance(15 * time.Millisecond)
	h.send(segment{flags: ack, seq: 1, ack: 1001, win: -1})
	again := h.sentFor(10 * time.Millisecond)
	shows(t, "36-equal-times", len(again) > 0, "%d of two segments that left with the first are "+
		"sent again within 10 ms of its acknowledgement, which says nothing of them", len(again))
}

// TestDuplicateSACK: data comes twice. The acknowledgement of the second copy does not say so.
func TestDuplicateSACK(t *testing.T) {
	h := newHost(t, false)
	h.open(mss(1036), sackOK())
	h.send(segment{flags: ack, seq: 1, ack: 1, size: 100, win: -1})
	h.sent()
	h.send(segment{flags: ack, seq: 1, ack: 1, size: 100, win: -1})
	answers := h.sent()
	if len(answers) != 1 || answers[0].ack != 101 {
		t.Fatalf("a second copy is answered by %v", answers)
	}
	blocks := header.ParseTCPOptions(answers[0].options).SACKBlocks
	shows(t, "37-duplicate-sack", len(blocks) == 0,
		"data that has come twice is acknowledged with %d SACK blocks", len(blocks))
}

// TestSACKRanges: of what has come between many gaps 100 ranges are noted, and not even that one of
// these has grown is from then on. Slow start that fills a queue loses each second segment.
func TestSACKRanges(t *testing.T) {
	const segments, size = 400, 1000
	s := tcp.NewSACKScoreboard(size, 0)
	for i := seqnum.Value(1); i < 2*segments; i += 2 {
		s.Insert(header.SACKBlock{Start: i * size, End: (i + 1) * size})
	}
	known, last := s.Copy()
	before := s.Sacked()
	s.Insert(header.SACKBlock{Start: last - size + 1, End: last + size + 1})
	shows(t, "38-sack-ranges", len(known) < segments && s.Sacked() == before,
		"of %d segments that have come with gaps between them %d count as such, and no more if "+
			"one has grown", segments, len(known))
}

// TestRefusedFlight: a router refuses the flight at the beginning of a connection as too big, with
// a message for each segment. Beyond the first segment most of what is sent again waits for
// timeouts.
func TestRefusedFlight(t *testing.T) {
	const size, segments, roundTrip = 1400, 10, 10 * time.Millisecond
	h := newHost(t, false)
	c := h.open(mss(1440), sackOK(), stamp(5000, 0))
	h.write(c, size*segments)
	first := h.sent()
	if len(first) != segments || first[0].size != size {
		t.Fatalf("%d segments: %v", len(first), first)
	}
	for _, s := range first {
		h.unreachable(header.ICMPv4FragmentationNeeded, 1000, h.quote(s.seq))
	}
	acked := first[0].seq
	for end := acked + size*segments; acked != end && h.clock.since() < time.Minute; {
		before, echo := acked, uint32(0)
		for _, s := range h.sentFor(roundTrip) {
			if s.seq == acked && s.size < size {
				acked += uint32(s.size)
				echo, _, _ = s.stamp()
			}
		}
		if acked != before {
			h.send(segment{flags: ack, seq: 1, ack: acked, win: -1,
				options: options(stamp(uint32(5000+h.clock.since().Milliseconds()), echo))})
		}
	}
	took := h.clock.since() - first[0].at
	shows(t, "39-refused-flight", took > 50*roundTrip, "%d bytes in %d segments, refused as "+
		"larger than 1000 bytes, are acknowledged after %v; the round trip is %v", size*segments,
		segments, took, roundTrip)
}

// TestResendEcho: the first and the sixth of ten segments are lost. Both are sent again, 5 ms
// apart, and the first is lost once more. The SACK of the other says so to RACK, but for its
// timestamp echo, which is that of what came in sequence last: nothing is sent before the timeout.
func TestResendEcho(t *testing.T) {
	const size, segments, roundTrip = 1000, 10, 10 * time.Millisecond
	h := newHost(t, false)
	c := h.open(mss(size+12+28), sackOK(), stamp(5000, 0))
	answer := func(acked uint32, echo uint32, blocks ...[2]uint32) (again []uint32) {
		h.send(segment{flags: ack, seq: 1, ack: acked, win: -1, options: options(
			stamp(uint32(5000+h.clock.since().Milliseconds()), echo), h.sack(0, blocks...))})
		for _, s := range h.sent() {
			again = append(again, s.seq)
		}
		return again
	}
	for range segments {
		h.write(c, size)
		h.advance(time.Microsecond)
	}
	first := h.sent()
	if len(first) != segments || first[0].size != size {
		t.Fatalf("%d segments: %v", len(first), first)
	}
	h.advance(roundTrip)
	echo, _, _ := first[0].stamp()
	at := func(n uint32) uint32 { return 1 + n*size }
	if again := answer(at(0), echo, [2]uint32{at(1), at(5)}); len(again) != 1 || again[0] != at(0) {
		t.Fatalf("%d are sent again, want %d", again, at(0))
	}
	h.advance(roundTrip / 2)
	again := answer(at(0), echo, [2]uint32{at(6), at(10)}, [2]uint32{at(1), at(5)})
	if len(again) != 1 || again[0] != at(5) {
		t.Fatalf("%d are sent again, want %d", again, at(5))
	}
	h.advance(roundTrip)
	answer(at(0), echo, [2]uint32{at(1), at(10)})
	later := h.sentFor(50 * time.Millisecond)
	shows(t, "40-resend-echo", len(later) == 0, "%d segments are sent again within 50 ms of the "+
		"SACK of one that was sent again 5 ms after the first", len(later))
}

// flying returns a host with so many segments of 1000 bytes in flight, which begin at at(acked),
// more to send, and what at gives for the nth segment.
func flying(t *testing.T, flight int) (h *host, acked int, at func(n int) uint32) {
	const size = 1000
	buffer := tcpip.TCPSendBufferSizeRangeOption{Min: 1, Default: 16 << 20, Max: 16 << 20}
	control := tcpip.CongestionControlOption("reno")
	h = newHost(t, false, &buffer, &control)
	c := h.open(mss(size+36), sackOK(), scale(10))
	h.silent = true
	at = func(n int) uint32 { return uint32(1 + n*size) }
	h.write(c, 3*flight*size)
	sent := len(h.sent())
	for sent-acked < flight {
		before := sent
		h.advance(10 * time.Millisecond)
		for acked < before {
			acked = min(acked+2, before)
			h.send(segment{flags: ack, seq: 1, ack: at(acked), win: -1})
			sent += len(h.sent())
		}
		if sent == before {
			t.Fatalf("%d segments are in flight, want %d", sent-acked, flight)
		}
	}
	return h, acked, at
}

// TestRecoveryCost: within a recovery each acknowledgement has netstack look at all segments in
// flight: with 5,120 of these one takes several times as long as with 320.
func TestRecoveryCost(t *testing.T) {
	const reports = 50
	took := map[int]time.Duration{}
	for _, flight := range []int{320, 5120} {
		h, acked, at := flying(t, flight)
		var each []time.Duration
		for n := range reports { // each second one is lost
			gap := acked + 1 + 2*n
			began := time.Now()
			h.send(segment{flags: ack, seq: 1, ack: at(acked), win: -1,
				options: options(h.sack(0, [2]uint32{at(gap), at(gap + 1)}))})
			h.sent()
			each = append(each, time.Since(began))
		}
		slices.Sort(each)
		took[flight] = each[len(each)/2]
	}
	shows(t, "41-recovery-cost", took[5120] > 4*took[320], "an acknowledgement takes %v with "+
		"5,120 segments in flight, %v with 320", took[5120], took[320])
}

// TestRecoveryBurst: each second segment of a flight is lost, and the others arrive 10 us apart.
// Each that arrives has several sent again: the queue that lost the others gets more than it lets
// out.
func TestRecoveryBurst(t *testing.T) {
	const flight, some = 160, 20
	h, acked, at := flying(t, flight)
	h.advance(10 * time.Millisecond)
	most, last := 0, make([]int, 0, flight/2)
	for n := range flight / 2 {
		gap := acked + 1 + 2*n
		blocks := [][2]uint32{{at(gap), at(gap + 1)}}
		for i := 1; i < 3 && i <= n; i++ {
			blocks = append(blocks, [2]uint32{at(gap - 2*i), at(gap - 2*i + 1)})
		}
		h.advance(10 * time.Microsecond)
		h.send(segment{flags: ack, seq: 1, ack: at(acked), win: -1,
			options: options(h.sack(0, blocks...))})
		last = append(last, len(h.sent()))
		sum := 0
		for _, n := range last[max(0, len(last)-some):] {
			sum += n
		}
		most = max(most, sum)
	}
	shows(t, "42-recovery-burst", most > some+some/2,
		"while %d segments arrive of a flight that has lost each second one, %d are sent again",
		some, most)
}

// acked represents a connection of which the peer acknowledges two segments at a time, without
// losses.
type acked struct {
	*host
	size int
	n    int // segments acknowledged
	sent []segment
}

// grow opens a connection, writes so many segments, and has its window grow to 200 of them.
func grow(t *testing.T, control tcpip.CongestionControlOption, size, segments int,
	roundTrip time.Duration) *acked {
	buffer := tcpip.TCPSendBufferSizeRangeOption{Min: 1, Default: 16 << 20, Max: 16 << 20}
	h := newHost(t, false, &buffer, &control)
	c := h.openOver(roundTrip, mss(uint32(size+12+28)), sackOK(), scale(10), stamp(5000, 0))
	h.silent = true
	h.write(c, segments*size)
	a := &acked{host: h, size: size, sent: h.sent()}
	for len(a.sent)-a.n < 200 {
		h.advance(roundTrip)
		for before := len(a.sent); a.n+2 <= before; {
			a.answer()
		}
	}
	return a
}

// answer acknowledges two segments more.
func (a *acked) answer() {
	echo, _, _ := a.sent[a.n+1].stamp()
	a.n += 2
	a.send(segment{flags: ack, seq: 1, ack: uint32(1 + a.n*a.size), win: -1,
		options: options(stamp(uint32(5000+a.clock.since().Milliseconds()), echo))})
	a.sent = append(a.sent, a.host.sent()...)
}

// TestRestInFlight: with a round trip of 150 ms, and data in flight, acknowledgements are 140 ms
// late. The window is then that of a connection which has rested for longer than the timeout.
func TestRestInFlight(t *testing.T) {
	const roundTrip, late = 150 * time.Millisecond, 140 * time.Millisecond
	a := grow(t, "reno", 1000, 2000, roundTrip)
	before := a.window()
	a.advance(roundTrip + late)
	again := len(a.host.sent())
	a.answer()
	shows(t, "43-rest-in-flight", a.window() < before/2, "with %d segments in flight, %d sent "+
		"again, an acknowledgement that is %v late makes the window %d packets, from %d",
		len(a.sent)-a.n, again, late, a.window(), before)
}

// TestSpuriousUndo: acknowledgements are late, a tail loss probe or a timeout has a segment sent
// again, and each echoes what was sent first. The window is that of a connection which has lost
// something.
func TestSpuriousUndo(t *testing.T) {
	const roundTrip = 150 * time.Millisecond
	grown := map[time.Duration][2]uint32{}
	for _, late := range []time.Duration{0, 300 * time.Millisecond} {
		a := grow(t, "cubic", 1000, 4000, roundTrip)
		before := a.window()
		a.advance(roundTrip + late)
		t.Logf("%v late: %d sent again", late, len(a.host.sent()))
		for range (len(a.sent)-a.n)/2 + 1 {
			a.answer()
		}
		grown[late] = [2]uint32{before, a.window()}
	}
	on, is := grown[0], grown[300*time.Millisecond]
	shows(t, "44-spurious-undo", is[1] < is[0] && on[1] >= on[0], "where acknowledgements are "+
		"late the window goes from %d to %d segments although the peer has all of them, else to %d",
		is[0], is[1], on[1])
}
