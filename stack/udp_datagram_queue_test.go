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
	several := func(step int) (l *datagramMeta, payloads [][]byte) {
		size := max(1, sizes[random.IntN(len(sizes))])
		for i := range 1 + random.IntN(maxJoined) {
			payloads = append(payloads, bytes.Repeat([]byte{byte(step + i)}, size))
		}
		last := &payloads[len(payloads)-1]
		*last = (*last)[:1+random.IntN(size)]
		return &datagramMeta{port: uint16(step)}, payloads
	}
	for step := range 20000 {
		if len(want) > 200 || random.IntN(2*len(want)+2) < len(want) {
			l, payload := s.next()
			if l.port != want[0].port || !bytes.Equal(payload, want[0].payload) {
				t.Fatalf("step %d: got %d bytes from port %d, want %d from %d", step, len(payload),
					l.port, len(want[0].payload), want[0].port)
			}
			if n := random.IntN(4*len(payload) + 1); len(payload) > 0 && n > len(payload) {
				all := s.nextWithin(n)
				s.dropBytes(len(all))
				for ; len(all) > 0; want = want[1:] {
					if !bytes.HasPrefix(all, want[0].payload) || len(want[0].payload) == 0 ||
						l.port != want[0].port {
						t.Fatalf("step %d: got %d bytes, want %d first", step, len(all),
							len(want[0].payload))
					}
					all = all[len(want[0].payload):]
				}
				continue
			}
			s.drop()
			want = want[1:]
		} else if random.IntN(4) == 0 {
			l, payloads := several(step)
			s.addSegments(l, payloads)
			for _, b := range payloads {
				want = append(want, item{uint16(step), b})
			}
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
