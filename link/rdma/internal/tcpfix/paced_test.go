package tcpfix

import (
	"encoding/binary"
	"slices"
	"sync"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdrtest"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/tcpframe"
)

// pacedPath returns a resender with so many segments of 1000 bytes in flight, in packets of ten,
// on a path with a round trip as given.
func pacedPath(segments int, roundTrip time.Duration) *resending {
	r := newResending()
	r.path = func(uint64) time.Duration { return roundTrip }
	for seq := range segments / 10 {
		r.write(ours(uint32(seq)*10_000, 10_000), 1000)
	}
	r.wait(roundTrip)
	r.blocks(0, uint32(segments-20)*1000, uint32(segments-19)*1000)
	r.frames, r.times = nil, nil
	return r
}

// each has netstack send every second segment again, n of them, and returns how many it was to send
// later.
func (r *resending) each(n int) (later int) {
	for i := range n {
		if r.waits(ours(uint32(2*i)*1000, 1000)) {
			later++
		}
	}
	return later
}

// waits has netstack send a segment, and reports whether it is kept for later, or dropped.
func (r *resending) waits(f tcpframe.Frame) bool {
	pkt := packetOf(f)
	r.pkts = append(r.pkts, pkt)
	s := hdr.ParseSent(pkt, r.seed)
	return r.sent(pkt, &s, false)
}

// TestPacedResends: what netstack sends again at once leaves at a rate of three quarters of the
// flight in a round trip, in order, once, and nothing but that is different.
func TestPacedResends(t *testing.T) {
	const roundTrip = 100 * time.Millisecond
	r := pacedPath(400, roundTrip)
	defer r.close()
	began := r.clock.now
	if later := r.each(150); later != 150-pacedBurst {
		t.Fatalf("%d wait, want %d", later, 150-pacedBurst)
	}
	if !r.waits(ours(200_000, 1000)) || r.spared.Load() != 150-pacedBurst+1 {
		t.Errorf("what waits waits again, or leaves: %d are dropped", r.spared.Load())
	}
	r.wait(roundTrip)
	if n := len(r.frames); n != 150-pacedBurst || int(r.count.Load()) != n {
		t.Fatalf("%d are sent, %d counted, want %d", n, r.count.Load(), 150-pacedBurst)
	}
	for i, f := range r.frames {
		l := hdrtest.Parse(f)
		if want := uint32(2*(i+pacedBurst)) * 1000; !l.TransportOK(f) ||
			binary.BigEndian.Uint32(f[l.L4+4:]) != want {
			t.Fatalf("the %dth is %x, want %d", i, f, want)
		}
		const each = roundTrip / 300 // three quarters of 400 in a round trip
		if at := r.times[i] - began; at < time.Duration(i)*each ||
			at > time.Duration(i+1)*each+2*pacedPause {
			t.Errorf("the %dth is sent after %v, want %v", i, at, time.Duration(i+1)*each)
		}
	}
	if r.clock.timers.Len() != 1 {
		t.Errorf("%d timers are set, want that of the flows", r.clock.timers.Len())
	}
}

// TestNotPaced: what is sent again of short flights, on short paths and a few segments leaves at
// once, as does all that is not sent again.
func TestNotPaced(t *testing.T) {
	for _, tt := range []struct {
		name      string
		segments  int
		roundTrip time.Duration
		again     int
	}{
		{"a short flight", 120, 100 * time.Millisecond, 50},
		{"a short path", 400, 4 * time.Millisecond, 150},
		{"a few", 400, 100 * time.Millisecond, pacedBurst},
	} {
		r := pacedPath(tt.segments, tt.roundTrip)
		if later := r.each(tt.again); later != 0 {
			t.Errorf("%s: %d wait", tt.name, later)
		}
		if r.waits(ours(uint32(tt.segments)*1000, 1000)) {
			t.Errorf("%s: new data waits", tt.name)
		}
		r.close()
	}
}

// TestPacedOrder: new data and a FIN wait behind what is sent again, an acknowledgement does not,
// and what waits has its numbers.
func TestPacedOrder(t *testing.T) {
	r := pacedPath(400, 100*time.Millisecond)
	defer r.close()
	r.each(20)
	const nextHop = "\x02\x09\x09\x09\x09\x09" // another by the time of the acknowledgement
	end := ours(400_000, 500)
	end.Flags |= header.TCPFlagFin
	for _, tt := range []struct {
		what  string
		f     tcpframe.Frame
		waits bool
	}{
		{"new data", ours(400_000-500, 500), true},
		{"a FIN", end, true},
		{"an acknowledgement", tcpframe.Frame{Src: tcpframe.OurMAC, Dst: nextHop, From: 1, To: 2,
			Ports: [2]uint16{80, 4000}, TTL: 64, Seq: 400_501, Ack: 99, Window: 3,
			Flags: header.TCPFlagAck, Options: tcpframe.Stamped(5100, 77)}, false},
	} {
		if waits := r.waits(tt.f); waits != tt.waits {
			t.Errorf("%s: waits %v", tt.what, waits)
		}
	}
	r.wait(50 * time.Millisecond)
	want := []uint32{20_000, 22_000, 24_000, 26_000, 28_000, 30_000, 32_000, 34_000, 36_000, 38_000,
		399_500, 400_000}
	if got := r.starts(); !slices.Equal(got, want) {
		t.Fatalf("sent are\n%d, want\n%d", got, want)
	}
	for i, f := range r.frames {
		l := hdrtest.Parse(f)
		_, ack := hdr.Numbers(f[l.L4:])
		stamp := hdr.OptionsOf(f[l.L4:]).Timestamp
		val, echo := binary.BigEndian.Uint32(stamp[2:]), binary.BigEndian.Uint32(stamp[6:])
		if string(f[:6]) != nextHop || ack != 99 || f[l.L4+15] != 3 || echo != 77 ||
			val < 5100 || val > 5150 {
			t.Errorf("the %dth acknowledges %d at %d, echoes %d: %x", i, ack, val, echo, f)
		}
	}
}

