package filter

import "testing"

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
