// Package need declares what tests need of the machine. Every skip of the project happens here,
// with its reason:
//
//	ip := need.Tool(t, "ip")
//	need.NetNS(t)
//
// The environment decides what a lack means:
//
//	NEED=all         any lack is a failure
//	NEED=netns,tool  a lack of these is a failure, of others a skip
//	NEED_LOG=file    skips and notes are also appended there, one line each,
//	                 because go test without -v shows none
//
// The names NEED takes are the first words of the reasons: root, netns, userns,
// tun, compiler, header, tool, hardware, kvm, qemu, and whatever That is given.
package need

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// That goes on if err is nil. Otherwise the test is skipped, or fails where
// NEED says so, with err as the reason. what is the need's name: one word.
func That(t testing.TB, what string, err error) {
	t.Helper()
	if err == nil {
		return
	}
	reason := fmt.Sprintf("needs %s: %v", what, err)
	if required(os.Getenv("NEED"), what) {
		t.Fatalf("%s (NEED=%s)", reason, os.Getenv("NEED"))
	}
	record(t, fmt.Sprintf("skipped %s %s: %s", program(), t.Name(), reason))
	t.Skip(reason)
}

// Long skips a test that takes seconds when go test has -short. why says what it waits for. The
// skip is the caller's choice, not a lack of the machine: NEED does not turn it into a failure, and
// NEED_LOG does not list it.
func Long(t testing.TB, why string) {
	t.Helper()
	if testing.Short() {
		t.Skip("not with -short: " + why)
	}
}

// Note records a result that is of interest to the reader of a test run: make test prints
// it at its end.
func Note(t testing.TB, text string) {
	t.Helper()
	t.Log(text)
	record(t, program()+": "+text)
}

// program is the package whose tests these are.
func program() string { return strings.TrimSuffix(filepath.Base(os.Args[0]), ".test") }

// required reports whether the list of needs has this one.
func required(list, what string) bool {
	for _, s := range strings.Split(list, ",") {
		if s == "all" || s == what {
			return true
		}
	}
	return false
}

// record appends a line to the file NEED_LOG names.
func record(t testing.TB, line string) {
	t.Helper()
	name := os.Getenv("NEED_LOG")
	if name == "" {
		return
	}
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatalf("record %q: %v", line, err)
	}
	defer f.Close()
	fmt.Fprintln(f, line)
}