// TestPacedRest: what waits when the flight is acknowledged leaves at twice the rate of the window.
func TestPacedRest(t *testing.T) {
	const roundTrip, more = 100 * time.Millisecond, 200
	r := pacedPath(400, roundTrip)
	defer r.close()
	r.each(20)
	for i := range uint32(more) {
		if !r.waits(ours(400_000+i*1000, 1000)) {
			t.Fatalf("the %dth segment of new data does not wait", i)
		}
	}
	r.answer(400_000, 0, header.TCPFlagAck)
	r.wait(roundTrip/2 + 10*pacedPause)
	if n := len(r.frames); n != more {
		t.Errorf("%d leave in half of a round trip, want all %d", n, more)
	}
	if first, last := r.times[0], r.times[len(r.times)-1]; last-first < roundTrip/3 {
		t.Errorf("all leave within %v", last-first)
	}
}

// TestPacedNeedless: what the peer has by then is not sent.
func TestPacedNeedless(t *testing.T) {
	r := pacedPath(400, 100*time.Millisecond)
	defer r.close()
	r.each(20)
	r.blocks(24_000, 26_000, 27_000, 380_000, 381_000)
	r.wait(50 * time.Millisecond)
	want := []uint32{24_000, 28_000, 30_000, 32_000, 34_000, 36_000, 38_000}
	if got := r.starts(); !slices.Equal(got, want) {
		t.Errorf("sent are %d, want %d", got, want)
	}
}

// TestPacedAcknowledged: once all is acknowledged nothing waits any more.
func TestPacedAcknowledged(t *testing.T) {
	r := pacedPath(400, 100*time.Millisecond)
	defer r.close()
	r.each(150)
	r.answer(400_000, 0, header.TCPFlagAck)
	r.wait(20 * time.Millisecond)
	if len(r.frames) != 0 || r.kept() != 0 || r.clock.timers.Len() != 1 {
		t.Errorf("%d frames are sent, %d packets kept, %d timers set, want that of the flows",
			len(r.frames), r.kept(), r.clock.timers.Len())
	}
}

// TestPacedEnds: nothing is sent any more, and nothing kept, once the connection or the resender
// has ended.
func TestPacedEnds(t *testing.T) {
	for name, ends := range map[string]func(r *resending){
		"closed":        func(r *resending) { r.close() },
		"closed twice":  func(r *resending) { r.close(); r.close() },
		"forgotten":     func(r *resending) { r.clear() },
		"given up":      func(r *resending) { r.gone = true },
		"the peer ends": func(r *resending) { r.answer(0, 0, header.TCPFlagRst) },
	} {
		r := pacedPath(400, 100*time.Millisecond)
		r.each(150)
		ends(r)
		r.wait(time.Second)
		if len(r.frames) != 0 || r.number.Load() != 0 || r.kept() != 0 {
			t.Errorf("%s: %d frames are sent, %d flows and %d packets kept", name, len(r.frames),
				r.number.Load(), r.kept())
		}
	}
}

// TestPacedConcurrently: netstack sends, the peer acknowledges, and the timer sends what waits at
// one time.
func TestPacedConcurrently(t *testing.T) {
	r := pacedPath(400, 100*time.Millisecond)
	var all sync.WaitGroup
	all.Go(func() { r.each(150) })
	all.Go(func() {
		for i := range uint32(100) {
			r.blocks(i*1000, 380_000, 381_000)
		}
	})
	all.Wait()
	all.Go(func() {
		for range 50 {
			r.clock.step()
		}
	})
	all.Go(func() { r.clear() })
	all.Wait()
	r.close()
	if r.number.Load() != 0 || r.kept() != 0 {
		t.Errorf("%d flows and %d packets are kept", r.number.Load(), r.kept())
	}
}

// TestPaceBehindOutage sends a flight again that another device has sent 46 s before. The peer's
// keepalive, which echoes that, is no round trip; where it acknowledges something it is taken for
// one, but the flight is spread over no more than pacedUpTo.
func TestPaceBehindOutage(t *testing.T) {
	const segments, outage = 400, 46_000 // ms
	for _, tt := range []struct {
		ack  uint32
		want int
	}{{0, 0}, {1000, segments - 1 - pacedBurst}} {
		r := newResending()
		r.owner = &telling{end: segments * 1000}
		r.write(ours(0, 1000), 0)
		r.wait(time.Millisecond)
		stamp := uint32(5000) // of ours
		r.answer(tt.ack, stamp-outage, header.TCPFlagAck)
		later := 0
		for seq := tt.ack; seq < segments*1000; seq += 1000 {
			if r.waits(ours(seq, 1000)) {
				later++
			}
		}
		if later != tt.want {
			t.Errorf("acknowledged to %d: %d wait, want %d", tt.ack, later, tt.want)
		}
		r.wait(2 * pacedUpTo)
		if n := len(r.frames); n < tt.want {
			t.Errorf("acknowledged to %d: %d are sent, want %d", tt.ack, n, tt.want)
		}
		r.close()
	}
}
