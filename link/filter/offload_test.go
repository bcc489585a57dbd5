package filter

import (
	"math/rand/v2"
	"testing"
)

// TestSampledFloodStays: of a flood that something ahead of the filter drops without counting, the
// part that comes all the same keeps it dropped there, until the flood is over.
func TestSampledFloodStays(t *testing.T) {
	f, c := newTimedFilter(t, "chain input { ip saddr 203.0.113.0/24 drop; }")
	const rate, oneIn = 100_000, 1 << 10
	var b Batch
	comes := func(n int) (ahead int) {
		b.Begin(f)
		for range n {
			if b.Receive(syn("203.0.113.7")) == "" {
				t.Fatal("it is let in")
			}
		}
		b.End()
		c.Advance(aging)
		all, _ := f.Busiest()
		return len(all)
	}
	for _, first := range []int{worth * sampledDrops, rate} {
		if comes(first) == 0 {
			t.Fatalf("%d packets a second are not dropped ahead of the filter", first)
		}
		for second := range 300 {
			if comes(rate/oneIn) == 0 {
				t.Fatalf("second %d: the flood comes to the filter again", second)
			}
		}
		for second := 0; comes(0) != 0; second++ {
			if second == 120 {
				t.Fatal("two minutes behind the flood it is still looked for")
			}
		}
	}
}

// TestUncountedFloodStays: a flood that something ahead of the filter drops and does not count
// comes to the filter more and more seldom.
func TestUncountedFloodStays(t *testing.T) {
	f, c := newTimedFilter(t, "chain input { ip saddr 203.0.113.0/24 drop; }")
	var b Batch
	ask := func() (ahead, more bool) {
		c.Advance(aging)
		all, more := f.Busiest()
		return len(all) > 0, more
	}
	ahead, came := false, 0
	for range 3600 {
		if !ahead {
			came++
			b.Begin(f)
			for range 10_000 {
				b.Receive(syn("203.0.113.7"))
			}
			b.End()
		}
		ahead, _ = ask()
	}
	if came > 8 {
		t.Errorf("in an hour it came to the filter for %d seconds", came)
	}
	for range 3 * lastHold {
		if _, more := ask(); !more {
			return
		}
	}
	t.Error("the flood is over, and still looked for")
}

// TestSampledBySource: whatever comes in a batch, the packets that rules drop are counted by ranges
// of sources, each about as often as it sends, and none twice.
func TestSampledBySource(t *testing.T) {
	const text = "chain input { ip saddr { 10.0.0.0/8, 198.51.100.0/24, 203.0.113.7 } drop; " +
		"ip6 saddr { 2001:db8::/32, 2001:db9::1:0/112 } drop; }"
	from := [][]byte{syn("10.1.2.3"), syn("198.51.100.255"), syn("203.0.113.7"),
		packet("2001:db8:ffff::1", "2001:db8::10", protoTCP, flagSYN, 4000, 80),
		packet("2001:db9::1:ffff", "2001:db8::10", protoUDP, 0, 4000, 53)}
	for _, size := range []int{1, 5, 64, 300} {
		f := newFilter(t, text)
		r := rand.New(rand.NewPCG(36, uint64(size)))
		var sent [5]uint64
		all := uint64(0)
		var b Batch
		for range 2_000_000 / size {
			b.Begin(f)
			for range size {
				i := min(r.IntN(10), r.IntN(5))
				if b.Receive(from[i]) == "" {
					t.Fatalf("%x is let in", from[i])
				}
				sent[i]++
				all++
			}
			b.End()
		}
		spans := f.current.Load().spans
		sum := uint64(b.drops)
		for i, want := range sent {
			got := spans[i/3].all[i%3].n.Load()
			if sum += got; got < want*8/10 || got > want*12/10 {
				t.Errorf("batches of %d: %d packets of %x count %d", size, want, from[i], got)
			}
		}
		if c := f.Status().Chains[0]; sum != all || c.Rules[0].Packets+c.Rules[1].Packets != all {
			t.Errorf("batches of %d: %d packets count %d by source, by rule %d and %d", size, all,
				sum, c.Rules[0].Packets, c.Rules[1].Packets)
		}
	}
}
