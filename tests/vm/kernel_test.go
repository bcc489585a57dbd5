//go:build linux

package vm

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/vm/pcie"
	"github.com/rdma-netstack/rdma-netstack/tests/vm/rig"
)

// check is one row of the table: a test that runs in every guest, in this order.
type check struct {
	name string
	run  func(t *testing.T, w *world)
}

var checks = []check{
	{"probe", testProbe},
	{"netdev ping", testNetdevPing},
	{"netdev TCP", testNetdevTCP},
	{"netdev USO", testNetdevUSO},
	{"ibv_devinfo", testDevinfo},
	{"perftest", testPerftest},
	{"other verbs", testOtherVerbs},
	{"ethtool", testEthtool},
	{"our open", testOpen},
	{"our features", testFeatures},
	{"our doctor", testDoctor},
	{"our HTTP", testHTTP},
	{"HTTP in place", testInPlace},
	{"our DNS", testDNS},
	{"netdev beside us", testBeside},
	{"isolation", testIsolation},
	{"port masks", testPortMasks},
	{"EEXIST by tag", testTagConflict},
	{"merge without tag", testMergedRules},
	{"DEFAULT_MISS", testLeftToLinux},
	{"order against ntuple", testBeforeNtuple},
	{"denied source", testDenied},
	{"MTU", testMTU},
	{"host mode", testHostMode},
	{"AF_XDP", testXDP},
	{"AF_XDP for life", testXDPLife},
	{"upgrade", testUpgrades},
	{"loopback", testLoopback},
	{"error cases", testErrors},
	{"recovery", testRecovery},
	{"link", testLink},
	{"driver removed", testRemoved},
	{"PCI removal", departs(pciRemoval)},
	{"driver unbound", departs(driverUnbound)},
	{"devlink reload", departs(devlinkReload)},
	{"device failure", departs(deviceFailure)},
	{"clean teardown", testTeardown},
	{"re-probe", testReprobe},
	{"machine over", testOver},
}

// rowsOf are the rows that a kernel runs, where these are not all: 5.10 shows that the driver and
// the model work under the oldest kernel, in a minute.
var rowsOf = map[string][]string{"5.10": {"probe", "netdev ping", "ibv_devinfo", "our open",
	"our HTTP", "our DNS", "isolation", "recovery", "link", "driver removed", "clean teardown",
	"re-probe"}}

// only are rows that make test has under one kernel only, as time allows.
var only = map[string]string{"upgrade": upgradeKernel, "HTTP in place": upgradeKernel,
	"AF_XDP": "7.2", "AF_XDP for life": "6.12"}

// runs reports whether a kernel runs a row.
func runs(version, row string) bool {
	if one, some := only[row]; some && one != version && os.Getenv("VM") == "" {
		return false
	}
	rows, some := rowsOf[version]
	return !some || slices.Contains(rows, row)
}

// inOrder is the order of the kernels, so that on a slow machine the limit of go test leaves out
// those that add least: the newest that has all rows comes first, then the oldest.
var inOrder = []string{"7.2", "5.10", "6.12", "6.1", "7.3"}

// place is a kernel's place in the order.
func place(version string) int { return slices.Index(inOrder, version) }

// kernels are the kernels to test: all, or the one named.
func kernels(name string) ([]string, error) {
	known := rig.KernelVersions()
	if name == "" {
		return known, nil
	}
	if !slices.Contains(known, name) {
		return nil, fmt.Errorf("KERNEL=%s: no such kernel is known, choose one of %s", name,
			strings.Join(known, ", "))
	}
	return []string{name}, nil
}

// cardUnder is the NIC that the model emulates under a kernel: one of four generations, so that all
// are tested in the time of one. CARD names another.
func cardUnder(version string) string {
	if name := os.Getenv("CARD"); name != "" {
		return name
	}
	return map[string]string{"6.1": "cx5", "6.12": "cx4lx", "7.2": "cx7"}[version]
}

// kernelTime and checkTime are enough for a kernel and for one check, on a slow or busy machine.
const kernelTime, checkTime = 3 * time.Minute, 90 * time.Second

// endTime allows for what takes longer than it should, and for ending the machine: the limit of go
// test would take the results of all rows with it.
const endTime = 6 * time.Minute

// overTime says how long before the limit a machine that still runs is stopped: what it was doing
// then fails, with its console, and all other results are kept.
const overTime = 90 * time.Second

// timeEnv names the environment variable that says for how long these tests may take ("18m"): a
// limit of their own, below that of go test, which other packages of the same command need, too.
const timeEnv = "VM_TIME"

