package tcpfix

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/internal/random"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdrtest"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/tcpframe"
)

// reordering holds the functions for TCP on virtual time, at a round trip of 40 ms, and what they
// deliver later.
type reordering struct {
	*Flows
	t         *testing.T
	clock     virtualClock
	delivered [][]byte
	owner     tcpip.PacketOwner // of what is sent
	anew      bool              // what is delivered is received, as the endpoint does
}

const reorderRTT = 40 * time.Millisecond

func newReordering(t *testing.T) *reordering {
	r := &reordering{t: t}
	r.Flows = New(&r.clock, random.Source{},
		func(_ *gstack.PacketBuffer, build func() *gstack.PacketBuffer) bool { return true },
		func(frame []byte) {
			if r.anew && r.Received(frame, hdrtest.Parse(frame))&Held != 0 {
				t.Error("what was held back is held back again")
			}
			r.delivered = append(r.delivered, frame)
		})
	t.Cleanup(r.Close)
	syn := ours(0, 0)
	syn.Flags, syn.Seq = header.TCPFlagSyn|header.TCPFlagAck, 1<<32-1
	r.send(syn)
	r.wait(reorderRTT)
	r.ack(0, 7)
	return r
}

// send has netstack send a segment.
func (r *reordering) send(f tcpframe.Frame) {
	pkt := packetOf(f)
	defer pkt.DecRef()
	pkt.Owner = r.owner
	s := hdr.ParseSent(pkt, r.Key())
	r.Sent(pkt, &s)
}

// flight has netstack send n segments of 1000 bytes, from at on.
func (r *reordering) flight(at uint32, n int) {
	for i := range n {
		r.send(ours(at+uint32(i)*1000, 1000))
	}
}

func (r *reordering) wait(d time.Duration) {
	end := r.clock.now + d
	for len(r.clock.timers) > 0 && r.clock.timers[0].at <= end {
		r.clock.step()
	}
	r.clock.now = end
}

// ack has the peer acknowledge what comes before ack, and report the ranges of blocks. It returns
// what netstack gets: nothing, or the bytes of a SACK option.
func (r *reordering) ack(ack, seq uint32, blocks ...uint32) (kept bool, sack []byte) {
	r.t.Helper()
	frame := ackFrame(ack, seq, blocks...)
	c := r.Received(frame, hdrtest.Parse(frame))
	return c&Held != 0, hdr.OptionsOf(frame[hdrtest.Parse(frame).L4:]).SACK
}

// ackFrame makes the peer's acknowledgement of what comes before ack, with the ranges of blocks.
func ackFrame(ack, seq uint32, blocks ...uint32) []byte {
	f := tcpframe.Frame{Src: tcpframe.PeerMAC, Dst: tcpframe.OurMAC, From: 2, To: 1,
		Ports: [2]uint16{4000, 80}, TTL: 64, Seq: seq, Ack: ack, Flags: header.TCPFlagAck}
	if len(blocks) > 0 {
		f.Options = append(f.Options, hdr.OptNop, hdr.OptNop, hdr.OptSACK, byte(2+4*len(blocks)))
		for _, b := range blocks {
			f.Options = binary.BigEndian.AppendUint32(f.Options, b)
		}
	}
	return f.Bytes()
}

// want compares what became of an acknowledgement.
func (r *reordering) want(what string, kept, shown bool) func(bool, []byte) {
	return func(isKept bool, sack []byte) {
		r.t.Helper()
		if isKept != kept || !kept && (sack != nil) != shown {
			r.t.Errorf("%s: kept %v, SACK %v; want kept %v, shown %v", what, isKept, sack, kept,
				shown)
		}
	}
}

// TestGapHeldBack: the last report of a gap comes when the gap is as old as a quarter of the round
// trip, and then all reports pass until the flight is acknowledged.
func TestGapHeldBack(t *testing.T) {
	r := newReordering(t)
	r.flight(0, 10)
	r.wait(reorderRTT)
	r.want("the first", false, false)(r.ack(1000, 7, 2000, 3000))
	r.want("the second", true, false)(r.ack(1000, 7, 2000, 4000))
	r.want("the third", true, false)(r.ack(1000, 7, 2000, 5000))
	r.wait(reorderRTT/4 - 1)
	if len(r.delivered) > 0 {
		t.Fatal("delivered early")
	}
	r.wait(1)
	if len(r.delivered) != 1 {
		t.Fatalf("%d are delivered, want 1", len(r.delivered))
	}
	sack := hdr.OptionsOf(r.delivered[0][hdrtest.Parse(r.delivered[0]).L4:]).SACK
	if want := []byte{0, 0, 2000 >> 8, 2000 & 255, 0, 0, 5000 >> 8, 5000 & 255}; len(sack) < 10 ||
		!bytes.Equal(sack[2:], want) {
		t.Errorf("delivered %v, want %v", sack, want)
	}
	r.want("another", false, true)(r.ack(1000, 7, 2000, 6000))
	r.want("what comes behind it", false, true)(r.ack(6000, 7, 7000, 8000))
	r.want("all", false, false)(r.ack(10000, 7))
	r.flight(10000, 5)
	r.want("a gap of the next flight", false, false)(r.ack(11000, 7, 12000, 13000))
	if c := r.Counts(); c.ACKsKept != 2 || c.ACKsLate != 1 {
		t.Errorf("counts %d kept, %d late", c.ACKsKept, c.ACKsLate)
	}
}

