package dv_test

import (
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
)

// No wake-up is ever missed: frames come at any moment of the owner's way
// through Poll, Arm, Poll and Wait, and each is there in the end, without
// another one having to come first.
func TestWaitMissesNothing(t *testing.T) {
	s, d := usual(t, dv.Config{NIC: dv.NIC{RxQueues: 2, Rings: dv.Rings{RxQueueSize: 64}}})
	rng := rand.New(rand.NewPCG(seed(t), 1))
	var received atomic.Int64
	var owners sync.WaitGroup
	for i := range d.NumRx() {
		owners.Go(func() { serve(d.Rx(i), &received) })
	}
	const rounds = 1000
	for i := range rounds {
		f := flows(i)["UDP over IPv4"]
		s.wire.send(t, packet(f.Src, f.Dst, 17, 10))
		if rng.IntN(3) > 0 { // else the next one comes at once
			eventually(t, "reception", func() bool { return received.Load() > int64(i) })
		}
		spin(rng.IntN(2000))
	}
	eventually(t, "reception of all", func() bool { return received.Load() == rounds })
	d.Stop()
	owners.Wait()
	var events, arms uint64
	for _, q := range d.Stats().Rx {
		events, arms = events+q.Events, arms+q.Arms
	}
	if events == 0 || arms < events {
		t.Errorf("%d events, %d arms: the owners never slept", events, arms)
	}
	if c := s.nic.Counters(); c.CQEvents < events {
		t.Errorf("%d events came, the NIC sent %d", events, c.CQEvents)
	}
}

// serve is the loop of a queue's owner, until the device is stopped.
func serve(q *dv.RxQueue, received *atomic.Int64) {
	pkts := make([]dv.Packet, 8)
	for {
		n := q.Poll(pkts)
		if n == 0 {
			q.Arm()
			if n = q.Poll(pkts); n == 0 {
				if q.Wait() != nil {
					return
				}
			}
		}
		q.Release(pkts[:n])
		received.Add(int64(n))
	}
}

// spin passes a little time without the scheduler.
func spin(n int) {
	var x atomic.Int64
	for range n {
		x.Add(1)
	}
}

func seed(t *testing.T) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("TEST_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	t.Logf("TEST_SEED=%d", seed)
	return seed
}

func TestWake(t *testing.T) {
	_, d := usual(t, dv.Config{})
	q := d.Rx(0)
	q.Wake()
	q.Wake()
	if err := q.Wait(); err != nil { // woken ahead
		t.Fatal(err)
	}
	returned := make(chan error)
	for range 100 {
		go func() { returned <- q.Wait() }()
		q.Wake()
		if err := <-returned; err != nil {
			t.Fatal(err)
		}
	}
	if s := q.Stats(); s.Wakes < 101 || s.Events != 0 {
		t.Errorf("stats %+v", s)
	}
}

// Armed twice before the event, woken in between: the event still comes, and
// the request after it counts.
func TestArmAgain(t *testing.T) {
	s, d := usual(t, dv.Config{})
	q := d.Rx(0)
	f := frame(ourMAC, peerMAC, 0x88b5, 60)
	for round := range 20 {
		q.Arm()
		q.Wake()
		q.Wait()
		q.Arm()
		s.wire.send(t, f)
		if err := q.Wait(); err != nil {
			t.Fatal(err)
		}
		if n := len(poll(q)); n != 1 {
			t.Fatalf("round %d: %d frames", round, n)
		}
	}
	if st := q.Stats(); st.Events != 20 || st.Arms != 40 {
		t.Errorf("stats %+v", st)
	}
}

