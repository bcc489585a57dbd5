package pacing

import (
	"testing"
	"time"
)

// send keeps a schedule busy from from to end, with pieces of n bytes, and returns the bytes sent.
// The timer of each wait comes late by late.
func send(s *Schedule, from, end, late time.Duration, n int) (sent int) {
	s.Begin(from)
	for now := from; now < end; {
		for s.Wait(now) <= 0 {
			s.Sent(n)
			sent += n
		}
		now += s.Wait(now) + late
		s.Resume(now)
	}
	return sent
}

// TestRate: what a busy schedule lets out is the rate, in any 10 ms within 2 % and one piece.
func TestRate(t *testing.T) {
	for _, bps := range []uint64{1e6, 3e6, 1e7, 1e8, 999_999_937, 1e9, 1e10} {
		for _, late := range []time.Duration{0, time.Microsecond, 300 * time.Microsecond,
			time.Millisecond} {
			s := NewSchedule(bps, 0)
			for at := time.Duration(0); at < time.Second; at += 100 * time.Millisecond {
				const span = 10 * time.Millisecond
				got := float64(send(&s, at, at+span, late, 1500))
				want := float64(bps) / 8 * span.Seconds()
				slack := want*0.02 + 1500 + float64(bps)/8*late.Seconds()
				if got < want-slack || got > want+slack {
					t.Errorf("%d bit/s, late by %v: %v bytes in %v, want %v", bps, late, got,
						span, want)
				}
			}
			if got, want := float64(send(&s, time.Second, 3*time.Second, late, 1500)),
				float64(bps)/8*2; late == 0 && (got < want-1500 || got > want+1500) {
				t.Errorf("%d bit/s: %v bytes in 2 s, want %v: an error adds up", bps, got, want)
			}
		}
	}
}

// TestBurst: after a pause the burst leaves at once, and no more of it however long the pause was.
func TestBurst(t *testing.T) {
	s := NewSchedule(8e6, 3000) // a byte takes 1 us
	for _, now := range []time.Duration{time.Second, time.Minute} {
		s.Begin(now)
		n := 0
		for ; s.Wait(now) <= 0; n++ {
			s.Sent(1000)
		}
		if n != 4 || s.Wait(now) != time.Millisecond {
			t.Errorf("at %v: %d pieces at once, then a wait of %v; want 4 and 1ms", now, n,
				s.Wait(now))
		}
	}
}

// TestNoRate: the zero value never waits.
func TestNoRate(t *testing.T) {
	s := NewSchedule(0, 100)
	s.Begin(time.Second)
	for range 10 {
		s.Sent(1 << 20)
	}
	if w := s.Wait(0); w > 0 || s.Limited() {
		t.Errorf("waits %v, limited %v", w, s.Limited())
	}
}

// TestLongest: lengths and rates at the ends of their ranges do not wrap.
func TestLongest(t *testing.T) {
	s := NewSchedule(1, 0)
	s.Sent(1 << 50)
	if s.Wait(0) < 1<<50 {
		t.Errorf("waits %v", s.Wait(0))
	}
	s = NewSchedule(1<<63, 0)
	s.Sent(1)
	if s.Wait(0) != 0 || s.rest == 0 {
		t.Errorf("waits %v, rest %d", s.Wait(0), s.rest)
	}
}
