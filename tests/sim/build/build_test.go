package build

import (
	"runtime"
	"testing"
)

// TestChangesFit: each change has its place in the sources of the Go in use. Otherwise worlds run,
// and some do not repeat.
func TestChangesFit(t *testing.T) {
	files, fit, err := changed(t.TempDir())
	if err != nil || !fit || len(files) != 5 {
		t.Errorf("%d files of %s changed, fit %v: %v", len(files), runtime.Version(), fit, err)
	}
}

// TestChangesDoNotFit: with other sources nothing is changed.
func TestChangesDoNotFit(t *testing.T) {
	kept := changes
	t.Cleanup(func() { changes = kept })
	changes = append(changes[:len(changes):len(changes)],
		change{"runtime/rand.go", "no such text", ""})
	files, fit, err := changed(t.TempDir())
	if err != nil || fit || len(files) != 0 {
		t.Errorf("%d files, fit %v: %v", len(files), fit, err)
	}
}
