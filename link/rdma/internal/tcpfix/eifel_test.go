package tcpfix

import (
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/tcpframe"
)

// TestNeedlessFlights: of a flight of three segments, sent with timestamp 5000, some are sent again
// with 5100. What the peer echoes tells whether it was lost.
func TestNeedlessFlights(t *testing.T) {
	type answer struct{ ack, echo uint32 }
	type verdict struct{ lost, needless int }
	for _, tt := range []struct {
		name    string
		again   []uint32
		answers []answer
		want    verdict
	}{
		{"late, each acknowledged", []uint32{0}, []answer{{1000, 5000}, {2000, 5000}, {3000, 5000}},
			verdict{needless: 1}},
		{"late, acknowledged at once", []uint32{0, 1000, 2000}, []answer{{3000, 5000}},
			verdict{needless: 1}},
		{"not all acknowledged yet", []uint32{0}, []answer{{1000, 5000}, {2000, 5000}}, verdict{}},
		{"the first lost", []uint32{0}, []answer{{3000, 5100}}, verdict{lost: 1}},
		{"the first late, the second lost", []uint32{0, 1000},
			[]answer{{1000, 5000}, {3000, 5100}}, verdict{lost: 1}},
		{"the first lost, the others late", []uint32{0, 1000, 2000},
			[]answer{{1000, 5100}, {3000, 5000}}, verdict{lost: 1}},
		{"a probe", []uint32{2000}, []answer{{3000, 5000}, {3000, 5100}}, verdict{needless: 1}},
		{"no timestamp echoed", []uint32{0}, []answer{{3000, 0}}, verdict{lost: 1}},
		{"timestamps that wrap", []uint32{0}, []answer{{3000, 1<<31 + 5101}},
			verdict{needless: 1}},
		{"nothing sent again", nil, []answer{{3000, 5000}}, verdict{}},
	} {
		for _, origin := range []uint32{0, 1<<32 - 1500} {
			r, owner := newResending(), &telling{end: origin}
			r.origin, r.owner = origin, owner
			for seq := uint32(0); seq < 3000; seq += 1000 {
				r.write(ours(seq, 1000), 0)
			}
			r.wait(100 * time.Millisecond)
			for _, seq := range tt.again {
				f := ours(seq, 1000)
				f.Options = tcpframe.Stamped(5100, 1)
				r.write(f, 0)
			}
			for _, a := range tt.answers {
				r.answer(a.ack, a.echo, header.TCPFlagAck)
			}
			if got := (verdict{owner.lost, owner.needless}); got != tt.want {
				t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
			}
			r.close()
		}
	}
}

// TestNeedlessAgain: each flight has its own verdict, and counts up to where it ended as something
// was sent again first.
func TestNeedlessAgain(t *testing.T) {
	r, owner := newResending(), new(telling)
	r.owner = owner
	again := func(seq, stamp uint32) {
		f := ours(seq, 1000)
		f.Options = tcpframe.Stamped(stamp, 1)
		r.write(f, 0)
	}
	mustTell := func(what string, lost, needless int) {
		t.Helper()
		if owner.lost != lost || owner.needless != needless {
			t.Errorf("%s: %d lost, %d needless, want %d and %d", what, owner.lost, owner.needless,
				lost, needless)
		}
	}
	r.write(ours(0, 1000), 0)
	r.write(ours(1000, 1000), 0)
	r.wait(10 * time.Millisecond)
	again(0, 5010)
	r.write(ours(2000, 1000), 0)
	r.answer(2000, 5000, header.TCPFlagAck)
	mustTell("late", 0, 1)
	r.wait(10 * time.Millisecond)
	again(2000, 5020)
	r.answer(3000, 5020, header.TCPFlagAck)
	mustTell("then lost", 1, 1)
	again(3000, 5030) // new data
	r.answer(4000, 5030, header.TCPFlagAck)
	mustTell("then nothing", 1, 1)
	r.close()
}

// TestNeedlessWithoutOwner: packets without an owner, and without timestamps, are nobody's to tell
// of.
func TestNeedlessWithoutOwner(t *testing.T) {
	for _, stamped := range []bool{true, false} {
		r, owner := newResending(), new(telling)
		if !stamped {
			r.owner = owner
		}
		for range 2 {
			f := ours(0, 1000)
			if !stamped {
				f.Options = nil
			}
			r.write(f, 0)
		}
		r.answer(1000, 4000, header.TCPFlagAck)
		if owner.lost+owner.needless > 0 {
			t.Errorf("stamped %v: %+v", stamped, owner)
		}
		r.close()
	}
}
