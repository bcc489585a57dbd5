package netpair

import (
	"runtime"
	"slices"
	"testing"
	"time"
)

// recorder is a test whose end and failures the test of a helper sees.
type recorder struct {
	testing.TB
	cleanups []func()
	failures int
}

func (r *recorder) Cleanup(f func())      { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Errorf(string, ...any) { r.failures++ }

// end is the end of the test.
func (r *recorder) end() {
	for _, f := range slices.Backward(r.cleanups) {
		f()
	}
}

// running lets others run until n goroutines show code of a stack.
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

// TestCheckLeaks: goroutines that were made before the check are no leak, whether they have run by
// then or not; later ones are, also when as many of the earlier ones have ended.
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
