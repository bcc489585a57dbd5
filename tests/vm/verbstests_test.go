//go:build linux

package vm

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
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

// Lines of the tests' output: of one that did not pass and was not skipped, of one that was
// skipped, with its reason, and the last with the number of all.
var (
	verbsTestFailure = regexp.MustCompile(`(?m)^(?:ERROR|FAIL): (\S+ \(\S+\))`)
	verbsTestSkip    = regexp.MustCompile(`(?m) skipped ['"](.*)['"]$`)
	verbsTestTotals  = regexp.MustCompile(`\nRan (\d+) tests in (?s:.*)\(.*skipped=(\d+)`)
)

// verbsTestsLeast says how many of rdma-core's tests run at least, by suite of Debian, when all are
// asked for: as many as on Linux 6.12 with rdma-core 65 and 44.
var verbsTestsLeast = map[string]int{"sid": 83, "bookworm": 60}

// What rdma-core's tests are skipped for the want of, as docs/testing.md has it.
const (
	lacksRoCE      = "RoCE, without which queues of RC, UC, UD and XRC carry nothing on Ethernet"
	lacksOwnTables = "flow tables that a program writes itself, in the card's memory"
	lacksTxTables  = "flow tables of frames that are sent"
	lacksRewriting = "rules that rewrite headers, and tunnels' headers in rules"
	lacksSwitchdev = "an e-switch in switchdev mode"
	lacksMemory    = "memory of the card (MEMIC)"
	lacksFaults    = "page faults (ODP), memory windows"
	lacksCaps2     = "the second group of general capabilities"
	lacksElements  = "scheduling elements"
	lacksOddities  = "doorbells of virtio, steering tags of PCIe, reserved queue numbers, two ports"
	lacksCopies    = "write combining: QEMU passes a copy of a WQE on in pieces of 8 bytes"
	lacksMachine   = "another NIC, a GPU, CUDA, VFIO, a confidential machine, a crypto card's keys"
	lacksKernel    = "a newer kernel: speeds of ports, DMA-BUFs of UAR pages"
)

// verbsTestLacks says how the reasons begin for which rdma-core's tests are skipped, each with what
// the model or the guest does not have.
var verbsTestLacks = []struct{ says, lacks string }{
	{"No relevant GID found", lacksRoCE},
	{"Not supported without GID table", lacksRoCE},
	{"All gid indices populated", lacksRoCE}, // the table has none
	{"Create RC QP with ", lacksRoCE},
	{"Create UC QP with ", lacksRoCE},
	{"Create UD QP with ", lacksRoCE},
	{"Atomic operations are not supported", lacksRoCE}, // requests of RC queues
	// mlx5_ib_modify_qp_allowed in linux drivers/infiniband/hw/mlx5/qp.c
	{"Operation not supported (Failed to modify QP state to init.", lacksRoCE},
	{"Operation not supported (DrTable creation failed.", lacksOwnTables},
	{"Operation not supported (DrDomain sync failed.", lacksOwnTables},
	{"NIC flow tables do not support counter action", lacksTxTables},
	{"Operation not supported (DrRule creation failed.", lacksTxTables},
	{"NIC flow table does not support reformat", lacksRewriting},
	{"NIC flow table does not support geneve fields", lacksRewriting},
	{"Operation not supported (Failed to create dr action modify header.", lacksRewriting},
	{"Reg C is not supported", lacksRewriting},
	{"Device mlx5_0 must be in switchdev mode", lacksSwitchdev},
	{"Device memory is not supported", lacksMemory},
	{"MEMIC atomic operations are not supported", lacksMemory},
	{"ODP is not supported", lacksFaults},
	{"Create memory window of type ", lacksFaults},
	{"The device doesn't support general HCA CAPs 2", lacksCaps2},
	{"Create schedule elements is not supported", lacksElements},
	{"Operation not supported (Failed to allocate VAR.", lacksOddities},
	{"VAR allocation is not supported", lacksOddities},
	{"Operation not supported (Failed to create DMA Handle.", lacksOddities},
	{"Alloc reserved QP number is not supported", lacksOddities},
	{"Set LAG affinity is not supported on this device", lacksOddities},
	// mlx5_core_test_wc in linux drivers/net/ethernet/mellanox/mlx5/core/wc.c
	{"UAR allocation (with flag=0) is not supported", lacksCopies},
	{"Can not run the test over non EFA device", lacksMachine},
	{"Device /dev/dri/", lacksMachine},
	{"Allocating dmabuf is not supported by /dev/dri/", lacksMachine},
	{"cuda-python ", lacksMachine},
	{"PCI device must be passed by the user", lacksMachine},
	{"Device is not a CC DMA-bounce device", lacksMachine},
	{"Device does not report CC_DMA_BOUNCE", lacksMachine},
	{"Crypto login details must be supplied", lacksMachine},
	{"ibv_query_port_speed is not supported on this device", lacksKernel},
	{"UAR dmabuf export is not supported", lacksKernel},
}

// lackOf returns what a test is skipped for the want of, "" if that is in none of the reasons.
func lackOf(reason string) string {
	for _, r := range verbsTestLacks {
		if strings.HasPrefix(reason, r.says) {
			return r.lacks
		}
	}
	return ""
}

