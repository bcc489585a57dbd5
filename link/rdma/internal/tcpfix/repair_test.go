package tcpfix

import (
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdrtest"
)

// longPath returns a resender of a path of 40 ms on which a super-segment of so many segments of
// 1000 bytes is in flight, and what it tells netstack.
func longPath(segments int) (r *resending, told *[][]byte) {
	r, told = newResending(), new([][]byte)
	r.path = func(uint64) time.Duration { return 40 * time.Millisecond }
	r.deliver = func(frame []byte) { *told = append(*told, frame) }
	r.write(ours(0, segments*1000), 1000)
	r.wait(40 * time.Millisecond)
	return r, told
}

// starts returns the sequence numbers of what was sent from the link.
func (r *resending) starts() (seqs []uint32) {
	for _, f := range r.frames {
		seq, _ := hdr.Numbers(f[hdrtest.Parse(f).L4:])
		seqs = append(seqs, seq)
	}
	return seqs
}

// again has netstack send a segment again, and reports whether it was dropped.
func (r *resending) again(seq uint32) (dropped bool) {
	pkt := packetOf(ours(seq, 1000))
	defer pkt.DecRef()
	s := hdr.ParseSent(pkt, r.seed)
	return r.sent(pkt, &s, false)
}

// TestRepair: what SACK shows to be missing within a super-segment is sent again, once a round
// trip.
func TestRepair(t *testing.T) {
	for _, tt := range []struct {
		name     string
		segments int
		blocks   []uint32
		want     []uint32 // at once
		later    []uint32 // after the reordering window
	}{
		{"the first", 10, []uint32{1000, 10000}, []uint32{0}, nil},
		{"three", 10, []uint32{7000, 10000, 4000, 6000, 1000, 3000}, []uint32{0, 3000, 6000}, nil},
		{"two in a row", 10, []uint32{2000, 10000}, []uint32{0, 1000}, nil},
		{"one that may be late", 10, []uint32{9000, 10000, 1000, 8000}, []uint32{0},
			[]uint32{8000}},
		{"nine of ten, within 0.7 of the flight", 10, []uint32{9000, 10000},
			[]uint32{0, 1000, 2000, 3000, 4000, 5000, 6000}, nil},
		{"what was never sent", 10, []uint32{1000, 11000}, nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, told := longPath(tt.segments)
			defer r.close()
			r.blocks(0, tt.blocks...)
			r.wait(time.Millisecond)
			if got := r.starts(); !slices.Equal(got, tt.want) {
				t.Errorf("sent %v, want %v", got, tt.want)
			}
			if want := min(len(tt.want), 1) * reportParts; len(*told) != want {
				t.Errorf("netstack is told %d times, want %d", len(*told), want)
			}
			r.wait(12 * time.Millisecond)
			if got := r.starts()[len(tt.want):]; !slices.Equal(got, tt.later) {
				t.Errorf("later sent %v, want %v", got, tt.later)
			}
			r.answer(uint32(tt.segments*1000), 0, header.TCPFlagAck)
			if n := r.kept(); n != 0 {
				t.Errorf("%d references left", n)
			}
		})
	}
}

// TestRepairReport: netstack is told in parts that each report more, the last of them all.
func TestRepairReport(t *testing.T) {
	r, told := longPath(10)
	defer r.close()
	r.blocks(0, 5000, 10000, 1000, 4000)
	r.wait(time.Millisecond)
	var ends []uint32
	for _, frame := range *told {
		l := hdrtest.Parse(frame)
		if !l.TransportOK(frame) {
			t.Error("wrong checksum")
		}
		sack := hdr.OptionsOf(frame[l.L4:]).SACK
		if from := binary.BigEndian.Uint32(sack[2:]); from != 5000 {
			t.Errorf("begins at %d", from)
		}
		ends = append(ends, binary.BigEndian.Uint32(sack[6:]))
	}
	if want := []uint32{6250, 7500, 8750, 10000}; !slices.Equal(ends, want) {
		t.Errorf("ends %v, want %v", ends, want)
	}
}

// TestRepairSpares: what netstack sends again is dropped if the peer has it, or if it was sent from
// here within a round trip.
func TestRepairSpares(t *testing.T) {
	r, _ := longPath(10)
	defer r.close()
	r.blocks(0, 1000, 10000)
	r.wait(time.Millisecond)
	for _, tt := range []struct {
		name string
		seq  uint32
		wait time.Duration
		want bool
	}{
		{"just sent", 0, 0, true}, {"reported", 3000, 0, true},
		{"sent a round trip ago", 0, 60 * time.Millisecond, false},
	} {
		r.wait(tt.wait)
		if got := r.again(tt.seq); got != tt.want {
			t.Errorf("%s: dropped: %v, want %v", tt.name, got, tt.want)
		}
	}
	if n := r.spared.Load(); n != 2 {
		t.Errorf("%d counted, want 2", n)
	}
}

