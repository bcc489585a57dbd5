package pacing

import (
	"testing"
	"time"
)

// sendDatagrams returns the bytes that leave in each window, of a sender that always has more
// datagrams of n bytes and whose timers come late by late.
func sendDatagrams(rate uint64, d, late time.Duration, n int) []int {
	var s Datagrams
	s.SetRate(rate, 0)
	windows := make([]int, d/window)
	for now := time.Duration(0); now < d; {
		if wait := s.Admit(now); wait > 0 {
			now += wait + late
			continue
		}
		s.Sent(n)
		windows[now/window] += n
	}
	return windows
}

// TestDatagrams: senders that always have more keep to their rates within 2 % and a datagram in any
// 10 ms, those whose timers come late in a second. A datagram that takes longer goes whole.
func TestDatagrams(t *testing.T) {
	for _, rate := range []uint64{1e6, 1e7, 1e8, 1e9, 1e10} {
		for _, n := range []int{60, 1514} {
			if n < 100 && rate > 1e9 {
				continue // takes seconds
			}
			checkWindows(t, rate, sendDatagrams(rate/8, 100*time.Millisecond, 0, n))
			for _, late := range lateness {
				checkSecond(t, rate, late, sendDatagrams(rate/8, time.Second, late, n))
			}
		}
	}
	windows := sendDatagrams(1e6, 655*time.Millisecond, 0, 65_536) // 65.536 ms each
	for i, n := range windows {
		if want := 65_536 * int((int64(i+1)*10e6-1)/65_536e3+1); total(windows[:i+1]) != want {
			t.Errorf("%d bytes in window %d, %d up to it, want %d", n, i, total(windows[:i+1]),
				want)
		}
	}
}

func total(windows []int) (sum int) {
	for _, n := range windows {
		sum += n
	}
	return sum
}

// burst returns how many bytes of datagrams of n leave at once at now.
func burst(s *Datagrams, now time.Duration, n int) (sent int) {
	for s.Admit(now) <= 0 {
		s.Sent(n)
		sent += n
	}
	return sent
}

// TestDatagramsRest: after a pause no more leaves than what Fine allows and a datagram, whoever has
// given up meanwhile; a timer that comes late by that much lets out 10 ms more.
func TestDatagramsRest(t *testing.T) {
	const n, rate = 1000, 100_000_000
	var s Datagrams
	s.SetRate(rate, 0)
	most := int(rate*Fine.Seconds()) + n
	for now := time.Duration(0); now < 10*time.Second; now += time.Second {
		if sent := burst(&s, now, n); sent < most-n || sent > most {
			t.Errorf("%d bytes after a pause, want %d", sent, most)
		}
		s.Rest()
	}
	burst(&s, 10*time.Second, n)
	most += int(rate * mostLate.Seconds())
	if sent := burst(&s, 11*time.Second, n); sent < most-2*n || sent > most+n {
		t.Errorf("%d bytes after a timer that was late by a second, want %d", sent, most)
	}
	s.Admit(12 * time.Second)
	s.Sent(n)
	if sent := burst(&s, 13*time.Second, n); sent > int(rate*Fine.Seconds())+n {
		t.Errorf("%d bytes after a pause behind a timer that was late", sent)
	}
}

// TestDatagramsRate: another rate holds at once, for the bytes that the one before was ahead of,
// too. So nobody sends more by setting it often, or waits long for what a slow one left.
func TestDatagramsRate(t *testing.T) {
	const n = 10_000
	var s Datagrams
	s.SetRate(1000, 0)
	burst(&s, 0, n)
	s.SetRate(1_000_000, time.Second) // 9,000 bytes are left
	if wait := s.Admit(time.Second); wait != 9*time.Millisecond {
		t.Errorf("waits %v for what is left, want 9ms", wait)
	}
	s.SetRate(0, time.Second)
	if wait := s.Admit(time.Second); wait > 0 {
		t.Errorf("without a limit: waits %v", wait)
	}
	s, sent := Datagrams{}, 0
	for i := range 1000 {
		now := time.Duration(i) * time.Millisecond
		s.SetRate(1_000_000+uint64(i%2), now)
		sent += burst(&s, now, n)
	}
	if most := 1_000_000 + 2*n; sent > most {
		t.Errorf("%d bytes in a second in which the rate was set a thousand times, want %d at most",
			sent, most)
	}
	s = Datagrams{}
	s.SetRate(1, 0)
	s.Sent(1 << 50)
	s.SetRate(1<<63, time.Hour)
	s.SetRate(1, 2*time.Hour)
	if wait := s.Admit(2 * time.Hour); wait < 0 {
		t.Errorf("waits %v", wait)
	}
}
