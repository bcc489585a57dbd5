package dv

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
)

func TestRxErrorCompletions(t *testing.T) {
	for _, c := range []struct {
		name  string
		cqe   *[64]byte
		reset bool
		want  RxDrops
	}{
		{"too long for its buffer", failed(0xe0, 0x01, 1), false, RxDrops{TooLong: 1}},
		{"too long, of another descriptor", failed(0xe0, 0x01, 9), true, RxDrops{Error: 1}},
		{"protection error", failed(0xe0, 0x04, 1), true, RxDrops{Error: 1}},
		{"QP operation error", failed(0xe0, 0x02, 1), true, RxDrops{Error: 1}},
		{"unknown syndrome", failed(0xe0, 0x77, 1), true, RxDrops{Error: 1}},
		{"flushed", failed(0xe0, 0x05, 1), true, RxDrops{Flushed: 1}},
		{"send error in a receive queue", failed(0xd0, 0x04, 1), true, RxDrops{Malformed: 1}},
		{"send done in a receive queue", sent(1), true, RxDrops{Malformed: 1}},
		{"compressed without leave", compressed(receive(1, 64)), true, RxDrops{Malformed: 1}},
		{"descriptor out of order", receive(2, 64), true, RxDrops{Malformed: 1}},
		{"longer than its buffer", receive(1, 2049), true, RxDrops{Malformed: 1}},
		{"length with the top bit", receive(1, 1<<31), true, RxDrops{Malformed: 1}},
		{"shorter than a header", receive(1, 13), false, RxDrops{Malformed: 1}},
		{"empty", receive(1, 0), false, RxDrops{Malformed: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRxRig(t, 64, 70)
			r.receive(1, 60)
			r.nic.put(c.cqe)
			r.next = 2
			r.receive(3, 60) // behind the bad one: lost with a reset, else not
			pkts := make([]Packet, 16)
			want := 4
			if c.reset {
				want = 1
			}
			if n := r.q.Poll(pkts); n != want {
				t.Fatalf("%d packets, want %d", n, want)
			}
			r.q.Release(pkts[:want])
			s := r.q.Stats()
			if s.Drops != c.want || (s.Resets == 1) != c.reset || (r.halts == 1) != c.reset ||
				(r.starts == 1) != c.reset {
				t.Fatalf("drops %+v resets %d halts %d starts %d", s.Drops,
					s.Resets, r.halts, r.starts)
			}
			r.q.Refill()
			r.checkOwners(t, nil)
			r.exercise(t2(t, r), rand.New(rand.NewPCG(1, 1)), 300)
		})
	}
}

// t2 starts the counters that exercise compares from here.
func t2(t *testing.T, r *rxRig) *testing.T {
	r.q.count = rxCounts{}
	return t
}

func compressed(cqe *[64]byte) *[64]byte {
	cqe[63] |= 0x0c
	return cqe
}

// A ring that is reset again and again without a frame between fails the
// device instead of spinning, and so does one that cannot be reset.
func TestRxHopeless(t *testing.T) {
	t.Run("no success between resets", func(t *testing.T) {
		r := newRxRig(t, 64, 64)
		clock := newFakeClock()
		r.q.recovery.now = clock.now
		for range 100 {
			clock.add(time.Second)
			r.nic.put(failed(0xe0, 0x04, r.next))
			r.q.Poll(make([]Packet, 1))
		}
		if r.halts != int(consecutiveResetsTime/time.Second)+1 ||
			!errors.Is(r.q.ended(), ErrFailed) || r.failure == nil {
			t.Errorf("%d resets, failure %v", r.halts, r.failure)
		}
	})
	t.Run("reset refused", func(t *testing.T) {
		r := newRxRig(t, 64, 64)
		r.haltErr = errors.New("firmware says no")
		r.nic.put(failed(0xe0, 0x04, 0))
		if n := r.q.Poll(make([]Packet, 1)); n != 0 || !errors.Is(r.failure, r.haltErr) {
			t.Errorf("%d packets, failure %v", n, r.failure)
		}
		r.receive(1, 60)
		if n := r.q.Poll(make([]Packet, 1)); n != 0 {
			t.Errorf("%d packets from a failed queue", n)
		}
	})
	t.Run("frames between resets", func(t *testing.T) {
		r := newRxRig(t, 64, 64)
		pkts := make([]Packet, 1)
		for range 3 * maxConsecutiveResets {
			r.receive(1, 60)
			r.q.Release(pkts[:r.q.Poll(pkts)])
			r.nic.put(failed(0xe0, 0x04, r.next))
			r.q.Poll(pkts)
		}
		if r.failure != nil || r.starts != 3*maxConsecutiveResets {
			t.Errorf("%d resets, failure %v", r.starts, r.failure)
		}
	})
}