// An owner whose frames are all on their way out is not put to sleep for good.
func TestWaitWithoutBuffers(t *testing.T) {
	s, d := usual(t, dv.Config{NIC: dv.NIC{Rings: dv.Rings{RxQueueSize: 64}},
		Tuning: dv.Tuning{SpareFrames: 1}})
	rx, tx := d.Rx(0), d.Tx(0)
	f := frame(ourMAC, peerMAC, 0x88b5, 60)
	pkts := make([]dv.Packet, 128)
	var held []dv.Frame
	for range 2 { // the second round is for the spare frame
		for range 64 {
			s.wire.send(t, f)
		}
		for _, p := range pkts[:rx.Poll(pkts)] {
			held = append(held, p.Frame)
		}
	}
	rx.Arm()
	if err := rx.Wait(); err != nil { // parked for good, if it were parked
		t.Fatal(err)
	}
	for _, f := range held {
		if err := tx.PostFrame(f, 0, 60, 0); err != nil {
			t.Fatal(err)
		}
	}
	tx.Flush()
	tx.Reclaim()
	if rx.Refill() == 0 {
		t.Fatal("no frame came back")
	}
	s.wire.send(t, f)
	if err := rx.Wait(); err != nil || rx.Stats().Events != 1 {
		t.Fatal(err)
	}
	if n := len(poll(rx)); n != 1 {
		t.Errorf("%d frames, want 1", n)
	}
}

// Whatever syndrome receive descriptors fail with, the queue comes back by
// itself, counted, and frames go on.
func TestRxRecovery(t *testing.T) {
	for _, syndrome := range []uint8{0x01, 0x02, 0x04, 0x05, 0x11, 0x77} {
		t.Run(strconv.FormatUint(uint64(syndrome), 16), func(t *testing.T) {
			s, d := usual(t, dv.Config{NIC: dv.NIC{Rings: dv.Rings{RxQueueSize: 64}},
				Tuning: dv.Tuning{SpareFrames: 8}})
			q := d.Rx(0)
			f := frame(ourMAC, peerMAC, 0x88b5, 100)
			for round := range 5 {
				s.wire.send(t, f)
				s.nic.SetHooks(&simnic.Hooks{
					Deliver: func(*simnic.RQ) (bool, uint8, uint8) { return false, syndrome, 0 }})
				s.wire.send(t, f)
				s.nic.SetHooks(nil)
				s.wire.send(t, f) // to a ready queue with 0x01 only
				before := len(poll(q))
				s.wire.send(t, f, f)
				after := len(poll(q))
				if want := map[bool]int{true: 2, false: 1}[syndrome == 1]; before != want ||
					after != 2 {
					t.Fatalf("round %d: %d frames around the error and %d after it, want %d and 2",
						round, before, after, want)
				}
			}
			q.Refill()
			st := q.Stats()
			if resets := map[bool]uint64{true: 0, false: 5}[syndrome == 1]; st.Resets != resets {
				t.Errorf("%d resets, want %d", st.Resets, resets)
			}
			if dropped := st.Drops.TooLong + st.Drops.Error + st.Drops.Flushed; dropped < 5 {
				t.Errorf("drops %+v", st.Drops)
			}
			if free := d.Pool().Free(); free != 8 {
				t.Errorf("%d frames in the pool, want 8", free)
			}
		})
	}
}

// A reset keeps the wake-up protocol alive.
func TestRxRecoveryWhileWaiting(t *testing.T) {
	s, d := usual(t, dv.Config{})
	var received atomic.Int64
	var owners sync.WaitGroup
	owners.Go(func() { serve(d.Rx(0), &received) })
	f := frame(ourMAC, peerMAC, 0x88b5, 100)
	for i := range 10 {
		s.nic.SetHooks(&simnic.Hooks{
			Deliver: func(*simnic.RQ) (bool, uint8, uint8) { return false, 4, 0 }})
		s.wire.send(t, f)
		s.nic.SetHooks(nil)
		eventually(t, "reset", func() bool { return d.Rx(0).Stats().Resets == uint64(i+1) })
		s.wire.send(t, f)
		eventually(t, "reception after the reset",
			func() bool { return received.Load() == int64(i+1) })
	}
	d.Stop()
	owners.Wait()
}

