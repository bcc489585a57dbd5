package dv

import (
	"errors"
	"slices"
	"testing"
)

func TestLedger(t *testing.T) {
	var l cleanup
	var log []string
	did := func(s string) func() error { return func() error { log = append(log, s); return nil } }
	bad := errors.New("bad")
	fails := func() error { return bad }
	if l.runStep("a", did("a"), did("undo a")) != nil || l.runStep("b", did("b"), fails) != nil {
		t.Fatal("a step failed")
	}
	err := l.runStep("c", fails, did("undo c"))
	if !errors.Is(err, bad) || err.Error() != "c: bad" {
		t.Errorf("failed step: %v", err)
	}
	l.runStep("d", did("d"), did("undo d"))
	if err := l.undoAll(); !errors.Is(err, bad) || err.Error() != "undo b: bad" {
		t.Errorf("undoAll: %v", err)
	}
	if want := []string{"a", "b", "d", "undo d", "undo a"}; !slices.Equal(log, want) {
		t.Errorf("%v, want %v", log, want)
	}
	if err := l.undoAll(); err != nil || len(log) != 5 {
		t.Errorf("second undoAll: %v, %v", err, log)
	}
}
