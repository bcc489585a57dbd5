package dv

import (
	"testing"
	"time"
)

func TestClock(t *testing.T) {
	const mask = 1<<63 - 1
	at := time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)
	for _, c := range []struct {
		khz, set, ticks uint64
		want            time.Duration
	}{
		{1e6, 1000, 1000, 0},
		{1e6, 1000, 2000, 1000},
		{1e6, 2000, 1000, -1000},
		{156250, 0, 156250, time.Millisecond},
		{1e6, mask, 999, 1000},  // over the end of the counter
		{1e6, 999, mask, -1000}, // and back
		{156250, 1 << 40, 1<<40 + 156250*3600_000, time.Hour},
		{1, 0, 1 << 61, 1<<63 - 1}, // longer than can be said
		{0, 0, 5, 1<<63 - 1},
	} {
		clock := Clock{khz: c.khz, mask: mask}
		clock.Set(c.set, at)
		if got := clock.Time(c.ticks).Sub(at); got != c.want {
			t.Errorf("%d kHz set at %d, %d: %v, want %v", c.khz, c.set, c.ticks, got, c.want)
		}
	}
}

// A real-time stamp is wall time, and relative to a moment once the clock is set.
func TestRealTimeClock(t *testing.T) {
	at := time.Unix(1700000000, 999999999)
	stamp := func(t time.Time) uint64 { return uint64(t.Unix())<<32 | uint64(t.Nanosecond()) }
	clock := Clock{real: true, at: wallTime(0)}
	for _, off := range []time.Duration{0, 1, -1, time.Hour, -time.Hour} {
		if got, want := clock.Time(stamp(at.Add(off))), at.Add(off); !got.Equal(want) {
			t.Errorf("%v after %v: %v", off, at, got)
		}
	}
	system := at.Add(37 * time.Second)
	clock.Set(stamp(at), system)
	if got, want := clock.Time(stamp(at.Add(5))), system.Add(5); !got.Equal(want) {
		t.Errorf("set: %v, want %v", got, want)
	}
}

func TestVLANTag(t *testing.T) {
	for _, c := range []struct {
		priority uint8
		id, want uint16
	}{{0, 1, 0x0001}, {5, 0x123, 0xa123}, {7, 0xfff, 0xefff}, {8, 0x1001, 0x0001}} {
		if got := VLANTag(c.priority, c.id); got != c.want {
			t.Errorf("priority %d of %#x: %#x, want %#x", c.priority, c.id, got, c.want)
		}
	}
}
