package dv

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
)

// Whatever the NIC reports but success, the queue is replaced, frames come
// back, the loss is counted, and sending goes on.
func TestTxRecovery(t *testing.T) {
	for _, c := range []struct {
		name string
		cqe  *[64]byte
		done uint64 // packets known as sent before it
	}{
		{"protection error", failed(0xd0, 0x04, 4), 0},
		{"malformed descriptor", failed(0xd0, 0x02, 2), 0},
		{"flushed", failed(0xd0, 0x05, 4), 0},
		{"receive error", failed(0xe0, 0x04, 4), 0},
		{"received in a send queue", receive(4, 60), 0},
		{"no descriptor starts there", sent(3), 0},
		{"not posted yet", sent(9), 0},
		{"asked for no completion", sent(0), 0},
		{"compressed", compressed(sent(4)), 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newTxRig(t, 64, 128<<10, defaultLimits)
			f, _ := r.pool.Get()
			for _, n := range []int{60, 60} { // blocks 0 and 2
				r.q.Post(&TxPacket{Bufs: [][]byte{make([]byte, n)}})
			}
			if err := r.q.PostFrame(f, 0, 500, 0); err != nil { // block 4
				t.Fatal(err)
			}
			r.q.Flush()
			r.nic.put(c.cqe)
			r.q.Reclaim()
			s := r.q.Stats()
			if s.Resets != 1 || s.Drops.Lost != 3-c.done || r.halts != 1 || r.starts != 1 ||
				r.pool.Free() != r.pool.Frames() {
				t.Fatalf("stats %+v, halts %d, %d frames free", s, r.halts, r.pool.Free())
			}
			r.q.count = txCounts{}
			r.q.done = 0
			newTxExercise(r, rand.New(rand.NewPCG(1, 2)), 0).run(t, 300)
		})
	}
}

// Completions of descriptors that asked for one, but not this time round, or
// that the NIC has not been told of yet.
func TestTxCompletionOutOfTurn(t *testing.T) {
	p := TxPacket{Bufs: [][]byte{make([]byte, 200)}}
	t.Run("asked in an earlier pass", func(t *testing.T) {
		r := newTxRig(t, 64, 128<<10, defaultLimits)
		post := func(n int) {
			for range n {
				r.q.Post(&p)
			}
			r.q.Flush()
		}
		post(10) // 9 asks
		post(22) // 25 and 31 ask
		r.nic.put(sent(31))
		r.q.Reclaim()
		post(50)                // 47, 63, 79 and 81 ask
		r.nic.put(sent(64 + 9)) // in the slot of 9
		if r.q.Reclaim() != 0 || r.starts != 1 {
			t.Errorf("taken for true, %d resets", r.starts)
		}
	})
	t.Run("twice", func(t *testing.T) {
		r := newTxRig(t, 64, 128<<10, defaultLimits)
		r.post(t, &p)
		r.nic.put(sent(0))
		r.nic.put(sent(0))
		if r.q.Reclaim() != 1 || r.starts != 1 {
			t.Errorf("%d resets", r.starts)
		}
	})
	t.Run("not rung", func(t *testing.T) {
		r := newTxRig(t, 64, 128<<10, defaultLimits)
		for range 16 {
			r.q.Post(&p)
		}
		r.nic.put(sent(15))
		if r.q.Reclaim() != 0 || r.starts != 1 {
			t.Errorf("taken for true, %d resets", r.starts)
		}
	})
}

// A completion ahead of the error in the same batch still counts as sent.
func TestTxRecoveryAfterSuccess(t *testing.T) {
	r := newTxRig(t, 64, 128<<10, defaultLimits)
	p := TxPacket{Bufs: [][]byte{make([]byte, 200)}}
	for range 5 {
		r.post(t, &p)
	}
	r.nic.put(sent(2))
	r.nic.put(failed(0xd0, 0x04, 3))
	if n := r.q.Reclaim(); n != 3 {
		t.Errorf("%d packets done, want 3", n)
	}
	if s := r.q.Stats(); s.Drops.Lost != 2 {
		t.Errorf("%d lost, want 2", s.Drops.Lost)
	}
}

