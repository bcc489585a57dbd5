package simnic

import (
	"testing"
)

func TestSendErrorFlush(t *testing.T) {
	r := newSendRig(t, Config{}, 0)
	copy(r.buf, frame60)
	good := concat(ctrl(0x0a, 3), ethSeg(0, 0, 0), seg(60, r.key.Key(), r.addr))
	bad := concat(ctrl(0x0a, 3), ethSeg(0, 0, 0), seg(60, 0x1200, r.addr))
	ce := func(w []byte,
		ce byte) []byte {
		w = append([]byte(nil), w...)
		w[11] = ce << 2
		return w
	}
	r.sq.post(ce(good, 0))
	r.sq.post(ce(bad, 0))
	r.sq.post(ce(good, 0))
	r.sq.post(ce(good, 1)) // no completion after the first error
	r.sq.post(ce(good, 2))
	r.sq.doorbell()
	for _, want := range []struct {
		index    uint16
		syndrome byte
	}{{1, 4}, {2, 5}, {4, 5}} {
		if e := r.cq.mustPoll(t); be16(e[0x3c:]) != want.index || e[0x37] != want.syndrome {
			t.Errorf("completion of %d with syndrome %#x, want %v", be16(e[0x3c:]), e[0x37], want)
		}
	}
	if e := r.cq.poll(); e != nil {
		t.Errorf("completion %x", e)
	}
	if len(r.wire.drain()) != 1 {
		t.Error("the frame ahead of the error was not sent")
	}
	r.sq.post(ce(good, 2)) // posted later: flushed
	r.sq.doorbell()
	if e := r.cq.mustPoll(t); e[0x37] != 5 {
		t.Errorf("late flush %x", e)
	}
	if err := r.sq.Modify(StateError, StateReady); StatusOf(err) != StatusBadState {
		t.Errorf("ERR to RDY: %v", err)
	}
	if err := r.sq.Modify(StateReady, StateReset); StatusOf(err) != StatusBadState {
		t.Errorf("wrong idea of the state: %v", err)
	}
	for _, s := range []State{StateReset, StateReady} {
		if err := r.sq.Modify(r.sq.State(), s); err != nil {
			t.Fatal(err)
		}
	}
	r.sq.pc = 0
	r.sq.post(good)
	r.sq.doorbell()
	if e := r.cq.mustPoll(t); e[0x3f]>>4 != 0 || len(r.wire.drain()) != 1 {
		t.Errorf("after recovery: %x", e)
	}
}

// TestSendResetForgets checks that a reset clears all state of an error.
func TestSendResetForgets(t *testing.T) {
	r := newSendRig(t, Config{}, 0)
	reset := func() {
		for _, s := range []State{StateReset, StateReady} {
			if err := r.sq.Modify(r.sq.State(), s); err != nil {
				t.Fatal(err)
			}
		}
		r.sq.pc = 0
		r.sq.rec.StoreBE32(4, 0)
	}
	bad := ctrl(0x3f, 3)
	bad[11] = 1 << 2 // completion on the first error only
	for range 3 {
		r.sq.post(bad)
		r.sq.post(bad)
		r.sq.doorbell()
		if e := r.cq.mustPoll(t); e[0x37] != 2 || r.cq.poll() != nil {
			t.Errorf("completion %x", e)
		}
		reset()
	}
	r.sq.rec.StoreBE32(4, 40) // more than the ring: stops without a completion
	r.sq.Doorbell(r.sq.last)
	reset()
	r.sq.nops(1)
	if e := r.cq.mustPoll(t); e[0x3f]>>4 != 0 {
		t.Errorf("after a stop and a reset: %x", e)
	}
}
