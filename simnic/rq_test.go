package simnic

import "testing"

// A receive queue uses the value of its record when it became ready, or ignores it until the record
// changes. Then all WQEs up to the record are posted.
func TestRecordBeforeReady(t *testing.T) {
	for _, tc := range []struct {
		cfg    Config
		before int // frames delivered of the first two
	}{
		{Config{}, 2},
		{Config{RecordAfterReady: true}, 0},
	} {
		r := newRecvRig(t, recvOptions{cfg: tc.cfg})
		if err := r.rq.Modify(StateReady, StateReset); err != nil {
			t.Fatal(err)
		}
		for range 4 {
			r.rq.post(seg(2048, r.key.Key(), r.addr))
		}
		if err := r.rq.Modify(StateReset, StateReady); err != nil {
			t.Fatal(err)
		}
		r.give(frame60, frame60)
		if n := count(r.cq); n != tc.before {
			t.Errorf("%+v: %d frames before the record changes, want %d", tc.cfg, n, tc.before)
		}
		r.rq.post(seg(2048, r.key.Key(), r.addr))
		r.give(frame60, frame60, frame60, frame60, frame60, frame60)
		if n := count(r.cq) + tc.before; n != 5 {
			t.Errorf("%+v: %d frames for 5 WQEs", tc.cfg, n)
		}
	}
}

// count consumes completions and returns their number.
func count(cq *testCQ) (n int) {
	for e := cq.poll(); e != nil; e = cq.poll() {
		n++
	}
	return n
}

// Completions name WQEs by their index in the ring, for any value of the counter.
func TestRingIndex(t *testing.T) {
	r := newRecvRig(t, recvOptions{cfg: Config{RingIndex: true},
		rq: func(a *RQAttr) { a.StartIndex = 65000 }})
	for i := range 1200 {
		r.rq.post(seg(2048, r.key.Key(), r.addr))
		r.give(frame60)
		if got, want := be16(r.cq.mustPoll(t)[0x3c:]), uint16(65000+i)%32; got != want {
			t.Fatalf("frame %d: completion of %d, want %d", i, got, want)
		}
	}
}