// began notes when the tests began.
var began = time.Now()

// limit returns when the tests must have ended, if at all, and whose limit that is.
func limit(t *testing.T) (at time.Time, whose string) {
	if deadline, ok := t.Deadline(); ok {
		at, whose = deadline, "go test -timeout"
	}
	if text := os.Getenv(timeEnv); text != "" {
		most, err := time.ParseDuration(text)
		if err != nil {
			t.Fatalf("%s: %v", timeEnv, err)
		}
		if own := began.Add(most); whose == "" || own.Before(at) {
			at, whose = own, timeEnv
		}
	}
	return at, whose
}

// beforeLimit returns a context that ends overTime before the limit.
func beforeLimit(t *testing.T) context.Context {
	deadline, whose := limit(t)
	if whose == "" {
		return t.Context()
	}
	ctx, cancel := context.WithDeadline(t.Context(), deadline.Add(-overTime))
	t.Cleanup(cancel)
	return ctx
}

// timeFor returns an error when less time than that is left until endTime before the limit.
func timeFor(t *testing.T, what time.Duration) error {
	deadline, whose := limit(t)
	if left := time.Until(deadline) - endTime; whose != "" && left < what {
		return fmt.Errorf("%v are left of %s, this may take %v", left.Round(time.Second), whose,
			what)
	}
	return nil
}

func TestStockKernels(t *testing.T) {
	need.Long(t, "boots virtual machines")
	versions, err := kernels(os.Getenv("KERNEL"))
	if err != nil {
		t.Fatal(err)
	}
	need.TUN(t)
	ctx := beforeLimit(t)
	p := gather(t, ctx)
	tab := newTable(slices.Concat(checks, outageRows(), identityChecks, functionRows(),
		xdpDriverRows()))
	slices.SortFunc(versions, func(a, b string) int { return place(a) - place(b) })
	for _, v := range versions {
		t.Run("linux-"+v, func(t *testing.T) {
			testKernel(t, ctx, p, v, tab)
			testOutages(t, ctx, p, v, tab)
			testIdentity(t, ctx, p, v, tab)
			testFunctions(t, ctx, p, v, tab)
			testXDPDrivers(t, ctx, p, v, tab)
		})
	}
	t.Logf("what stock kernels say:\n%s", tab)
}

// testKernel runs all checks under one kernel, until the machine ends.
func testKernel(t *testing.T, ctx context.Context, p *machineParts, version string, tab *table) {
	need.That(t, "time", timeFor(t, kernelTime))
	w := boot(t, ctx, p, version, simnic.Config{Seed: uint64(len(version)),
		Card: cardUnder(version)}, pcie.Config{})
	for _, c := range checks {
		tab.run(t, version, c.name, checkTime, func(t *testing.T) {
			c.run(t, w)
			w.noComplaints(t)
		})
		if err := w.vm.Err(); err != nil && !w.broken {
			t.Fatal(err)
		}
	}
}

// testProbe loads the kernel's own modules: they must create a netdev and an RDMA device for the
// model.
func testProbe(t *testing.T, w *world) {
	w.must(t, rig.Request{Op: "load", Timeout: patience})
	w.appeared(t)
}

// appeared waits until the kernel has created the netdev and the RDMA device, and gives the netdev
// its addresses.
func (w *world) appeared(t *testing.T) {
	t.Helper()
	glob := func(pattern string) string {
		return w.must(t,
			rig.Request{Op: "glob", Path: pattern}).Output
	}
	eventually(t, func() string { return "uverbs0 and eth0" }, func() bool {
		return strings.HasSuffix(glob("/sys/class/infiniband/mlx5_0/device/net/*"), "eth0") &&
			glob("/dev/infiniband/uverbs0") != ""
	})
	w.run(t, "ip", "link", "set", "lo", "up")
	w.run(t, "ip", "link", "set", "eth0", "up")
	w.run(t, "ip", "addr", "replace", netdev4.String(), "dev", "eth0")
	w.run(t, "ip", "addr", "replace", netdev6.String(), "dev", "eth0", "nodad")
}

// testNetdevPing pings the guest kernel's netdev from outside, and the outside address from the
// guest.
func testNetdevPing(t *testing.T, w *world) {
	for _, a := range []struct {
		guest,
		outside netip.Prefix
	}{{netdev4, outside4}, {netdev6, outside6}} {
		w.pingsOutside(t, a.outside.Addr())
		w.pinged(t, a.guest.Addr())
	}
}
