package pacing

import (
	"fmt"
	"testing"
	"time"
)

const segment, headers = 1448, 66

// TestStream: writers that always have more keep to their rates within 2 % and a segment in any 10
// ms, however many there are.
func TestStream(t *testing.T) {
	for _, n := range []int{1, 16, 128} {
		for _, rate := range []uint64{1e6, 1e7, 1e8, 1e9, 1e10} { // bits per second
			t.Run(fmt.Sprintf("%d of %d bit/s", n, rate), func(t *testing.T) {
				for i := range n {
					bps := rate + rate*uint64(i)/uint64(n)
					checkWindows(t, bps, sendAlways(bps/8, 50*time.Millisecond, 0))
				}
			})
		}
	}
}

// TestStreamLate: timers that come late do not lower the rate.
func TestStreamLate(t *testing.T) {
	checkWindows(t, 1e8, sendAlways(1e8/8, 50*time.Millisecond, 100*time.Microsecond))
}

// admit returns what may be written at now, or else for how long to wait.
func admit(s *Stream, now time.Duration, unsent int) (bytes int, wait time.Duration) {
	if n := s.Allowed(); n > 0 {
		return n, 0
	}
	return s.Admit(now, unsent)
}

// sendAlways returns the bytes of frames in each 10 ms, of a writer whose timers come late by late.
func sendAlways(rate uint64, d, late time.Duration) []int {
	s := NewStream(rate, segment, headers, Fine)
	windows := make([]int, d/(10*time.Millisecond))
	for now := time.Duration(0); now < d; {
		n, wait := admit(&s, now, 0)
		if n == 0 {
			now += wait + late
			continue
		}
		n = min(n, 44*segment) // a packet
		s.Wrote(n)
		windows[now/(10*time.Millisecond)] += n + n/segment*headers
	}
	return windows
}

func checkWindows(t *testing.T, bps uint64, windows []int) {
	t.Helper()
	want := float64(bps) / 8 / 100
	for i, n := range windows {
		if off := max(float64(n)-want, want-float64(n)) - segment - headers; off > 0.02*want {
			t.Errorf("%d bit/s: %d bytes in window %d, want %.0f", bps, n, i, want)
		}
	}
}

// TestStreamStall: while the windows let nothing out no more is written, looks become rare, and
// what the rate allowed meanwhile is lost.
func TestStreamStall(t *testing.T) {
	const rate = 1_250_000 // a segment in about 1.2 ms
	s := NewStream(rate, segment, headers, Fine)
	now, written := time.Duration(0), 0
	var pauses []time.Duration
	for now < time.Second {
		n, wait := admit(&s, now, written)
		if n > 0 {
			s.Wrote(n)
			written += n
			continue
		}
		if s.Stalled() {
			pauses = append(pauses, wait)
		}
		now += wait
	}
	if most := rate/100 + segment; written > most {
		t.Errorf("%d bytes written that cannot leave, want %d at most", written, most)
	}
	ms := time.Millisecond
	for i, want := range []time.Duration{ms, 2 * ms, 4 * ms, 8 * ms, 16 * ms, 32 * ms, 64 * ms,
		64 * ms} {
		if pauses[i] != want {
			t.Errorf("look %d after %v, want %v", i, pauses[i], want)
		}
	}
	written = 0
	for end := now + 100*ms; now < end; {
		n, wait := admit(&s, now, 0)
		s.Wrote(n)
		written += n
		now += wait
	}
	if most := rate/10 + segment; s.Stalled() || written > most {
		t.Errorf("%d bytes in the 100 ms after the stall, want %d at most", written, most)
	}
}
