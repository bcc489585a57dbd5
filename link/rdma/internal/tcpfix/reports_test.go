package tcpfix

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdrtest"
)

// slowConn stands for a connection of which so many segments wait for netstack.
type slowConn struct {
	tcpip.PacketOwner
	unread int
}

func (c *slowConn) SentBefore() (uint32, bool) { return 0, false }
func (c *slowConn) CountResend(uint32)         {}
func (c *slowConn) Unread(most int) int        { return min(c.unread, most) }
func (c *slowConn) NoteLost()                  {}
func (c *slowConn) NoteNeedless()              {}

func (c *slowConn) TimeOut(time.Duration) time.Duration { return time.Hour }

// gated holds the functions with a flight of so many segments of 1000 bytes, of which the first is
// lost, and that netstack knows of.
func gated(t *testing.T, segments int) (*reordering, *slowConn) {
	r, c := newReordering(t), &slowConn{}
	r.flight(0, segments)
	r.wait(reorderRTT)
	r.ack(0, 7, 1000, 2000)
	r.wait(reorderRTT)
	if len(r.delivered) != 1 {
		t.Fatal("the gap is not shown")
	}
	r.owner = c
	r.flight(uint32(segments)*1000, 1)
	r.delivered, r.anew = nil, true
	return r, c
}

// reportIn returns what an acknowledgement says.
func reportIn(frame []byte) (ack uint32, blocks []span) {
	p := hdrtest.Parse(frame)
	_, ack = hdr.Numbers(frame[p.L4:])
	if sack := hdr.OptionsOf(frame[p.L4:]).SACK; len(sack) > 2 {
		for sack = sack[2:]; len(sack) >= 8; sack = sack[8:] {
			blocks = append(blocks, span{binary.BigEndian.Uint32(sack),
				binary.BigEndian.Uint32(sack[4:])})
		}
	}
	return ack, blocks
}

// keeps sends an acknowledgement of the peer, and compares whether that is held back.
func (r *reordering) keeps(what string, want bool, ack, seq uint32, blocks ...uint32) {
	r.t.Helper()
	if kept, _ := r.ack(ack, seq, blocks...); kept != want {
		r.t.Errorf("%s: kept %v, want %v", what, kept, want)
	}
}

// TestReportsWait: while segments wait for netstack reports are held back, and those left out that
// a later one makes needless.
func TestReportsWait(t *testing.T) {
	r, c := gated(t, 300)
	r.keeps("one that netstack has time for", false, 0, 7, 2000, 4000, 1000, 2000)
	c.unread = busyAt
	r.keeps("the first", true, 0, 7, 6000, 7000, 2000, 4000)
	r.keeps("one with the same", true, 0, 7, 8000, 9000, 6000, 7000)
	r.keeps("one that advances", true, 4000, 7, 10000, 11000, 8000, 9000)
	r.wait(3 * gatePause)
	if len(r.delivered) > 0 {
		t.Fatal("delivered while netstack is busy")
	}
	c.unread = busyAt - 1
	r.wait(gatePause)
	if len(r.delivered) != 2 {
		t.Fatalf("%d are delivered, want 2", len(r.delivered))
	}
	for i, want := range []uint32{0, 4000} {
		if ack, _ := reportIn(r.delivered[i]); ack != want {
			t.Errorf("the %d. acknowledges up to %d, want %d", i+1, ack, want)
		}
	}
	r.keeps("a later one", false, 4000, 7, 12000, 13000)
	c.unread = busyAt
	r.keeps("one while it is busy again", true, 4000, 7, 14000, 15000)
}

// TestReportsPass: what netstack looks at soon, what is none and what has data passes.
func TestReportsPass(t *testing.T) {
	r, c := gated(t, 100)
	c.unread = busyAt
	r.keeps("one of a short flight", false, 0, 7, 2000, 3000)
	r, c = gated(t, 300)
	c.unread = busyAt
	r.keeps("one of data never sent", false, 0, 7, 302_000, 303_000)
	r, _ = gated(t, 300)
	r.owner = nil
	r.flight(301_000, 1)
	r.keeps("one of an unknown owner", false, 0, 7, 2000, 3000)
}

// TestReportsOutlastGap: what waits is delivered although the gap that was shown is closed.
func TestReportsOutlastGap(t *testing.T) {
	r, c := gated(t, 300)
	r.flight(301_000, 200)
	c.unread = busyAt
	r.keeps("one of later data", true, 0, 7, 350_000, 351_000)
	r.keeps("the end of the gap", true, 302_000, 7, 400_000, 401_000)
	c.unread = 0
	r.wait(gatePause)
	if len(r.delivered) != 2 {
		t.Errorf("%d are delivered, want both", len(r.delivered))
	}
}