// Whatever syndrome a send descriptor fails with, the queue is replaced,
// frames in flight come back, the loss is counted, and sending goes on.
func TestTxRecovery(t *testing.T) {
	for _, syndrome := range []uint8{0x01, 0x02, 0x04, 0x11} {
		t.Run(strconv.FormatUint(uint64(syndrome), 16), func(t *testing.T) {
			s, d := usual(t, dv.Config{NIC: dv.NIC{Rings: dv.Rings{TxQueueSize: 64}},
				Tuning: dv.Tuning{NoMultiPacketSend: true}})
			q := d.Tx(0)
			f := frame(peerMAC, ourMAC, 0x88b5, 200)
			p := dv.TxPacket{Bufs: [][]byte{f}}
			for round := range 5 {
				sent := 0
				s.nic.SetHooks(&simnic.Hooks{SendWQE: func(*simnic.SQ, uint16) (uint8, uint8) {
					if sent++; sent <= 2 {
						return 0, 0
					}
					return syndrome, 0
				}})
				for range 2 {
					q.Post(&p)
				}
				q.Flush()
				frameOut, _ := d.Pool().Get()
				copy(d.Pool().Bytes(frameOut), f)
				if err := q.PostFrame(frameOut, 0, len(f), 0); err != nil {
					t.Fatal(err)
				}
				for range 3 {
					q.Post(&p)
				}
				q.Flush()
				s.nic.SetHooks(nil)
				if n := len(s.wire.drain()); n != 2 {
					t.Fatalf("round %d: %d frames sent before the error, want 2", round, n)
				}
				q.Reclaim()
				if q.Free() != 64 || d.Pool().Free() != 256 {
					t.Fatalf("round %d: %d blocks and %d frames free", round, q.Free(),
						d.Pool().Free())
				}
				for range 3 {
					q.Post(&p)
				}
				q.Flush()
				if n := len(s.wire.drain()); n != 3 {
					t.Fatalf("round %d: %d frames sent after it, want 3", round, n)
				}
				if n := q.Reclaim(); n != 3 {
					t.Fatalf("round %d: %d done, want 3", round, n)
				}
			}
			if st, n := q.Stats(),
				s.linux.Refused(); st.Resets != 5 || st.Drops.Lost != 20 || n != 0 {
				t.Errorf("%d refused commands in the kernel's log, stats %+v", n, st)
			}
		})
	}
}

// A doorbell that gets lost is made up for by the next one; completions that
// get lost by later ones.
func TestTxLosses(t *testing.T) {
	s, d := usual(t, dv.Config{NIC: dv.NIC{Rings: dv.Rings{TxQueueSize: 64}},
		Tuning: dv.Tuning{NoMultiPacketSend: true}})
	q := d.Tx(0)
	p := dv.TxPacket{Bufs: [][]byte{frame(peerMAC, ourMAC, 0x88b5, 200)}}
	var n atomic.Int64
	odd := func() bool { return n.Add(1)%2 == 1 }
	s.nic.SetHooks(&simnic.Hooks{Doorbell: func(*simnic.SQ) bool { return odd() }})
	for range 100 {
		for q.Post(&p) != nil {
			q.Reclaim()
		}
		q.Flush()
	}
	if got := len(s.wire.drain()); got != 100 {
		t.Errorf("%d frames with every other doorbell lost", got)
	}
	s.nic.SetHooks(&simnic.Hooks{Complete: func(*simnic.CQ) (bool, bool) { return odd(), false }})
	for range 100 {
		for q.Post(&p) != nil {
			q.Reclaim()
		}
		q.Flush()
	}
	if got := len(s.wire.drain()); got != 100 {
		t.Errorf("%d frames with every other completion lost", got)
	}
	if st := q.Stats(); st.Resets != 0 {
		t.Errorf("stats %+v", st)
	}
}