// TestRepairSparesFew: netstack counts how often it sends a segment, whether or not that leaves the
// link, and gives the connection up at 15: few resends are dropped, and none on a short path.
func TestRepairSparesFew(t *testing.T) {
	for _, tt := range []struct {
		path time.Duration
		want int
	}{{40 * time.Millisecond, mostSpared}, {time.Millisecond, 0}} {
		r := newResending()
		r.path = func(uint64) time.Duration { return tt.path }
		p := packetOf(ours(0, 8000))
		p.GSOOptions.Type, p.GSOOptions.MSS = 1, 1000
		s := hdr.ParseSent(p, r.seed)
		r.sent(p, &s, true)
		p.DecRef()
		r.wait(tt.path)
		r.blocks(0, 1000, 8000)
		r.wait(tt.path / 40)
		dropped := 0
		for range 20 {
			r.wait(answerGap) // see TestSentTwice
			if r.again(0) {
				dropped++
			}
		}
		if len(r.starts()) == 0 || dropped != tt.want {
			t.Errorf("path of %v: %d sent from the link, %d of 20 of netstack's dropped, want %d",
				tt.path, len(r.starts()), dropped, tt.want)
		}
		r.close()
	}
}

// TestSentTwice: what netstack sends again twice for the same acknowledgement leaves once, a few
// times; not so what comes later, is more, or follows another acknowledgement.
func TestSentTwice(t *testing.T) {
	r := newResending()
	defer r.close()
	r.write(ours(0, 1000), 0)
	r.write(ours(1000, 1000), 0)
	r.write(ours(2000, 1000), 0)
	must := func(what string, seq uint32, want bool) {
		t.Helper()
		if got := r.again(seq); got != want {
			t.Errorf("%s: dropped %v", what, got)
		}
	}
	must("once", 0, false)
	must("twice", 0, true)
	must("another", 1000, false)
	must("in between", 0, false)
	r.wait(answerGap)
	must("later", 0, false)
	r.answer(1000, 0, header.TCPFlagAck)
	must("once more", 1000, false)
	r.wait(time.Millisecond)
	r.answer(1000, 0, header.TCPFlagAck)
	must("behind another acknowledgement", 1000, false)
	for range mostSpared {
		must("a few times", 1000, true)
	}
	must("more often", 1000, false)
}

// TestRepairSparesFewOfSegment: nor more of a segment where others before it are acknowledged one
// by one, and of a segment that is acknowledged nothing is remembered.
func TestRepairSparesFewOfSegment(t *testing.T) {
	r, _ := longPath(10)
	defer r.close()
	r.blocks(0, 9000, 10000, 2000, 4000)
	r.wait(time.Millisecond)
	dropped := 0
	for una := range uint32(8) {
		if una > 0 {
			r.blocks(una*1000, 9000, 10000)
		}
		for range 5 {
			if r.again(9000) {
				dropped++
			}
		}
	}
	if dropped != mostSpared {
		t.Errorf("%d of 40 resends of a segment are dropped, want %d", dropped, mostSpared)
	}
	r.answer(10000, 0, header.TCPFlagAck)
	for i := range r.shards {
		for _, f := range r.shards[i].flows {
			if n := len(f.repair.spared); n != 0 {
				t.Errorf("%d segments are remembered", n)
			}
		}
	}
}

// TestRepairOfShortPath: nothing is kept of a path shorter than keepFrom before SACK has told of a
// gap.
func TestRepairOfShortPath(t *testing.T) {
	r := newResending()
	defer r.close()
	r.path = func(uint64) time.Duration { return keepFrom - 1 }
	r.write(ours(0, 5000), 1000)
	if n := r.number.Load(); n != 0 {
		t.Errorf("%d flows are kept", n)
	}
	pkt := packetOf(ours(5000, 5000))
	pkt.GSOOptions.Type, pkt.GSOOptions.MSS = 1, 1000
	defer pkt.DecRef()
	s := hdr.ParseSent(pkt, r.seed)
	r.sent(pkt, &s, true)
	if n := r.number.Load(); n != 1 {
		t.Errorf("%d flows are kept after a gap, want 1", n)
	}
}

// FuzzRepair: whatever a peer reports, only what was sent is sent again, and no reference is left.
func FuzzRepair(f *testing.F) {
	f.Add([]byte{10, 1, 10, 0})
	f.Add([]byte{30, 7, 9, 0, 4, 6, 0, 12, 30, 3})
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) < 4 || len(in) > 64 || in[0] == 0 || in[0] > 60 {
			return
		}
		size := uint32(in[0]) * 1000
		r, _ := longPath(int(in[0]))
		for in = in[1:]; len(in) >= 3; in = in[3:] {
			from := uint32(in[0]) * 500
			r.blocks(uint32(in[2])*500, from, from+uint32(in[1])*500)
			r.wait(time.Duration(in[2]) * time.Millisecond)
		}
		for _, seq := range r.starts() {
			if seq >= size {
				t.Errorf("%d was never sent", seq)
			}
		}
		r.close()
		if n := r.kept(); n != 0 {
			t.Errorf("%d references left", n)
		}
	})
}
