package addrlock

import (
	"errors"
	"os"
	"strconv"
	"syscall"
	"testing"
)

// TestAwait: a successor has the lock once its predecessor ends, and one that is closed gives up.
func TestAwait(t *testing.T) {
	name := Name(os.Getpid(), 0, "test "+strconv.Itoa(os.Getpid()))
	var old, successor, late, third Locks
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	held := func(by string) {
		t.Helper()
		if err := third.Take(name); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("%s has the lock: %v, want EADDRINUSE", by, err)
		}
	}
	must(old.Take(name))
	held("the first")
	if got := Holder(name); got != "another stack of this process" {
		t.Errorf("holder %q", got)
	}
	next, gone := make(chan error), make(chan error)
	go func() { next <- successor.Await(name) }()
	go func() { gone <- late.Await(name) }()
	late.Close()
	must(<-gone)
	held("the first")
	old.Close()
	must(<-next)
	held("the successor")
	successor.Close()
	must(third.Take(name))
	third.Close()
}
