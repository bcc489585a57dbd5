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
