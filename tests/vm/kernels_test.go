//go:build linux

package vm

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/tests/vm/rig"
)

func TestKernelsNamed(t *testing.T) {
	all, err := kernels("")
	if err != nil || !slices.Equal(all, rig.KernelVersions()) || len(all) != 5 {
		t.Errorf("none named: %v, %v", all, err)
	}
	for _, v := range all {
		if place(v) < 0 {
			t.Errorf("%s has no place in the order", v)
		}
	}
	if one, err := kernels("6.12"); err != nil || !slices.Equal(one, []string{"6.12"}) {
		t.Errorf("6.12: %v, %v", one, err)
	}
	want := "KERNEL=6.13: no such kernel is known, choose one of 5.10, 6.1, 6.12, 7.2, 7.3"
	if _, err := kernels("6.13"); err == nil || err.Error() != want {
		t.Errorf("6.13: %v, want %s", err, want)
	}
}

// A recording in which one answer differs, or one call is missing, is not what the kernel says.
func TestRecordingsDiffer(t *testing.T) {
	for _, version := range rig.KernelVersions() {
		if rowsOf[version] != nil {
			continue // it has no row that compares
		}
		card, err := simnic.CardNamed(cardUnder(version))
		if err != nil {
			t.Fatal(err)
		}
		said := readRecording(t, filepath.Join(recordings,
			fmt.Sprintf("linux-%s-%s.all.gz", version, card.Name)))
		calls := strings.Split(strings.TrimSpace(said), "\n")
		if diff := firstDifference(said, said); diff != "" {
			t.Errorf("linux %s, %s: not equal to itself: %s", version, card.Name, diff)
		}
		for i := 0; i < len(calls); i += 29 {
			call, other := calls[i], slices.Clone(calls)
			other[i] = strings.Replace(call, `"name":`, `"errno":"EPROTO","name":`, 1)
			if strings.Contains(call, `"errno":`) {
				other[i] = strings.Replace(call, `"errno":"E`, `"errno":"ENOT`, 1)
			}
			want := fmt.Sprintf("call %d: ", i+1)
			diff := firstDifference(said, strings.Join(other, "\n"))
			if !strings.HasPrefix(diff, want) {
				t.Fatalf("linux %s, %s: %q with another answer, want %s", version, card.Name, diff,
					want)
			}
		}
		if firstDifference(said, strings.Join(calls[:len(calls)-1], "\n")) == "" {
			t.Errorf("linux %s, %s: the last call is not missed", version, card.Name)
		}
	}
}

// Rows that a kernel is said to run exist.
func TestRowsOfKernels(t *testing.T) {
	names := map[string]bool{}
	for _, c := range slices.Concat(checks, functionRows()) {
		names[c.name] = true
	}
	for row, version := range only {
		if !names[row] || place(version) < 0 {
			t.Errorf("row %q, only of linux %s", row, version)
		}
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
