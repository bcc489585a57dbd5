package rdma

import (
	"testing"
	"time"
)

// TestPressureIsHeld: the level at which the pressure is held, and for how long, after it was high.
func TestPressureIsHeld(t *testing.T) {
	now := time.Unix(1000, 0)
	h := pressureHold{now: func() time.Time { return now }}
	ms := time.Millisecond
	for i, step := range []struct {
		pass    time.Duration
		p, want pressure
	}{
		{0, pressureNone, pressureNone},
		{0, pressureHalf, pressureHalf}, // a flood of ACKs, held for a second
		{999 * ms, pressureNone, pressureHalf},
		{1 * ms, pressureNone, pressureNone},
		{1500 * ms, pressureHalf, pressureHalf}, // again, for two
		{1999 * ms, pressureNone, pressureHalf},
		{0, pressureHigh, pressureHigh}, // of SYNs, too
		{100 * ms, pressureFull, pressureFull},
		{100 * ms, pressureHalf, pressureHigh},
		{1800 * ms, pressureHalf, pressureHigh}, // which does not prolong it
		{100 * ms, pressureHalf, pressureHalf},  // the ACKs alone, for four
		{3999 * ms, pressureNone, pressureHalf},
		{1 * ms, pressureNone, pressureNone},
		{0, pressureSevere, pressureSevere}, // for eight, and so each time
		{7999 * ms, pressureNone, pressureHigh},
		{1 * ms, pressureNone, pressureNone},
		{0, pressureHigh, pressureHigh},
		{8000 * ms, pressureNone, pressureNone},
		{time.Minute, pressureHigh, pressureHigh}, // another flood, for a second
		{1000 * ms, pressureNone, pressureNone},
	} {
		now = now.Add(step.pass)
		if got := h.apply(step.p); got != step.want {
			t.Errorf("step %d: %d counts as %d, want %d", i, step.p, got, step.want)
		}
	}
}
