package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/tests/conformance/suites/localhost"
)

func TestBinaryNames(t *testing.T) {
	for _, tt := range []struct{ module, path, want string }{
		{"example.org/quic-go", ".", "quic-go"},
		{"example.org/transport/v5", ".", "transport"},
		{"example.org/transport/v5", "udp", "udp"},
		{"example.org/quic-go", "integrationtests/self", "self"},
		{"example.org/vnet", ".", "vnet"},
	} {
		if got := (part{path: tt.path}).binary(library{module: tt.module}); got != tt.want {
			t.Errorf("%s %s: %s, want %s", tt.module, tt.path, got, tt.want)
		}
	}
}

// TestChanges adds hooks to a package with tests of either kind, and edits a file.
func TestChanges(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"x_test.go": "package some_test\n",
		"a.go": "package some\n\nvar x = 1\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	l := library{parts: []part{{path: "."}}, edits: []edit{{"a.go", "var x = 1", "var y = 2"}}}
	got, err := l.changes(dir)
	if err != nil || !strings.Contains(got["zz_localhost_test.go"], "\npackage some_test\n") ||
		got["a.go"] != "package some\n\nvar x = 1\nvar y = 2\n" {
		t.Errorf("%q, %v", got, err)
	}
	l.edits[0].line = "var z"
	if _, err := l.changes(dir); err == nil {
		t.Error("a line that is not there: want an error")
	}
	if _, err := (library{parts: []part{{path: "none"}}}).changes(dir); err == nil {
		t.Error("a package without tests: want an error")
	}
}

func TestOptionsCheck(t *testing.T) {
	for of, want := range map[string]bool{"go": true, "quic": true, "net": false} {
		if err := (options{of: []string{of}}).check(); (err == nil) != want {
			t.Errorf("%s: %v", of, err)
		}
	}
}

// TestReportCrossing fails a suite of which nothing crossed a wire, and passes over reasons of
// suites that were not run.
func TestReportCrossing(t *testing.T) {
	for frames, want := range map[uint64]error{0: errDiffers, 1: nil} {
		all := []*comparison{{suite: "quic/self",
			side:  map[string]results{host: {"TestA": passed}, onSlice: {"TestA": passed}},
			notes: &localhost.Notes{Frames: frames}}}
		var out strings.Builder
		err := report(&out, all, map[string]string{"net TestB": "so it is"}, false)
		if !errors.Is(err, want) || err != nil && want == nil {
			t.Errorf("%d frames: %v, want %v; it says:\n%s", frames, err, want, out.String())
		}
	}
}