// Errors without one success between them are borne for a while, at a rate that costs little, and
// then fail the device.
func TestTxHopeless(t *testing.T) {
	r := newTxRig(t, 64, 128<<10, defaultLimits)
	clock := newFakeClock()
	r.q.recovery.now = clock.now
	p := TxPacket{Bufs: [][]byte{make([]byte, 60)}}
	start, early := clock.at, 0
	for r.failure == nil && clock.at.Sub(start) < time.Hour {
		if err := r.q.Post(&p); err != nil && !errors.Is(err, ErrRingFull) {
			t.Fatal(err)
		}
		r.q.Flush()
		if r.q.signals.isClear() {
			r.nic.put(failed(0xd0, 0x04, uint16(r.q.last)))
		}
		r.q.Reclaim()
		if clock.add(time.Millisecond); clock.at.Sub(start) == consecutiveResetsTime {
			early = r.starts
		}
	}
	if took := clock.at.Sub(start); took <= consecutiveResetsTime ||
		took > 2*consecutiveResetsTime {
		t.Errorf("given up after %v", took)
	}
	if most := int(consecutiveResetsTime / longestPause); early <= maxConsecutiveResets ||
		early > most+20 {
		t.Errorf("%d resets in the first %v, want %d at most", early,
			consecutiveResetsTime, most+20)
	}
	if err := r.q.Post(&p); !errors.Is(err, ErrFailed) {
		t.Errorf("post: %v", err)
	}
}

// A ring that is not full and stands still is replaced by Check alone; an idle one never is, nor
// one that moves.
func TestTxCheckStuck(t *testing.T) {
	r := newTxRig(t, 64, 128<<10, defaultLimits)
	clock := newFakeClock()
	r.q.recovery.now = clock.now
	p := TxPacket{Bufs: [][]byte{make([]byte, 200)}}
	r.post(t, &p)
	if !r.q.Check() {
		t.Error("nothing to look after with a packet on its way")
	}
	r.nic.put(sent(0))
	if clock.add(txTimeout); r.q.Check() {
		t.Error("still to be looked after when all is sent")
	}
	clock.add(time.Hour) // idle
	r.post(t, &p)
	for range int(txTimeout / (100 * time.Millisecond)) {
		r.q.Check()
		clock.add(100 * time.Millisecond)
	}
	if r.starts != 0 {
		t.Fatal("replaced too early")
	}
	clock.add(200 * time.Millisecond)
	r.q.Check()
	r.q.Check()
	if s := r.q.Stats(); r.starts != 1 || s.Drops.Lost != 1 || r.q.Free() != 64 {
		t.Errorf("%d replacements, %d packets lost", r.starts, s.Drops.Lost)
	}
}

// Check shows what a flush and a reclaim leave for later.
func TestTxCheckShows(t *testing.T) {
	r := newTxRig(t, 64, 128<<10, defaultLimits)
	p := TxPacket{Bufs: [][]byte{make([]byte, 60)}}
	for i := range 3 {
		r.post(t, &p)
		r.nic.put(sent(uint16(2 * i)))
	}
	r.q.Check()
	if s := r.q.Stats(); s.Packets != 3 || s.Doorbells != 3 || s.Completions != 3 || s.Inline != 3 {
		t.Errorf("stats %+v", s)
	}
}

// What is posted while a reset is put off counts as posted, though there is no doorbell for it: the
// device may be closed before that comes.
func TestTxFlushPutOff(t *testing.T) {
	r := newTxRig(t, 64, 128<<10, defaultLimits)
	r.q.signals.raiseBits(signalReset)
	r.post(t, &TxPacket{Bufs: [][]byte{make([]byte, 60)}})
	if s := r.q.Stats(); s.Packets != 1 || r.q.count.doorbells.n != 0 {
		t.Errorf("stats %+v, %d doorbells", s, r.q.count.doorbells.n)
	}
}

// A full ring that the NIC does not move for long is replaced; one that moves
// is not.
func TestTxStuck(t *testing.T) {
	r := newTxRig(t, 64, 128<<10, defaultLimits)
	now := time.Unix(1000, 0)
	r.q.recovery.now = func() time.Time { return now }
	p := TxPacket{Bufs: [][]byte{make([]byte, 200)}}
	fill := func() {
		for r.q.Post(&p) == nil {
		}
		r.q.Flush()
	}
	fill()
	now = now.Add(txTimeout - 1)
	fill()
	r.nic.put(sent(15))
	r.q.Reclaim()
	now = now.Add(txTimeout)
	fill()
	fill()
	if r.q.Reclaim(); r.starts != 0 {
		t.Fatal("a queue that moved was replaced")
	}
	now = now.Add(txTimeout + 1)
	fill()
	if r.q.Reclaim(); r.starts != 1 || r.q.Free() != 64 {
		t.Fatalf("%d replacements, %d blocks free", r.starts, r.q.Free())
	}
	if s := r.q.Stats(); s.Stalls == 0 || s.Resets != 1 {
		t.Errorf("stats %+v", s)
	}
}