// TestReportForged: what netstack will refuse does not take the place of a genuine report.
func TestReportForged(t *testing.T) {
	r, c := gated(t, 300)
	c.unread = busyAt
	r.ack(0, 7, 4000, 5000)
	r.ack(200000, 1<<20)
	c.unread = 0
	r.wait(gatePause)
	if len(r.delivered) != 2 {
		t.Errorf("%d are delivered, want both", len(r.delivered))
	}
}

// TestReportsForgotten: nothing is delivered once the flows are closed.
func TestReportsForgotten(t *testing.T) {
	r, c := gated(t, 300)
	c.unread = busyAt
	r.ack(0, 7, 4000, 5000)
	r.Close()
	if len(r.clock.timers) > 0 {
		t.Error("a timer is set after Close")
	}
	c.unread = 0
	r.wait(time.Second)
	if len(r.delivered) > 0 {
		t.Error("delivered after Close")
	}
}

// TestReportsCount: what is held back counts as other reports do of what was sent again needlessly.
func TestReportsCount(t *testing.T) {
	r, c := newReordering(t), &slowConn{unread: busyAt}
	r.flight(0, 300)
	r.send(ours(0, 1000))
	r.wait(reorderRTT)
	r.ack(0, 7, 2000, 3000)
	r.wait(reorderRTT)
	r.owner = c
	r.flight(300_000, 1)
	r.keeps("one of data come twice", true, 1000, 7, 0, 1000, 2000, 3000)
	if n := r.Counts().Needless; n != 1 {
		t.Errorf("%d were needless, want 1", n)
	}
}

// TestReportOfData: what tells of data come twice is delivered, though a later one says the rest.
func TestReportOfData(t *testing.T) {
	r, c := gated(t, 300)
	c.unread = busyAt
	r.keeps("one of data come twice", true, 2000, 7, 0, 1000, 4000, 5000)
	r.keeps("one of the rest", true, 3000, 7, 4000, 5000)
	c.unread = 0
	r.wait(gatePause)
	if len(r.delivered) != 2 {
		t.Errorf("%d are delivered, want both", len(r.delivered))
	}
}

// TestReportRemoved: what netstack was not told does not make a later report needless.
func TestReportRemoved(t *testing.T) {
	r, c := gated(t, 300)
	r.send(ours(0, 1000)) // SACK of little is taken out now
	if kept, sack := r.ack(0, 7, 1000, 2000); kept || sack != nil {
		t.Fatalf("kept %v, SACK %v", kept, sack)
	}
	c.unread = busyAt
	r.keeps("the first", true, 0, 7, 1000, 2000)
	r.keeps("another", true, 0, 7, 4000, 5000)
	c.unread = 0
	r.wait(gatePause)
	if len(r.delivered) != 2 {
		t.Errorf("%d are delivered, want both", len(r.delivered))
	}
}

// TestReportsLoseNothing: what netstack is told, of whatever a receiver says while netstack is busy
// at times, is all that was said.
func TestReportsLoseNothing(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		r, c := gated(t, 400)
		r.flight(401_000, 200)
		var said, told []span
		var acked, toldAck uint32
		note := func(frame []byte, told *[]span, upTo *uint32) {
			ack, blocks := reportIn(frame)
			for _, b := range blocks {
				*told = joinSpans(*told, b.seq, b.end)
			}
			*upTo = max(*upTo, ack)
		}
		hear := func() {
			for _, frame := range r.delivered {
				note(frame, &told, &toldAck)
			}
			r.delivered = nil
		}
		var recent []uint32 // blocks, the latest first
		for range 1 + rnd.IntN(300) {
			c.unread = rnd.IntN(2 * busyAt)
			if rnd.IntN(8) == 0 && acked < 300_000 {
				acked += 1000 * uint32(rnd.IntN(5))
			}
			from := acked + 1000*uint32(1+rnd.IntN(40))
			recent = append([]uint32{from, from + 1000*uint32(1+rnd.IntN(3))}, recent...)
			blocks := []uint32{}
			for i := 0; i+1 < len(recent) && len(blocks) < 6; i += 2 {
				if recent[i] > acked {
					blocks = append(blocks, recent[i], recent[i+1])
				}
			}
			frame := ackFrame(acked, 7, blocks...)
			note(frame, &said, &acked)
			if r.Received(frame, hdrtest.Parse(frame))&Held == 0 {
				note(frame, &told, &toldAck)
			}
			if rnd.IntN(3) == 0 {
				r.wait(gatePause)
			}
			hear()
		}
		c.unread = 0
		for len(r.clock.timers) > 0 && r.clock.timers[0].at < r.clock.now+time.Second {
			r.wait(gatePause)
			hear()
		}
		beyond := func(spans []span) (all []span) {
			for _, x := range spans {
				if x.end > acked {
					all = append(all, span{max(x.seq, acked), x.end})
				}
			}
			return all
		}
		if toldAck != acked || !slices.Equal(beyond(told), beyond(said)) {
			t.Fatalf("told up to %d, of %v; want %d, %v", toldAck, beyond(told), acked,
				beyond(said))
		}
	}
}