// While a reset is put off, no event is asked for: completions of frames that nobody looks at would
// raise it at once, and the owner would spin (world 5670 of make sim). A timer wakes it.
func TestRxArmWhileResetIsPutOff(t *testing.T) {
	r := newRxRig(t, 64, 64)
	clock, requests := newFakeClock(), 0
	r.q.recovery.now = clock.now
	r.q.page = &uverbs.Page{Trap: func(int, uint64) { requests++ }}
	for range promptResets + 1 {
		r.nic.put(failed(0xe0, 0x04, r.next))
		r.q.Poll(make([]Packet, 1))
	}
	r.receive(1, 60)
	r.q.Arm()
	if requests != 0 || r.starts != promptResets || len(r.pauses) == 0 {
		t.Errorf("%d requests after %d resets, pauses %v", requests, r.starts, r.pauses)
	}
	clock.add(firstPause)
	r.q.Poll(make([]Packet, 1))
	r.q.Arm()
	if requests != 1 || r.starts != promptResets+1 {
		t.Errorf("%d requests after %d resets, want 1 after %d", requests, r.starts, promptResets+1)
	}
}

// An event about the queue from elsewhere resets it at the next poll; the
// completions that were in the ring are passed over.
func TestRxResetByEvent(t *testing.T) {
	r := newRxRig(t, 64, 64)
	r.receive(20, 60)
	r.q.signals.raiseBits(signalReset)
	pkts := make([]Packet, 64)
	if n := r.q.Poll(pkts); n != 0 || r.starts != 1 {
		t.Fatalf("%d packets, %d starts", n, r.starts)
	}
	r.receive(3, 60)
	if n := r.q.Poll(pkts); n != 3 {
		t.Errorf("%d packets after the reset, want 3", n)
	}
}

// The NIC writes whatever it likes into the completion ring.
func FuzzRxCompletions(f *testing.F) {
	f.Add(receive(0, 60)[:])
	f.Add(append(receive(0, 60)[:], failed(0xe0, 0x04, 1)[:]...))
	f.Add(append(failed(0xe0, 0x01, 0)[:], receive(1, 2048)[:]...))
	f.Add(compressed(receive(0, 8))[:])
	r := newRxRig(f, 64, 80)
	f.Fuzz(func(t *testing.T, stream []byte) {
		r.hostile(t, stream)
	})
}

// hostile feeds a stream of completions to a queue that must survive it, and works on after it.
func (r *rxRig) hostile(t *testing.T, stream []byte) {
	r.survive(t, stream, func() { r.checkOwners(t, nil) })
	r.q.Refill()
}

// survive is hostile for every format; audit is called when all frames are back.
func (r *rxRig) survive(t *testing.T, stream []byte, audit func()) {
	pkts := make([]Packet, 24)
	for len(stream) > 0 {
		for range 8 {
			var cqe [64]byte
			stream = stream[copy(cqe[:], stream):]
			r.nic.put(&cqe)
		}
		n := r.q.Poll(pkts)
		for i := range n {
			size := 0
			for _, piece := range r.q.Segments(nil, &pkts[i]) {
				piece[len(piece)-1]++
				size += len(piece)
			}
			if size != pkts[i].Size() || size < ethHeader || size > int(r.q.longest) {
				t.Fatalf("frame of %d bytes, its pieces have %d", pkts[i].Size(), size)
			}
		}
		r.q.Release(pkts[:n])
		audit()
		r.nic.pi = r.q.cq.ci // what is left is overwritten
	}
	r.failure, r.q.recovery = nil, newRecovery(clock.Clock{})
	r.q.signals.bits.Store(0)
}