// TestUserVerbsTests runs rdma-core's own tests on the model under one kernel, or those that
// VERBS_TESTS chooses ("-k devx"). It is not a part of make test.
func TestUserVerbsTests(t *testing.T) {
	p, version := gatherForUsers(t, "5 to 15 minutes")
	suite := cmp.Or(os.Getenv("SUITE"), "sid") // those of bookworm are fewer
	var err error
	p.tools, err = p.cache.VerbsTests(t.Context(), suite)
	need.That(t, "packages", err)
	p.memory, p.cmdline = 1280, "hugepages=64"
	w := boot(t, t.Context(), p, version, simnic.Config{}, pcie.Config{Pacing: true})
	t.Run("probe", func(t *testing.T) { testProbe(t, w) })
	t.Logf("debian %s: python3-pyverbs %s, ibverbs-providers %s", suite,
		p.tools.Version("python3-pyverbs"), p.tools.Version("ibverbs-providers"))
	argv := append([]string{"python3", rig.VerbsTestsDir + "/run_tests.py", "--dev", "mlx5_0",
		"-v"}, strings.Fields(os.Getenv("VERBS_TESTS"))...)
	r, err := w.vm.Do(rig.Request{Op: "run", Timeout: verbsTestsTime, Argv: argv,
		Env: []string{"PYTHONHOME=/usr", "PYTHONDONTWRITEBYTECODE=1"}})
	t.Logf("exit %d, %v:\n%s", r.Code, err, lastLines(r.Output, 2000))
	for _, m := range verbsTestFailure.FindAllStringSubmatch(r.Output, -1) {
		t.Error(m[1])
	}
	if err != nil || !strings.Contains(r.Output, "\nRan ") {
		t.Errorf("the tests did not run to their end: %v", err)
	}
	if os.Getenv("VERBS_TESTS") == "" {
		report, err := countSkippedVerbsTests(r.Output, verbsTestsLeast[suite])
		if err != nil {
			t.Errorf("rdma-core's tests: %v", err)
		}
		t.Log(report)
	}
	w.noComplaints(t)
	w.cleanLog(t)
}

// countSkippedVerbsTests returns how many of rdma-core's tests were skipped for the want of what,
// by the output of all. The error says which were skipped for a reason that is not known, and
// whether fewer than least ran.
func countSkippedVerbsTests(out string, least int) (report string, err error) {
	lacks, known := map[string]int{}, 0
	for _, m := range verbsTestSkip.FindAllStringSubmatch(out, -1) {
		lack := lackOf(m[1])
		if lack == "" {
			err = errors.Join(err, fmt.Errorf("skipped for a new reason: %s", m[1]))
		}
		lacks[lack]++
		known++
	}
	m := verbsTestTotals.FindStringSubmatch(out)
	if m == nil {
		return "", errors.Join(err, errors.New("no numbers at the end"))
	}
	all, _ := strconv.Atoi(m[1])
	skipped, _ := strconv.Atoi(m[2])
	if skipped != known {
		err = errors.Join(err, fmt.Errorf("%d tests were skipped, %d say why", skipped, known))
	}
	if all-skipped < least {
		err = errors.Join(err, fmt.Errorf("%d tests ran, want %d at least", all-skipped, least))
	}
	report = fmt.Sprintf("%d tests, %d skipped for the want of", all, skipped)
	for _, r := range verbsTestLacks {
		if n := lacks[r.lacks]; n > 0 {
			report += fmt.Sprintf("\n%4d %s", n, r.lacks)
			delete(lacks, r.lacks)
		}
	}
	return report, err
}

// TestCountSkippedVerbsTests: each reason is counted under what it lacks, and one that is new, one
// that cannot be read and a run of too few tests are errors.
func TestCountSkippedVerbsTests(t *testing.T) {
	const skips = "test_a (tests.T.test_a)\nSends. ... skipped 'No relevant GID found'\n" +
		"test_b (tests.T.test_b) ... skipped 'Create RC QP with attrs is not supported'\n" +
		"test_c ... skipped \"The device doesn't support general HCA CAPs 2\"\n"
	const least = 70
	const end = "\nRan %d tests in 1.5s\n\n%s (%sskipped=%d)\nis_fork_initialized() = 2\n"
	good := skips + fmt.Sprintf(end, 3+least, "OK", "", 3)
	report, err := countSkippedVerbsTests(good, least)
	if want := fmt.Sprintf("%d tests, 3 skipped for the want of\n   2 %s\n   1 %s",
		3+least, lacksRoCE, lacksCaps2); err != nil || report != want {
		t.Errorf("%v, %q, want %q", err, report, want)
	}
	for _, c := range []struct{ out, want string }{
		{"test_d ... skipped 'No such luck'\n" + skips +
			fmt.Sprintf(end, 4+least, "OK", "", 4),
			"skipped for a new reason: No such luck"},
		{skips + fmt.Sprintf(end, 4+least, "FAILED", "failures=2, ", 4),
			"4 tests were skipped, 3 say why"},
		{skips + fmt.Sprintf(end, 2+least, "OK", "", 3),
			fmt.Sprintf("%d tests ran, want %d at least", least-1, least)},
		{skips, "no numbers at the end"},
	} {
		if _, err := countSkippedVerbsTests(c.out, least); err == nil || err.Error() != c.want {
			t.Errorf("%v, want %s, of:\n%s", err, c.want, c.out)
		}
	}
}
