package need_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// TestRaceDetectorIsMissed checks that the script of make test reports a missing race detector, and
// the reason; make test runs it twice.
func TestRaceDetectorIsMissed(t *testing.T) {
	need.Long(t, "builds with the race detector")
	sh := need.Tool(t, "sh")
	need.Tool(t, "go")
	compiler := need.Tool(t, "gcc")
	for _, c := range []struct {
		name      string
		env       []string
		arg, says string
		out       string
	}{
		{"as here", []string{"CC=" + compiler, "CGO_ENABLED=1"}, "", "", "-race\n"},
		{"as here, at the end", []string{"CC=" + compiler, "CGO_ENABLED=1"}, "again", "", ""},
		{"no compiler", []string{"CC=nosuchcompiler", "CGO_ENABLED=1"}, "", "nosuchcompiler", ""},
		{"no cgo, at the end", []string{"CGO_ENABLED=0"}, "again", "requires cgo", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := exec.Command(sh, "tests/race.sh", c.arg)
			cmd.Dir = "../../.."
			cmd.Env = append(os.Environ(), c.env...)
			var stderr strings.Builder
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if err != nil || string(out) != c.out {
				t.Errorf("%q, %v; want %q", out, err, c.out)
			}
			const loud = "# THE TESTS RUN WITHOUT THE RACE DETECTOR"
			if c.says == "" && stderr.Len() > 0 || c.says != "" &&
				(!strings.Contains(stderr.String(), loud) ||
					!strings.Contains(stderr.String(), c.says)) {
				t.Errorf("it says %q", stderr.String())
			}
		})
	}
	makefile, err := os.ReadFile("../../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(makefile), "tests/race.sh"); n != 2 {
		t.Errorf("the Makefile runs it %d times, want 2: before the tests and after them", n)
	}
}
