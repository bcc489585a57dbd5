package dv_test

import (
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
)

// A ring that the NIC has emptied is counted once for each time, also when it is
// polled in small batches, so that completions are always left; one with a
// descriptor left is not.
func TestStalls(t *testing.T) {
	alike := func(int) string { return "UDP over IPv4" }
	mixed := func(i int) string {
		if i/24%2 == 0 {
			return "UDP over IPv4"
		}
		return []string{"TCP over IPv4", "UDP over IPv6"}[i%2]
	}
	for _, tc := range []struct {
		name       string
		cfg        dv.Config
		flow       func(i int) string // of frame i; those alike are compressed
		compressed bool
	}{
		{"compressed", dv.Config{}, alike, true},
		{"compressed in part", dv.Config{}, mixed, true},
		{"not compressed", dv.Config{Tuning: dv.Tuning{NoCompression: true}}, mixed, false},
		{"several buffers, compressed", dv.Config{NIC: dv.NIC{MTU: 9000}}, alike, true},
		{"several buffers", dv.Config{NIC: dv.NIC{MTU: 9000},
			Tuning: dv.Tuning{NoCompression: true}}, alike, false},
	} {
		t.Run(tc.name, func(t *testing.T) { checkStalls(t, tc.cfg, tc.flow, tc.compressed) })
	}
}

func checkStalls(t *testing.T, cfg dv.Config, flow func(i int) string, compressed bool) {
	const ring, batch, rounds = 64, 16, 20
	cfg.Rings.RxQueueSize = ring
	s := newSim(t, simnic.Config{MTU: 9000}, kernel.Config{})
	q, sent, got := s.open(t, cfg).Rx(0), 0, 0
	send := func(n int) {
		var burst [][]byte
		for range n {
			f := flows(1)[flow(sent)]
			burst = append(burst, packet(f.Src, f.Dst, f.Proto, 20))
			sent++
		}
		s.sendBurst(t, burst)
	}
	take := func() {
		var pkts [batch]dv.Packet
		n := q.Poll(pkts[:])
		got += n
		q.Release(pkts[:n])
	}
	send(ring - 1)
	take()
	if n := q.Stats().Stalls; n != 0 {
		t.Errorf("%d stalls with a buffer left", n)
	}
	for round := range rounds {
		send(100)
		take()
		if n := q.Stats().Stalls; n != uint64(round+1) {
			t.Errorf("%d stalls in round %d", n, round+1)
		}
	}
	got += len(poll(q))
	if lost := s.nic.Counters().Drops.OutOfBuffer; lost < rounds ||
		uint64(got)+lost != uint64(sent) {
		t.Errorf("%d received and %d dropped of %d", got, lost, sent)
	}
	if n := q.Stats().Compressed; (n > 0) != compressed {
		t.Errorf("%d frames were compressed", n)
	}
}
