package main

import (
	"runtime/debug"
	"testing"
)

func TestRareGC(t *testing.T) {
	before := debug.SetGCPercent(77)
	defer debug.SetGCPercent(before)
	setGCPercent("50")
	if got := debug.SetGCPercent(77); got != 77 {
		t.Errorf("GOGC=50: set to %d all the same", got)
	}
	setGCPercent("")
	if got := debug.SetGCPercent(77); got != gcPercent {
		t.Errorf("no GOGC: %d, want %d", got, gcPercent)
	}
}