// The NIC writes whatever it likes into the completion ring.
func FuzzTxCompletions(f *testing.F) {
	f.Add(sent(0)[:])
	f.Add(append(sent(2)[:], failed(0xd0, 0x04, 4)[:]...))
	f.Add(receive(0, 60)[:])
	f.Add(sent(0xffff)[:])
	r := newTxRig(f, 64, 128<<10, defaultLimits)
	p := TxPacket{Bufs: [][]byte{make([]byte, 60)}}
	f.Fuzz(func(t *testing.T, stream []byte) {
		for len(stream) > 0 {
			var cqe [64]byte
			stream = stream[copy(cqe[:], stream):]
			if f, ok := r.pool.Get(); !ok || r.q.PostFrame(f, 0, 200, 0) != nil {
				t.Fatal("no room: something was not freed")
			}
			if err := r.q.Post(&p); err != nil {
				t.Fatal(err)
			}
			r.q.Flush()
			r.nic.put(&cqe)
			r.q.Reclaim()
			if free := r.q.Free(); free < 0 || free > 64 {
				t.Fatalf("%d blocks free", free)
			}
			r.nic.put(sent(uint16(r.q.last)))
			r.q.Reclaim()
			r.q.Reclaim()
			if r.q.cc != r.q.pc { // the first was taken for something else
				r.q.resetQueue("test")
			}
			r.failure, r.q.recovery = nil, newRecovery(clock.Clock{})
			r.q.signals.bits.Store(0)
		}
		if r.pool.Free() != r.pool.Frames() {
			t.Fatalf("%d of %d frames in the pool", r.pool.Free(), r.pool.Frames())
		}
	})
}

// stampNoter represents a Stamper that notes what it is told.
type stampNoter []uint64

func (s *stampNoter) Stamp(ticks uint64) { *s = append(*s, ticks) }

// TestTxStampsLost: a packet that is lost with its queue has no stamp, and those that ask later
// have theirs. Neither asking nor stamping allocates.
func TestTxStampsLost(t *testing.T) {
	r := newTxRig(t, 64, 128<<10, defaultLimits)
	got := make(stampNoter, 0, 1000)
	p := TxPacket{Bufs: [][]byte{make([]byte, 60)}, Flags: TxStamp, Stamper: &got}
	r.post(t, &p)
	r.post(t, &p)
	r.nic.put(failed(0xd0, 0x04, 0))
	if r.q.Reclaim(); r.starts != 1 || len(got) != 2 || got[0] != 0 || got[1] != 0 {
		t.Fatalf("%d starts, stamps %d", r.starts, got)
	}
	got = got[:0]
	r.q.Post(&p) // which has a completion of its own, though others are behind it
	r.q.Post(&p)
	r.q.Flush()
	for i := range 2 {
		cqe := sent(uint16(2 * i))
		cqe[0x37] = byte(7 + i)
		r.nic.put(cqe)
		if r.q.Reclaim(); r.starts != 1 || len(got) != i+1 || got[i] != uint64(7+i) {
			t.Fatalf("%d starts, stamps %d", r.starts, got)
		}
	}
	got = got[:0]
	at := uint16(4)
	if n := testing.AllocsPerRun(20, func() {
		r.q.Post(&p)
		r.q.Flush()
		cqe := sent(at)
		cqe[0x37] = byte(at)
		r.nic.put(cqe)
		r.q.Reclaim()
		at += 2
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
	if len(got) != 21 || got[0] != 4 || got[20] != 44 {
		t.Errorf("stamps %d", got)
	}
	if err := r.q.PostFrame(0, 0, 60, TxStamp); !errors.Is(err, ErrNotSupported) {
		t.Errorf("a frame of the pool: %v", err)
	}
}
