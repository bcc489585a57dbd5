package netpair

import (
	"runtime"
	"slices"
	"testing"
	"time"
)

// recorder is a test that records its cleanups and failures, for tests of a helper.
type recorder struct {
	testing.TB
	cleanups []func()
	failures int
}

func (r *recorder) Cleanup(f func())      { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Errorf(string, ...any) { r.failures++ }

// end runs the cleanups, as at the end of the test.
func (r *recorder) end() {
	for _, f := range slices.Backward(r.cleanups) {
		f()
	}
}

// running yields until n goroutines show code of a stack.
func running(n int) {
	for shown := 0; shown < n; runtime.Gosched() {
		shown = 0
		for _, trace := range goroutines() {
			if ofStack(trace) {
				shown++
			}
		}
	}
}

// TestCheckLeaks: goroutines that were started before the check are no leak, whether or not they
// have run by then; later ones are, even if as many of the earlier ones have ended.
func TestCheckLeaks(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // a new goroutine runs when this one waits
	var r recorder
	older, olderPeer := NewPorts(Faults{})
	checkLeaks(&r, 100*time.Millisecond)
	running(2)
	r.end()
	if r.failures != 0 {
		t.Error("goroutines from before the check are taken for leaks")
	}
	r = recorder{}
	checkLeaks(&r, 100*time.Millisecond)
	newer, newerPeer := NewPorts(Faults{})
	older.Close()
	olderPeer.Close()
	r.end()
	if r.failures != 1 {
		t.Error("goroutines that are left are not found")
	}
	newer.Close()
	newerPeer.Close()
}
