package simnic

import (
	"errors"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

// Equal matches are one entry, whose tag is that of the rule that made it, for as long as
// any rule of it is left: a rule without a tag joins it, one with another tag cannot.
func TestFlowTagOfEntry(t *testing.T) {
	w := newWorld(t, Config{})
	a, b := w.sink(1), w.sink(2)
	m := dstMatch(macTwo, macExact)
	conflict := func(when string, tag uint32) {
		t.Helper()
		if _, err := w.nic.CreateFlow(
			FlowAttr{Match: m, TIR: b.tir, HasTag: true, Tag: tag}); !errors.Is(err,
			ErrFlowConflict) {
			t.Errorf("tag %d %s: %v, want %v", tag, when, err, ErrFlowConflict)
		}
	}
	receive := func(s *sink, want uint32) {
		t.Helper()
		if n, tag := s.got(); n != 1 || tag != want {
			t.Errorf("%d completions, tag %d, want 1 with tag %d", n, tag, want)
		}
	}
	first := w.flow(FlowAttr{Match: m, TIR: a.tir, HasTag: true, Tag: 5})
	joined := w.flow(FlowAttr{Match: m, TIR: b.tir})
	w.wire.recv([]frame.Frame{{Data: to(macTwo, macThird)}})
	receive(a, 5)
	receive(b, 5)
	if err := first.Destroy(); err != nil {
		t.Fatal(err)
	}
	conflict("after the rule that brought 5 went", 6)
	w.wire.recv([]frame.Frame{{Data: to(macTwo, macThird)}})
	receive(b, 5)
	if err := joined.Destroy(); err != nil {
		t.Fatal(err)
	}
	w.flow(FlowAttr{Match: m, TIR: a.tir})
	conflict("beside a rule without a tag", 6)
	w.flow(FlowAttr{Match: m, TIR: b.tir, HasTag: true}) // tag 0 is that of a rule without one
}

func TestFlowRefusals(t *testing.T) {
	w := newWorld(t, Config{})
	a, b := w.sink(1), w.sink(2)
	m := dstMatch(macTwo, macExact)
	first := w.flow(FlowAttr{Match: m, TIR: a.tir, HasTag: true, Tag: 5})
	bad := m
	bad.Mask[1] = 0
	for _, tc := range []struct {
		name string
		attr FlowAttr
		want error
	}{
		{"other tag", FlowAttr{Match: m, TIR: b.tir, HasTag: true, Tag: 6}, ErrFlowConflict},
		{"other action", FlowAttr{Match: m, Drop: true, HasTag: true, Tag: 5}, ErrFlowConflict},
		{"value outside mask", FlowAttr{Match: bad, TIR: b.tir}, StatusBadParam},
		{"no destination", FlowAttr{Match: m}, StatusBadParam},
		{"destination and drop", FlowAttr{Match: m, TIR: b.tir, Drop: true}, StatusBadParam},
		{"priority", FlowAttr{Match: m, TIR: b.tir, Priority: 16}, StatusBadParam},
		{"tag", FlowAttr{Match: m, TIR: b.tir, HasTag: true, Tag: 1 << 24}, StatusBadParam},
		{"tag that was not asked for", FlowAttr{Match: m, TIR: b.tir, Tag: 5}, StatusBadParam},
		{"tag 0 beside another", FlowAttr{Match: m, TIR: b.tir, HasTag: true}, ErrFlowConflict},
		{"miss beside a drop", FlowAttr{Match: m, Drop: true, Miss: true}, StatusBadParam},
		{"miss and a destination", FlowAttr{Match: m, TIR: b.tir, Miss: true}, StatusBadParam},
		{"miss with another tag", FlowAttr{Match: m, Miss: true, HasTag: true, Tag: 6},
			ErrFlowConflict},
		{"leftover that misses", FlowAttr{Type: FlowAllDefault, Miss: true}, StatusBadParam},
		{"type nobody knows", FlowAttr{Type: FlowSniffer + 1, TIR: b.tir}, StatusBadParam},
		{"sniffer that does not trap", FlowAttr{Type: FlowSniffer, TIR: b.tir, DontTrap: true},
			StatusBadParam},
		{"leftover that does not trap", FlowAttr{Type: FlowAllDefault, TIR: b.tir, DontTrap: true},
			StatusBadParam},
	} {
		if _, err := w.nic.CreateFlow(tc.attr); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, err, tc.want)
		}
	}
	w.flow(FlowAttr{Match: m, TIR: b.tir, HasTag: true, Tag: 6, Priority: 1}) // another table
	w.wire.recv([]frame.Frame{{Data: to(macTwo, macThird)}})
	if n, tag := a.got(); n != 1 || tag != 5 {
		t.Errorf("%d completions, tag %d", n, tag)
	}
	if err := a.tir.Destroy(); StatusOf(err) != StatusResBusy {
		t.Errorf("destroy a TIR in use: %v", err)
	}
	if err := first.Destroy(); err != nil {
		t.Fatal(err)
	}
	if err := first.Destroy(); StatusOf(err) != StatusBadRes {
		t.Errorf("destroy twice: %v", err)
	}
	w.wire.recv([]frame.Frame{{Data: to(macTwo, macThird)}})
	if n, tag := b.got(); n != 1 || tag != 6 {
		t.Errorf("%d completions, tag %d", n, tag)
	}
}

// Sniffers get a copy of each frame from the wire and of each sent one, whoever gets the frame
// itself, and nothing else changes.
func TestSnifferRules(t *testing.T) {
	w := newWorld(t, Config{})
	a, b, receiver := w.sink(1), w.sink(2), w.sink(3)
	w.flow(FlowAttr{Match: dstMatch(macTwo, macExact), TIR: receiver.tir, HasTag: true, Tag: 5})
	first := w.flow(FlowAttr{Type: FlowSniffer, TIR: a.tir})
	second := w.flow(FlowAttr{Type: FlowSniffer, TIR: b.tir})
	again := w.flow(FlowAttr{Type: FlowSniffer, TIR: b.tir})
	traffic := func(when string, wantA, wantB int) {
		t.Helper()
		missed := w.nic.Counters().Drops.SteerMissed
		w.wire.recv([]frame.Frame{{Data: to(macTwo, macThird)}, {Data: to(macThird, macTwo)},
			{Data: to(macNetdev, macThird)}})
		w.netdev.recv([]frame.Frame{{Data: to(macThird, macNetdev)}})
		for i, s := range []*sink{a, b} {
			if n, tag := s.got(); n != []int{wantA, wantB}[i] || tag != 0 {
				t.Errorf("%s: sniffer %d got %d frames, tag %d", when, i, n, tag)
			}
		}
		if n, tag := receiver.got(); n != 1 || tag != 5 {
			t.Errorf("%s: the receiver got %d frames, tag %d", when, n, tag)
		}
		if n, m := len(w.netdev.drain()), len(w.wire.drain()); n != 1 || m != 1 {
			t.Errorf("%s: %d frames to the netdev, %d to the wire", when, n, m)
		}
		if n := w.nic.Counters().Drops.SteerMissed - missed; n != 1 {
			t.Errorf("%s: %d frames without a receiver", when, n)
		}
	}
	traffic("both", 4, 4)
	if err := errors.Join(first.Destroy(), second.Destroy()); err != nil {
		t.Fatal(err)
	}
	traffic("without the first", 0, 4)
	if err := again.Destroy(); err != nil {
		t.Fatal(err)
	}
	traffic("none", 0, 0)
}
