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
					checkWindows(t, bps, sendAlways(bps/8, 50*time.Millisecond, onTime))
				}
			})
		}
	}
}

// TestStreamLate: timers that come late by up to 10 ms do not lower the rate of a second, and those
// that are late by little not that of any 10 ms.
func TestStreamLate(t *testing.T) {
	for _, late := range lateness {
		for _, rate := range []uint64{1e6, 1e7, 1e8, 1e9, 1e10} {
			windows := sendAlways(rate/8, time.Second, func() time.Duration { return late })
			if late <= Fine/4 {
				checkWindows(t, rate, windows)
			}
			checkSecond(t, rate, late, windows)
		}
	}
}

// lateness lists by how much timers of tests come late.
var lateness = []time.Duration{Fine / 4, Fine / 2, Fine, 300 * time.Microsecond, time.Millisecond,
	5 * time.Millisecond, mostLate}

// checkSecond tells whether a second has had the rate within 2 %, a segment and what the last timer
// was late by, and each window of 10 ms within what timers were late by and a quantum.
func checkSecond(t *testing.T, bps uint64, late time.Duration, windows []int) {
	t.Helper()
	total, want := 0, float64(bps)/8*window.Seconds()
	most := float64(bps)/8*(late+Fine).Seconds()*1.001 + segment + headers
	for i, n := range windows {
		if total += n; max(float64(n)-want, want-float64(n)) > most {
			t.Errorf("%d bit/s, late by %v: %d bytes in window %d, want %.0f, give or take %.0f",
				bps, late, n, i, want, most)
		}
	}
	want *= float64(len(windows))
	slack := 0.02*want + segment + headers + float64(bps)/8*late.Seconds()
	if off := max(float64(total)-want, want-float64(total)); off > slack {
		t.Errorf("%d bit/s, late by %v: %d bytes in a second, want %.0f", bps, late, total, want)
	}
}

// TestStreamRest: a writer that has nothing for a while has no claim to that time, nor to more than
// the pause left of what timers were late by.
func TestStreamRest(t *testing.T) {
	for each, makesUp := range map[time.Duration]time.Duration{Fine: mostLate, Coarse: Coarse} {
		s := NewStream(1e9, segment, headers, each)
		burst := func(now time.Duration) (sent int) {
			for {
				n, _ := admit(&s, now, 0)
				if n == 0 {
					return sent
				}
				s.Wrote(n)
				sent += n + n/segment*headers
			}
		}
		quantum := int(1e9*each.Seconds()) + segment + headers
		for now := time.Duration(0); now < 10*time.Second; now += time.Second {
			if n := burst(now); n > quantum {
				t.Errorf("a quantum of %v: %d bytes after a rest, want %d at most", each, n,
					quantum)
			}
			s.Rest()
		}
		burst(10 * time.Second)
		most := int(1e9*(makesUp+each).Seconds()) + segment + headers
		if n := burst(11 * time.Second); n > most || n < most/2 {
			t.Errorf("a quantum of %v: %d bytes after a timer late by 1 s, want %d", each, n, most)
		}
		n, _ := admit(&s, 12*time.Second, 0)
		s.Wrote(n)
		s.Rest()
		if n := burst(13 * time.Second); n > quantum {
			t.Errorf("a quantum of %v: %d bytes after a rest behind a timer that was late, want "+
				"%d at most", each, n, quantum)
		}
	}
}

// TestStreamLooks: the unsent bytes are asked for once for each quantum that the rate allows, also
// where it is written in pieces, and not while the rate allows none.
func TestStreamLooks(t *testing.T) {
	s := NewStream(1e6, segment, headers, Coarse)
	looks, quanta, now := 0, 0, time.Duration(0)
	unsent := func() int { looks++; return 0 }
	for quanta < 100 {
		if n := s.Allowed(); n > 0 {
			s.Wrote(min(n, 100))
			continue
		}
		n, wait := s.Admit(now, unsent)
		if n > 0 {
			quanta++
		}
		now += wait
	}
	if looks != quanta {
		t.Errorf("%d looks for %d quanta", looks, quanta)
	}
}

// admit returns what may be written at now, or else for how long to wait.
func admit(s *Stream, now time.Duration, unsent int) (bytes int, wait time.Duration) {
	if n := s.Allowed(); n > 0 {
		return n, 0
	}
	return s.Admit(now, func() int { return unsent })
}

// sendAlways returns the bytes of frames in each window, of a writer whose timers come late by what
// late returns.
func sendAlways(rate uint64, d time.Duration, late func() time.Duration) []int {
	s := NewStream(rate, segment, headers, Fine)
	windows := make([]int, d/window)
	for now := time.Duration(0); now < d; {
		n, wait := admit(&s, now, 0)
		if n == 0 {
			now += wait + late()
			continue
		}
		n = min(n, 44*segment) // a packet
		s.Wrote(n)
		windows[now/window] += n + n/segment*headers
	}
	return windows
}

const window = 10 * time.Millisecond

func onTime() time.Duration { return 0 }

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
