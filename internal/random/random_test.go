package random_test

import (
	"bytes"
	"errors"
	"testing"
	"testing/iotest"

	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
	"github.com/rdma-netstack/rdma-netstack/internal/random"
)

// draw has a source make one of everything.
func draw(s random.Source) (all []uint64) {
	b := make([]byte, 8)
	s.Read(b)
	k := s.HashKey()
	return append(all, uint64(b[0]), s.Uint64(), s.Rand().Uint64(), s.Stream().Uint64(),
		k.Bytes(b), k.Bytes(b[:3]))
}

// TestSeeded: a seed decides every kind of number, and the system's source repeats none.
func TestSeeded(t *testing.T) {
	seeded := func(seed uint64) []uint64 { return draw(random.From(clocktest.Random(seed))) }
	one, again, other := seeded(1), seeded(1), seeded(2)
	system, anew := draw(random.Source{}), draw(random.From(nil))
	for i := range one {
		if one[i] != again[i] {
			t.Errorf("number %d differs with one seed", i)
		}
		if i > 0 && (one[i] == other[i] || system[i] == anew[i]) {
			t.Errorf("number %d is the same with two seeds, or drawn twice", i)
		}
	}
	if random.From(nil).Seeded() || !random.From(clocktest.Random(1)).Seeded() {
		t.Error("Seeded is wrong")
	}
}

// TestReaderFails: the system's numbers take the place of a reader's that fails.
func TestReaderFails(t *testing.T) {
	b := make([]byte, 16)
	n, err := random.From(iotest.ErrReader(errors.New("broken"))).Read(b)
	if n != len(b) || err != nil || bytes.Equal(b, make([]byte, len(b))) {
		t.Errorf("read %d, %x, %v", n, b, err)
	}
}

// TestHash: the hash of either source depends on every byte, and its low and high bits are spread.
func TestHash(t *testing.T) {
	for name, s := range map[string]random.Source{
		"system": {}, "seeded": random.From(clocktest.Random(3)),
	} {
		k, b := s.HashKey(), make([]byte, 36)
		const n = 1 << 12
		var low, high [64]int
		for i := range n {
			b[i%len(b)]++
			h := k.Bytes(b)
			low[h%64]++
			high[h>>58]++
		}
		for i := range low {
			if low[i] < n/64/2 || high[i] < n/64/2 || low[i] > n/64*2 || high[i] > n/64*2 {
				t.Errorf("%s: %d and %d of %d in place %d of 64", name, low[i], high[i], n, i)
			}
		}
	}
}

func BenchmarkHash(b *testing.B) {
	var s random.Source
	k, tuple := s.HashKey(), make([]byte, 36)
	b.SetBytes(int64(len(tuple)))
	for b.Loop() {
		k.Bytes(tuple)
	}
}
