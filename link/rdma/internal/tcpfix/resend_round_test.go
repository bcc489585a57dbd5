package tcpfix

import (
	"slices"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdrtest"
)

// rounds is a flight of 100 segments of 1000 bytes, in packets of 10, of which netstack has sent
// the first again after a timeout.
func rounds(origin uint32) *resending {
	r := newResending()
	r.origin = origin
	r.write(ours(0, 1000), 0)
	r.write(ours(0, 1000), 0) // from here on its packets are kept
	r.write(ours(1000, 9000), 1000)
	for seq := uint32(10000); seq < 100000; seq += 10000 {
		r.write(ours(seq, 10000), 1000)
	}
	r.wait(2 * timeoutGap)
	r.write(ours(0, 1000), 0)
	return r
}

// sentNow is what the link sends within a while after an acknowledgement, in thousands of bytes
// from the first on.
func (r *resending) sentNow(ack uint32) (seqs []uint32) { return r.sentBehind(ack, 5000) }

// sentBehind does what sentNow does behind an acknowledgement with that echo.
func (r *resending) sentBehind(ack, echo uint32) (seqs []uint32) {
	r.wait(time.Millisecond)
	r.frames = nil
	r.answer(ack, echo, header.TCPFlagAck)
	r.wait(2 * resendTick)
	for _, frame := range r.frames {
		p := hdrtest.Parse(frame)
		seq, _ := hdr.Numbers(frame[p.L4:])
		seqs = append(seqs, (seq-r.origin)/1000)
	}
	return seqs
}

// count is n numbers from first on.
func count(first uint32, n int) (all []uint32) {
	for i := range n {
		all = append(all, first+uint32(i))
	}
	return all
}

// TestRounds: while netstack sends nothing when its flight is acknowledged, it is sent again in
// rounds, each twice as large once the one before is acknowledged.
func TestRounds(t *testing.T) {
	for _, origin := range []uint32{0, 1<<32 - 5000} {
		r := rounds(origin)
		check := func(ack uint32, want []uint32) {
			t.Helper()
			if got := r.sentNow(ack); !slices.Equal(got, want) {
				t.Errorf("from %d, ACK %d: sent %d, want %d", origin, ack, got, want)
			}
		}
		check(1000, count(1, 1))
		check(2000, count(2, 2))
		check(3000, nil) // half of the round
		check(4000, count(4, 4))
		check(8000, count(8, 8)) // of two packets
		check(16000, count(16, 16))
		check(32000, count(32, 32))
		r.write(ours(64000, 1000), 0) // netstack goes on
		check(64000, count(64, 1))
		check(65000, count(65, 2))
		check(99000, count(99, 1)) // what is left of four
		check(100000, nil)
		r.close()
		if n := r.kept(); n != 0 {
			t.Errorf("%d references are left", n)
		}
	}
}

// TestLargestRound: rounds grow up to a bound.
func TestLargestRound(t *testing.T) {
	r, largest := round{}, 0
	for range 64 {
		largest = max(largest, r.begin(true))
	}
	if largest != maxRound {
		t.Errorf("%d segments, want %d", largest, maxRound)
	}
}

// TestRoundLost: after a round of which nothing is acknowledged the first segment is sent alone.
func TestRoundLost(t *testing.T) {
	r := rounds(0)
	defer r.close()
	r.sentNow(1000)
	r.sentNow(2000)
	if got := r.sentNow(4000); len(got) != 4 {
		t.Fatalf("sent %d", got)
	}
	r.frames = nil
	r.wait(2 * resendWait)
	if len(r.frames) != 1 {
		t.Errorf("%d segments are sent, want one", len(r.frames))
	}
}

// TestNoRound: netstack that answers acknowledgements sends the flight itself, and what is not
// known to be lost is its own affair.
func TestNoRound(t *testing.T) {
	r := rounds(0)
	defer r.close()
	r.answer(1000, 5000, header.TCPFlagAck)
	r.write(ours(1000, 2000), 1000)
	if got := r.sentNow(0); got != nil {
		t.Errorf("sent %d although netstack goes on", got)
	}
	quiet := newResending()
	defer quiet.close()
	quiet.write(ours(0, 1000), 0)
	quiet.write(ours(0, 1000), 0)
	for seq := uint32(1000); seq < 9000; seq += 1000 {
		quiet.write(ours(seq, 1000), 0)
	}
	if got := quiet.sentNow(1000); got != nil {
		t.Errorf("sent %d without a timeout", got)
	}
}

// TestRoundsAfterStandstill: a flight of which the link had to send the first segment is sent again
// in rounds as well, though no timeout was seen.
func TestRoundsAfterStandstill(t *testing.T) {
	r := newResending()
	defer r.close()
	r.write(ours(0, 1000), 0)
	r.write(ours(0, 1000), 0) // at once: no timeout
	for seq := uint32(1000); seq < 90000; seq += 1000 {
		r.write(ours(seq, 1000), 0)
	}
	r.wait(2 * firstWait)
	if len(r.frames) != 1 {
		t.Fatalf("%d segments are sent of a flight that stands still", len(r.frames))
	}
	for i, ack := range []uint32{1000, 3000, 7000} {
		if got, want := r.sentBehind(ack, 0), count(ack/1000, 2<<i); !slices.Equal(got, want) {
			t.Errorf("ACK %d: sent %d, want %d", ack, got, want)
		}
	}
	if got := r.sentBehind(9000, 0); got != nil {
		t.Errorf("sent %d while the round is in flight", got)
	}
}
