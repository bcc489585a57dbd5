package sim

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
)

// timers is the clock of one host: that of the run, which also knows who has set timers.
type timers struct {
	clock.Source
	busy *busy

	mu  sync.Mutex
	set map[*hostTimer]bool // guarded by mu
}

// hostTimer is a timer of a host.
type hostTimer struct {
	clock.Timer
	of      *timers
	creator [24]uintptr
	// probes: link/failover has set it, and looks for a device when it fires
	probes func() bool
}

// AfterFunc implements clock.Source.
func (s *timers) AfterFunc(d time.Duration, f func()) clock.Timer {
	t := &hostTimer{of: s}
	runtime.Callers(2, t.creator[:])
	t.probes = sync.OnceValue(func() bool { return strings.Contains(t.name(), "link/failover.") })
	s.note(t, true)
	t.Timer = s.Source.AfterFunc(d, func() {
		s.note(t, false)
		if t.probes() {
			s.busy.maps.Store(true)
		}
		f()
	})
	return t
}

// note takes note that a timer is set or not.
func (s *timers) note(t *hostTimer, set bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if set {
		s.set[t] = true
	} else {
		delete(s.set, t)
	}
}

// Stop implements clock.Timer.
func (t *hostTimer) Stop() bool {
	t.of.note(t, false)
	return t.Timer.Stop()
}

// Reset implements clock.Timer.
func (t *hostTimer) Reset(d time.Duration) bool {
	t.of.note(t, true)
	return t.Timer.Reset(d)
}

// heldBack makes the timers of completions that a fault has the software NIC write late, after the
// driver has closed the queue, too.
const heldBack = "simnic.(*NIC).rehook."

// left reports timers that are set, but for those, and netstack's own, which has some left when it
// is closed: those of its neighbour tables among others.
func (s *timers) left() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for t := range s.set {
		if name := t.name(); !strings.HasPrefix(name, "gvisor.dev/") &&
			!strings.Contains(name, heldBack) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	return fmt.Errorf("timers are left of %s", strings.Join(names, ", "))
}

// passing are packages that make timers for others.
var passing = []string{"/clock.", "/internal/netclock.", "/tests/sim."}

// name is the function that has made the timer.
func (t *hostTimer) name() string {
	frames := runtime.CallersFrames(t.creator[:])
	for {
		f, more := frames.Next()
		if !more || !slices.ContainsFunc(passing, func(p string) bool {
			return strings.Contains(f.Function, p)
		}) {
			return f.Function
		}
	}
}
