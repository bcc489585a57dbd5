//go:build linux

package vm

import (
	"slices"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/tests/vm/rig"
)

func TestKernelsNamed(t *testing.T) {
	all, err := kernels("")
	if err != nil || !slices.Equal(all, rig.KernelVersions()) || len(all) != 5 {
		t.Errorf("none named: %v, %v", all, err)
	}
	if one, err := kernels("6.12"); err != nil || !slices.Equal(one, []string{"6.12"}) {
		t.Errorf("6.12: %v, %v", one, err)
	}
	want := "KERNEL=6.13: no such kernel is known, choose one of 5.10, 6.1, 6.12, 7.2, 7.3"
	if _, err := kernels("6.13"); err == nil || err.Error() != want {
		t.Errorf("6.13: %v, want %s", err, want)
	}
}

// Rows that a kernel is said to run exist.
func TestRowsOfKernels(t *testing.T) {
	names := map[string]bool{}
	for _, c := range slices.Concat(checks, functionRows()) {
		names[c.name] = true
	}
	for version, rows := range rowsOf {
		for _, r := range rows {
			if !names[r] {
				t.Errorf("linux %s runs %q, which is no row", version, r)
			}
		}
		if !slices.Contains(rig.KernelVersions(), version) {
			t.Errorf("no kernel %s", version)
		}
	}
}
