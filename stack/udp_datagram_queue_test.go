package stack

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"
)

// TestDatagramQueue compares a queue with a slice, in random order of calls.
func TestDatagramQueue(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	var s datagramQueue
	type item struct {
		port    uint16
		payload []byte
	}
	var want []item
	sizes := []int{0, 1, 64, 1500, blockBytes - 1, blockBytes}
	for step := range 20000 {
		if random.IntN(2*len(want)+2) < len(want) {
			l, payload := s.next()
			if l.port != want[0].port || !bytes.Equal(payload, want[0].payload) {
				t.Fatalf("step %d: got %d bytes from port %d, want %d from %d", step, len(payload),
					l.port, len(want[0].payload), want[0].port)
			}
			s.drop()
			want = want[1:]
		} else {
			b := bytes.Repeat([]byte{byte(step)}, sizes[random.IntN(len(sizes))])
			s.add(&datagramMeta{port: uint16(step)}, b)
			want = append(want, item{uint16(step), b})
		}
		if (s.first == nil) != (len(want) == 0) || (s.last == nil) != (len(want) == 0) {
			t.Fatalf("step %d: %d datagrams are left", step, len(want))
		}
	}
}
