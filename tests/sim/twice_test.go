package sim

import (
	"errors"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/sim/build"
)

// TestTwice: the command that `make sim` runs has the same frames and timers in two runs of a
// world. `make sim SEEDS=1000 TWICE=1` compares more.
func TestTwice(t *testing.T) {
	need.Long(t, "builds the simulation")
	program := filepath.Join(t.TempDir(), "worlds")
	repeats, err := build.World(program, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !repeats {
		need.That(t, "go", errors.New("the changes of tests/sim/build do not fit "+
			runtime.Version()))
	}
	out, err := exec.Command(program, "-seeds", "30", "-twice", "-jobs", "1").CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
