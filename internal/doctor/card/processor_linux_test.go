package card

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOnOneProcessor: the thread is on one processor meanwhile, and may be on all afterwards.
func TestOnOneProcessor(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	allowed := func() (n int) {
		var set unix.CPUSet
		if err := unix.SchedGetaffinity(0, &set); err != nil {
			t.Fatal(err)
		}
		return set.Count()
	}
	before := allowed()
	onOneProcessor(func() {
		if n := allowed(); n != 1 {
			t.Errorf("%d processors", n)
		}
	})
	if n := allowed(); n != before {
		t.Errorf("%d processors afterwards, %d before", n, before)
	}
}
