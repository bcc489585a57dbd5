package rig

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestWaiting tells what the thread has waited since that has waited longest, also one that is new,
// and passes over what is no schedstat.
func TestWaiting(t *testing.T) {
	dir := t.TempDir()
	says := func(thread, stat string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(dir, thread), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, thread, "schedstat"), []byte(stat),
			0o644); err != nil {
			t.Fatal(err)
		}
	}
	says("1", "7000000000 50000000000 12\n")
	says("2", "1000000000 3000000000 12\n")
	since := waitingOf(dir)
	for _, c := range []struct {
		thread, stat string
		want         time.Duration
	}{
		{"1", "9000000000 50000000000 13\n", 0},
		{"2", "1000000000 5000000000 13\n", 2 * time.Second},
		{"1", "9000000000 51000000000 14\n", 2 * time.Second},
		{"3", "1 4000000000 1\n", 4 * time.Second},
		{"3", "none\n", 2 * time.Second},
	} {
		says(c.thread, c.stat)
		if got := since(); got != c.want {
			t.Errorf("thread %s says %q: %v, want %v", c.thread, c.stat, got, c.want)
		}
	}
	if got := waitingOf(filepath.Join(dir, "none"))(); got != 0 {
		t.Errorf("no threads: %v", got)
	}
}
