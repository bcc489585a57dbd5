// Package upstream shows faults of gVisor's netstack with gVisor alone: each of its tests prints
// the segments or the rates that show one, and fails once netstack behaves as the page of
// docs/upstream says that it should. What works around the fault here may go on that day.
//
// The tests import the standard library and gVisor only. One of them, with wire_test.go and
// norace_test.go beside it in an empty module, is the program that goes into a report:
//
//	go test -v -run TestSYNTimestamp .
//
// Time is virtual, and netstack has one processor, so that a run is the same each time.
package upstream
