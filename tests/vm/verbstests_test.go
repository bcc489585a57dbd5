//go:build linux

package vm

import (
	"cmp"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/vm/pcie"
	"github.com/rdma-netstack/rdma-netstack/tests/vm/rig"
)

// verbsTestsTime bounds how long rdma-core's tests take in a guest.
const verbsTestsTime = 15 * time.Minute

// verbsTestResult matches the line with which a test ends that did not pass and was not skipped.
var verbsTestResult = regexp.MustCompile(`(?m)^(?:ERROR|FAIL): (\S+ \(\S+\))`)

// TestUserVerbsTests runs rdma-core's own tests on the model under one kernel, or those that
// VERBS_TESTS chooses ("-k devx"). It is not a part of make test.
func TestUserVerbsTests(t *testing.T) {
	p, version := gatherForUsers(t, "5 to 15 minutes")
	suite := cmp.Or(os.Getenv("SUITE"), "sid") // bookworm's has no tests
	var err error
	p.tools, err = p.cache.VerbsTests(t.Context(), suite)
	need.That(t, "packages", err)
	p.memory = 1280
	w := boot(t, t.Context(), p, version, simnic.Config{}, pcie.Config{})
	t.Run("probe", func(t *testing.T) { testProbe(t, w) })
	t.Logf("debian %s: python3-pyverbs %s, ibverbs-providers %s", suite,
		p.tools.Version("python3-pyverbs"), p.tools.Version("ibverbs-providers"))
	argv := append([]string{"python3", rig.VerbsTestsDir + "/run_tests.py", "--dev", "mlx5_0",
		"-v"}, strings.Fields(os.Getenv("VERBS_TESTS"))...)
	r, err := w.vm.Do(rig.Request{Op: "run", Timeout: verbsTestsTime, Argv: argv,
		Env: []string{"PYTHONHOME=/usr", "PYTHONDONTWRITEBYTECODE=1"}})
	t.Logf("exit %d, %v:\n%s", r.Code, err, lastLines(r.Output, 500))
	for _, m := range verbsTestResult.FindAllStringSubmatch(r.Output, -1) {
		t.Error(m[1])
	}
	if err != nil || !strings.Contains(r.Output, "\nRan ") {
		t.Errorf("the tests did not run to their end: %v", err)
	}
	w.noComplaints(t)
	w.cleanLog(t)
}
