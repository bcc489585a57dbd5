package rig

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// Machines on which packages are not available: apt-get is a script. The sources that it lists name
// no mirror.
func TestNoPackages(t *testing.T) {
	for _, c := range []struct {
		name, apt string // script; empty: there is no apt-get
		says      string
		is        error
	}{
		{"no apt", "", "apt-get", ErrNoMirror},
		{"no sources", "exit 0", ErrNoMirror.Error(), ErrNoMirror},
		{"broken sources", "echo 'E: Malformed entry 1' >&2; exit 100",
			"Malformed entry 1", ErrNoMirror},
		{"mirror out of reach",
			`case $1 in indextargets) echo 'file:/nowhere stable';; *) echo 'E: Failed to fetch' >&2; exit 100;; esac`,
			"E: Failed to fetch", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			bin := t.TempDir()
			if c.apt != "" {
				if err := os.WriteFile(filepath.Join(bin, "apt-get"),
					[]byte("#!/bin/sh\n"+c.apt+"\n"), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			t.Setenv("PATH", bin)
			t.Setenv("RDMA_NETSTACK_CACHE", filepath.Join(bin, "cache"))
			cache, err := OpenCache()
			if err != nil {
				t.Fatal(err)
			}
			defer cache.Close()
			_, err = cache.QEMU(t.Context())
			if err == nil || c.is != nil && !errors.Is(err, c.is) ||
				!strings.Contains(err.Error(), c.says) {
				t.Fatalf("error %v, want one with %q", err, c.says)
			}
			oneLine(t, err)
		})
	}
}

// oneLine checks that a test is skipped for this reason, with one line of it in the log of skips.
func oneLine(t *testing.T, reason error) {
	t.Helper()
	log := filepath.Join(t.TempDir(), "skips")
	t.Setenv("NEED", "")
	t.Setenv("NEED_LOG", log)
	t.Run("skip", func(t *testing.T) { need.That(t, "packages", reason) })
	b, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	if s := string(b); strings.Count(s, "\n") != 1 ||
		!strings.Contains(s, "needs packages: packages qemu-system-x86: ") {
		t.Errorf("the log of skips says:\n%s", s)
	}
}
