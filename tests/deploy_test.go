package tests

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/tests/need"
)

const unit = "../deploy/systemd/rdma-netstack@.service"

// exposure has systemd rate a unit file; the second result is false if it is above 2.0 of 10.
func exposure(t *testing.T, file string) (report string, ok bool) {
	t.Helper()
	analyze := need.Tool(t, "systemd-analyze")
	out, err := exec.Command(analyze, "security", "--offline=yes", "--threshold=20", "--no-pager",
		file).CombinedOutput()
	return string(out), err == nil
}

// TestUnitExposure: the unit is sandboxed as far as systemd-analyze wants it, 2.0 at most, and a
// unit without the sandbox is not.
func TestUnitExposure(t *testing.T) {
	if report, ok := exposure(t, unit); !ok {
		t.Errorf("exposed:\n%s", report)
	}
	text, err := os.ReadFile(unit)
	if err != nil {
		t.Fatal(err)
	}
	open := filepath.Join(t.TempDir(), "open@.service")
	less := strings.ReplaceAll(string(text), "ProtectSystem=strict\n", "")
	less = strings.ReplaceAll(less, "CapabilityBoundingSet=CAP_NET_RAW\n", "")
	if err := os.WriteFile(open, []byte(less), 0o644); err != nil {
		t.Fatal(err)
	}
	if report, ok := exposure(t, open); ok {
		t.Errorf("a unit with all capabilities passes:\n%s", report)
	}
}

// TestUnitKnown: systemd knows every option of the unit.
func TestUnitKnown(t *testing.T) {
	analyze := need.Tool(t, "systemd-analyze")
	out, _ := exec.Command(analyze, "verify", unit).CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "rdma-netstack@") && !strings.Contains(line, "not executable") {
			t.Error(line)
		}
	}
}