// TestGapCloses: of a gap that closes by itself netstack hears nothing, and of what overtook its
// report neither.
func TestGapCloses(t *testing.T) {
	r := newReordering(t)
	r.flight(0, 10)
	r.ack(1000, 7, 2000, 3000)
	r.want("the second", true, false)(r.ack(1000, 7, 2000, 4000))
	r.wait(reorderRTT / 8)
	r.want("the end of it", false, false)(r.ack(4000, 7))
	r.want("one that was overtaken", true, false)(r.ack(1000, 7, 2000, 3000))
	r.wait(time.Second)
	if len(r.delivered) > 0 {
		t.Errorf("%d are delivered", len(r.delivered))
	}
}

// TestGapGrows: the window is twice the longest gap that has closed by itself.
func TestGapGrows(t *testing.T) {
	r := newReordering(t)
	r.flight(0, 10)
	r.ack(1000, 7, 2000, 3000)
	r.wait(reorderRTT/4 + 1) // shown
	r.ack(3000, 7)           // nothing was sent again
	r.ack(10000, 7)
	r.flight(10000, 10)
	r.wait(reorderRTT)
	r.ack(11000, 7, 12000, 13000)
	r.ack(11000, 7, 12000, 14000)
	n := len(r.delivered)
	r.wait(reorderRTT / 3)
	if len(r.delivered) != n {
		t.Error("the window has not grown")
	}
	r.wait(reorderRTT / 3)
	if len(r.delivered) == n {
		t.Error("the window has grown too much")
	}
}

// TestLossesInRow: after some gaps that were losses there is no window.
func TestLossesInRow(t *testing.T) {
	r := newReordering(t)
	at := uint32(0)
	lose := func() {
		r.flight(at, 10)
		r.wait(reorderRTT)
		r.ack(at+1000, 7, at+2000, at+10000)
		r.wait(reorderRTT / 4)
		r.send(ours(at+1000, 1000))
		r.wait(reorderRTT)
		r.ack(at+10000, 7)
		at += 10000
	}
	for range lossesInRow {
		lose()
	}
	r.flight(at, 10)
	r.wait(reorderRTT)
	r.want("a fourth loss", false, true)(r.ack(at+1000, 7, at+2000, at+5000))
	r.ack(at+5000, 7) // but it was late only
	r.ack(at+10000, 7)
	r.flight(at+10000, 10)
	r.want("the next gap", false, false)(r.ack(at+11000, 7, at+12000, at+15000))
}

// TestGapPasses: blocks that are nonsense or tell of a duplicate, data, and what is not known to
// have been sent, is left alone, and nothing is delivered after the end of a connection.
func TestGapPasses(t *testing.T) {
	r := newReordering(t)
	r.flight(0, 10)
	r.want("beyond what was sent", false, true)(r.ack(1000, 7, 20000, 21000))
	r.want("in the wrong order", false, true)(r.ack(1000, 7, 3000, 2000))
	r.want("a duplicate", false, true)(r.ack(3000, 7, 1000, 2000))
	r.ack(3000, 7, 4000, 5000)
	r.want("a gap", true, false)(r.ack(3000, 7, 4000, 6000))
	rst := ours(0, 0)
	rst.Flags = header.TCPFlagRst
	r.send(rst)
	r.wait(time.Second)
	if len(r.delivered) > 0 || r.reorder.number.Load() != 0 {
		t.Errorf("%d are delivered, %d flows", len(r.delivered), r.reorder.number.Load())
	}
}

// TestIdleGapsForgotten: a flow is kept while it has gaps, and with the last one that has none any
// more the segments of all others are left alone again.
func TestIdleGapsForgotten(t *testing.T) {
	r := newReordering(t)
	r.flight(0, 10)
	r.ack(1000, 7, 2000, 3000)
	r.ack(5000, 7)
	r.wait(reorderIdle - time.Second)
	r.ack(6000, 7, 7000, 8000)
	r.ack(10000, 7)
	r.wait(reorderIdle - time.Second)
	if n := r.reorder.number.Load(); n != 1 {
		t.Fatalf("%d flows are kept between gaps, want 1", n)
	}
	r.wait(2 * reorderIdle)
	if n := r.reorder.number.Load(); n != 0 {
		t.Errorf("%d flows are kept long after the last gap", n)
	}
	r.flight(10000, 10)
	r.want("a gap after that", false, false)(r.ack(11000, 7, 12000, 13000))
	r.want("its second report", true, false)(r.ack(11000, 7, 12000, 14000))
	if n := r.reorder.number.Load(); n != 1 {
		t.Errorf("%d flows are kept with a gap, want 1", n)
	}
}
