package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestProfileUsage: what is wrong with the command line is said before a server is looked for.
func TestProfileUsage(t *testing.T) {
	for line, want := range map[string]string{
		"":                  "want cpu, trace or goroutines",
		"memory":            "want cpu, trace or goroutines",
		"cpu trace":         "want cpu, trace or goroutines",
		"cpu --for 0s":      "--for 0s: want a time up to 10m",
		"trace --for 1h":    "--for 1h0m0s: want",
		"goroutines --json": "unknown flag --json",
	} {
		args := append([]string{"profile"}, strings.Fields(line)...)
		if _, stderr, code := look(args...); code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("profile %s: code %d, %q", line, code, stderr)
		}
	}
	if err := (&profileFlags{time: 1}).check([]string{"cpu"}, true); err == nil {
		t.Error("a profile to a terminal")
	}
}

// checkProfiles takes each kind of a server of this process.
func checkProfiles(t *testing.T, pid []string) {
	t.Helper()
	for kind, begin := range map[string]string{"cpu": "\x1f\x8b", "trace": "go 1.",
		"goroutines": "goroutine profile: total"} {
		file := filepath.Join(t.TempDir(), kind)
		args := append([]string{"profile", kind, "-w", file, "--for", "10ms"}, pid...)
		_, stderr, code := look(args...)
		got, err := os.ReadFile(file)
		if code != exitDone || err != nil || !strings.HasPrefix(string(got), begin) {
			t.Errorf("%v: code %d, %q, %v, %.40q", args, code, stderr, err, got)
		}
		if kind == "goroutines" && !strings.Contains(string(got), `"queue":"rx0"`) {
			t.Errorf("no label of a queue in\n%s", got)
		}
	}
}
