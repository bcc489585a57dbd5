package dv_test

import (
	"encoding/binary"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv"
	simframe "github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

// Weights decide how many flows a queue gets, and QueueFor knows where each
// goes; ARP and broadcast stay with queue 0.
func TestRebalance(t *testing.T) {
	s, d := usual(t, dv.Config{NIC: dv.NIC{RxQueues: 3}})
	for _, weights := range [][]int{{1, 1, 1}, {0, 1, 3}, {5, 0, 0}, {0, 0, 1}, {1, 2, 1}} {
		if err := d.Rebalance(weights); err != nil {
			t.Fatalf("%v: %v", weights, err)
		}
		var got [3]int
		for i := range 60 {
			for class, f := range flows(i) {
				b := packet(f.Src, f.Dst, f.Proto, 40)
				s.wire.send(t, b)
				q := d.QueueFor(f)
				if n := len(poll(d.Rx(q))); n != 1 {
					t.Fatalf("%v: %s: %d frames on queue %d", weights, class, n, q)
				}
				got[q]++
			}
		}
		for q, w := range weights {
			if (got[q] > 0) != (w > 0) {
				t.Errorf("%v: frames per queue %v", weights, got)
			}
		}
		s.wire.send(t, frame(ourMAC, peerMAC, 0x0806, 60), frame(broadcast, peerMAC, 0x0806, 60))
		if n := len(poll(d.Rx(0))); n != 2 {
			t.Errorf("%v: %d of 2 other frames on queue 0", weights, n)
		}
	}
}

// Frames that arrive while the table is replaced, again and again, come once.
func TestRebalanceLosesNothing(t *testing.T) {
	s, d := usual(t, dv.Config{NIC: dv.NIC{
		RxQueues: 2,
		Rings:    dv.Rings{RxQueueSize: 4096, TxQueueSize: 64},
	}})
	const total = 3000
	var sent atomic.Int32 // frames that are through the NIC
	f := flows(7)
	kinds := []string{"TCP over IPv4", "UDP over IPv6", "TCP over IPv6", "UDP over IPv4"}
	go func() {
		for i := range total {
			k := f[kinds[i%len(kinds)]]
			b := packet(k.Src, k.Dst, k.Proto, 40)
			binary.BigEndian.PutUint32(b[len(b)-4:], uint32(i))
			if n, err := s.wire.wire.Send(oneFrame(b)); n != 1 {
				t.Errorf("frame %d: %v", i, err)
			}
			sent.Add(1)
		}
	}()
	seen, got := make([]bool, total), 0
	changes, next := 0, int32(0)
	eventually(t, "all frames", func() bool {
		// A frame that was under way at one change must be through at the next:
		// the model's objects go at once, while silicon takes microseconds.
		if now := sent.Load(); now >= next {
			changes++
			if err := d.Rebalance([]int{changes % 2, 1}); err != nil {
				t.Fatal(err)
			}
			next = sent.Load() + 20
		}
		for q := range 2 {
			for _, p := range poll(d.Rx(q)) {
				i := binary.BigEndian.Uint32(p.Data[len(p.Data)-4:])
				if i >= total || seen[i] {
					t.Fatalf("frame %d came twice", i)
				}
				seen[i] = true
				got++
			}
		}
		return got == total || t.Failed()
	})
	t.Logf("%d changes", changes)
	if c := s.nic.Counters(); got != total || c.Drops.SteerMissed != 0 {
		t.Errorf("%d of %d frames came, drops %+v", got, total, c.Drops)
	}
}

func TestRebalanceRefused(t *testing.T) {
	s, d := usual(t, dv.Config{NIC: dv.NIC{RxQueues: 2}})
	for _, weights := range [][]int{nil, {1}, {0, 0}, {1, 2, 3}, {-1, 2}, {1 << 30, 1}} {
		if err := d.Rebalance(weights); !errors.Is(err, dv.ErrConfig) {
			t.Errorf("%v: %v", weights, err)
		}
	}
	f := flows(1)["TCP over IPv4"]
	s.wire.send(t, packet(f.Src, f.Dst, f.Proto, 40))
	if n := len(poll(d.Rx(d.QueueFor(f)))); n != 1 {
		t.Error("the table is not what it was")
	}
	d.Stop()
	if err := d.Rebalance([]int{1, 1}); !errors.Is(err, dv.ErrClosed) {
		t.Errorf("stopped: %v", err)
	}
}

func oneFrame(b []byte) []simframe.Frame { return []simframe.Frame{{Data: b}} }

// TestActiveRxQueues: flows come to the first queues only, until Rebalance says otherwise.
func TestActiveRxQueues(t *testing.T) {
	s, d := usual(t, dv.Config{NIC: dv.NIC{RxQueues: 4}, ActiveRxQueues: 2})
	for _, c := range []struct {
		weights []int
		want    [4]bool
	}{
		{nil, [4]bool{true, true}}, {[]int{1, 1, 1, 1}, [4]bool{true, true, true, true}},
		{[]int{1, 0, 0, 0}, [4]bool{true}},
	} {
		if c.weights != nil {
			if err := d.Rebalance(c.weights); err != nil {
				t.Fatal(err)
			}
		}
		active := 0
		for _, w := range c.want {
			if w {
				active++
			}
		}
		if st := d.Stats(); st.ActiveRxQueues != active || d.ActiveRxQueues() != active {
			t.Errorf("%v: %d queues are active, want %d", c.weights, st.ActiveRxQueues, active)
		}
		var got [4]bool
		for i := range 60 {
			for _, f := range flows(i) {
				s.wire.send(t, packet(f.Src, f.Dst, f.Proto, 40))
			}
			for q := range got {
				got[q] = len(poll(d.Rx(q))) > 0 || got[q]
			}
		}
		if got != c.want {
			t.Errorf("%v: queues with frames %v, want %v", c.weights, got, c.want)
		}
	}
	if n := d.Stats().Rebalances; n != 2 {
		t.Errorf("%d changes, want 2", n)
	}
}
