package stack

import (
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
)

func TestPatience(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct{ d, want time.Duration }{
		{0, 0}, {-1, -1}, {ms - 1, ms - 1}, {ms, 10 * ms}, {2 * ms, 10 * ms}, {10*ms - 1, 10 * ms},
		{10 * ms, 10 * ms}, {10*ms + 1, 10*ms + 1}, {time.Second, time.Second},
	} {
		if got := probeDelay(c.d); got != c.want {
			t.Errorf("a timer for %v runs for %v, want %v", c.d, got, c.want)
		}
	}
}

// lastTimer is a clock that records the durations of its timers.
type lastTimer struct {
	tcpip.Clock
	tcpip.Timer
	set []time.Duration
}

func (c *lastTimer) AfterFunc(d time.Duration, _ func()) tcpip.Timer { c.Reset(d); return c }
func (c *lastTimer) Reset(d time.Duration)                           { c.set = append(c.set, d) }

func TestPatientTimers(t *testing.T) {
	var under lastTimer
	timer := probeDelayClock{&under}.AfterFunc(2*time.Millisecond, func() {})
	timer.Reset(3 * time.Millisecond)
	timer.Reset(time.Second)
	if len(under.set) != 3 || under.set[0] != probeTime || under.set[1] != probeTime ||
		under.set[2] != time.Second {
		t.Errorf("set to %v", under.set)
	}
}

// TestStackIsPatient: the stack uses the patient clock.
func TestStackIsPatient(t *testing.T) {
	a, _ := onSink(t)
	if _, ok := a.net.Clock().(probeDelayClock); !ok {
		t.Errorf("its clock is a %T", a.net.Clock())
	}
}
