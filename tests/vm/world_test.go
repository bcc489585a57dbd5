//go:build linux

package vm

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/internal/probe"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/vm/pcie"
	"github.com/rdma-netstack/rdma-netstack/tests/vm/rig"
)

// Addresses on the wire.
var (
	outside4, outside6 = netip.MustParsePrefix("10.77.0.1/24"), netip.MustParsePrefix("fd77::1/64")
	netdev4, netdev6   = netip.MustParsePrefix("10.77.0.2/24"), netip.MustParsePrefix("fd77::2/64")
	slice4, slice6     = netip.MustParsePrefix("10.77.0.3/24"), netip.MustParsePrefix("fd77::3/64")
)

// machineParts are the parts common to all machines; they are fetched and built once.
type machineParts struct {
	cache *rig.Cache
	qemu  *rig.QEMU
	tools *rig.Tools
	dir   string // binaries built for the guest

	verbsErr   error             // why there is no verbs
	libpcapErr error             // why there is no libpcap for captures on RDMA devices
	files      map[string]string // more files of the host for the guest, by path in the guest
	memory     int               // MiB of a machine
	cmdline    string            // more kernel command line
	finished   bool              // the wire takes only frames with checksums, of the MTU's length
	// second gives a machine a second netdev on the network outside; nil: none
	second func(*world, *machineParts, *rig.Machine)
}

// gather fetches and builds the parts, or skips the test where the packages are not available.
func gather(t *testing.T, ctx context.Context) *machineParts {
	t.Helper()
	p := &machineParts{dir: t.TempDir(), memory: 512}
	var err error
	p.cache, err = rig.OpenCache()
	need.That(t, "packages", err)
	t.Cleanup(func() { p.cache.Close() })
	p.qemu, err = p.cache.QEMU(ctx)
	need.That(t, "packages", err)
	p.tools, err = p.cache.Tools(ctx)
	need.That(t, "packages", err)
	build(t, "build", p.init(), "./guest")
	build(t, "build", p.binary(), "../../cmd/rdma-netstack")
	build(t, "test", p.uverbsTest(), "../../dv/uverbs")
	build(t, "test", p.dvTest(), "../../dv")
	build(t, "test", p.xdpTest(), "../../link/xdp")
	p.verbsErr = compile(p.verbs(), "testdata/verbs.c")
	return p
}

// compile builds a program from a C file that uses rdma-core, with this machine's libraries; the
// guest has those of Debian 12.
func compile(out, source string) error {
	cmd := exec.Command("gcc", "-O2", "-Wall", "-Werror", "-o", out, source, "-libverbs")
	if b, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("compile %s: %w\n%s", source, err, b)
	}
	return nil
}

func (p *machineParts) init() string       { return filepath.Join(p.dir, "init") }
func (p *machineParts) binary() string     { return filepath.Join(p.dir, "rdma-netstack") }
func (p *machineParts) verbs() string      { return filepath.Join(p.dir, "verbs") }
func (p *machineParts) dvTest() string     { return filepath.Join(p.dir, "dv.test") }
func (p *machineParts) xdpTest() string    { return filepath.Join(p.dir, "xdp.test") }
func (p *machineParts) uverbsTest() string { return filepath.Join(p.dir, "uverbs.test") }

// build makes a static binary: a program ("build") or the tests of a package ("test"). It has no
// symbols: the guest copies all of them into memory when it boots.
func build(t *testing.T, what, out, pkg string) {
	t.Helper()
	args := []string{"build", "-ldflags", "-s -w", "-o", out, pkg}
	if what == "test" {
		args = []string{"test", "-c", "-ldflags", "-s -w", "-o", out, pkg}
	}
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, b)
	}
}

// world is one running machine and the network namespace that its port is connected to.
type world struct {
	*testing.T
	ctx     context.Context
	kernel  *rig.Kernel
	tools   *rig.Tools
	vm      *rig.VM
	nic     *simnic.NIC
	fn      *pcie.Function
	rules   ruleWatch // told by fn
	outside *lab.Net
	wire    *watchedWire
	client  *probe.Client

	log        *rig.Log          // what the model logs
	finished   bool              // as machineParts has it
	verbsErr   error             // why the guest has no verbs
	libpcapErr error             // why it has no libpcap for captures on RDMA devices
	broken     bool              // the test made the machine fail
	serving    bool              // the web server on the guest kernel's own sockets runs
	complaints int               // of the model, known so far
	refusals   map[string]uint64 // firmware commands refused, known so far
}

// boot starts a machine with two processors, so that there are two completion vectors.
func boot(t *testing.T, ctx context.Context, p *machineParts, version string, nic simnic.Config,
	look pcie.Config) *world {
	t.Helper()
	w := &world{T: t, ctx: ctx, log: &rig.Log{}, tools: p.tools, finished: p.finished}
	var err error
	w.kernel, err = p.cache.Kernel(ctx, version)
	need.That(t, "packages", err)
	w.addNIC(nic, look)
	machine := rig.Machine{Kernel: w.kernel, Memory: p.memory, Append: p.cmdline, CPUs: 2,
		Log: w.log}
	if p.second != nil {
		p.second(w, p, &machine)
	}
	dir := t.TempDir()
	initrd := filepath.Join(dir, "initrd")
	files := map[string]string{
		"/bin/rdma-netstack": p.binary(), "/bin/uverbs.test": p.uverbsTest(),
		"/bin/dv.test": p.dvTest(), "/bin/xdp.test": p.xdpTest(),
		"/etc/example.zone": "testdata/example.zone",
	}
	maps.Copy(files, p.files)
	w.libpcapErr = p.libpcapErr
	if w.verbsErr = p.verbsErr; p.verbsErr == nil {
		files["/bin/verbs"] = p.verbs()
	}
	if err := rig.Initramfs(initrd, w.kernel, p.tools, p.init(), files); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	machine.Initrd = initrd
	w.vm, err = rig.Start(ctx, p.qemu, machine, w.fn, dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.end)
	t.Logf("linux %s up after %v, with a %s", w.kernel.Release,
		time.Since(start).Round(100*time.Millisecond), w.nic.Card().Title)
	return w
}

// addNIC makes the NIC, and the namespace of the host with a TAP as the NIC's wire.
func (w *world) addNIC(nic simnic.Config, look pcie.Config) {
	w.Helper()
	logger := slog.New(slog.NewMultiHandler(
		slog.NewTextHandler(testWriter{w.T}, &slog.HandlerOptions{Level: slog.LevelWarn}),
		slog.NewTextHandler(w.log, nil)))
	card, err := simnic.CardNamed(nic.Card)
	if err != nil {
		w.Fatal(err)
	}
	nic.Logger, look.Logger = logger, logger
	nic.RealTimeClock = card.RealTimeOption // as when the recordings were made
	if w.nic, err = simnic.New(nic); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { w.nic.Close() })
	look.Rules = w.rules.change
	w.fn = pcie.New(w.nic, look)
	if w.outside, err = lab.New("outside"); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { w.outside.Close() })
	err = w.outside.Do(func() error {
		tap, err := wire.OpenTAP("wire0")
		if err != nil {
			return err
		}
		if err := lab.Up("wire0",
			lab.Setup{Addresses: []netip.Prefix{outside4, outside6}}); err != nil {
			return err
		}
		w.wire = &watchedWire{Wire: tap}
		if w.finished {
			return w.nic.ConnectWire(wire.WithFaults(w.wire, wire.FaultConfig{}))
		}
		return w.nic.ConnectWire(w.wire)
	})
	if err != nil {
		w.Fatal(err)
	}
	w.client = probe.New(w.outside, "ping", "curl", "dig")
}

// noComplaints fails the test if the model has logged a use that no driver makes, or if counters do
// not add up.
func (w *world) noComplaints(t *testing.T) {
	t.Helper()
	if v := w.nic.Violations(); len(v) > w.complaints {
		t.Errorf("the model complains: %q", v[w.complaints:])
		w.complaints = len(v)
	}
	if now := w.refused(); !maps.Equal(now, w.refusals) {
		t.Errorf("firmware commands refused: %v, before %v", now, w.refusals)
		w.refusals = now
	}
}

// refused counts the firmware commands that the model has refused.
func (w *world) refused() map[string]uint64 {
	names := map[string]uint64{}
	for name, s := range w.fn.Commands() {
		if s.Refused > 0 {
			names[name] = s.Refused
		}
	}
	return names
}

// end powers the machine off; after a failed test it logs the guest kernel's messages.
func (w *world) end() {
	if w.Failed() {
		w.logGuest()
	}
	if err := w.vm.Close(); err != nil {
		w.Errorf("shutdown: %v", err)
	}
	w.fn.Close()
}

// testWriter sends log lines to the test.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// patience is the time limit for an expected event: the guest's processors are emulated, and the
// machine may be busy.
const patience = time.Minute

// run runs a program in the guest, which must succeed, and returns its output.
func (w *world) run(t *testing.T, argv ...string) string {
	t.Helper()
	out, code := w.try(t, argv...)
	if code != 0 {
		t.Fatalf("%s: exit %d\n%s", strings.Join(argv, " "), code, out)
	}
	return out
}

// try runs a program in the guest and returns output and exit code.
func (w *world) try(t *testing.T, argv ...string) (string, int) {
	t.Helper()
	r, err := w.vm.Do(rig.Request{Op: "run", Argv: argv, Timeout: 2 * patience})
	if err != nil {
		t.Fatal(err)
	}
	return r.Output, r.Code
}

// must sends a request of another kind, which must succeed.
func (w *world) must(t *testing.T, q rig.Request) rig.Reply {
	t.Helper()
	r, err := w.vm.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// start runs a program in the guest's background and returns its job number; it is killed when the
// test ends, which logs the end of its output if it has failed.
func (w *world) start(t *testing.T, argv ...string) int {
	t.Helper()
	job := w.must(t, rig.Request{Op: "start", Argv: argv}).ID
	t.Cleanup(func() {
		r, _ := w.vm.Do(rig.Request{Op: "stop", Job: job, Signal: 9, Timeout: patience})
		logProgram(t, argv, r.Output)
	})
	return job
}

// output is what a background program has printed so far.
func (w *world) output(t *testing.T, job int) string {
	t.Helper()
	return w.must(t, rig.Request{Op: "stop", Job: job}).Output
}

// eventually waits until ok reports true; what describes the event in the error.
func eventually(t *testing.T, what func() string, ok func() bool) {
	t.Helper()
	eventuallyIn(t, patience, what, ok)
}

// eventuallyIn is eventually with another limit.
func eventuallyIn(t *testing.T, limit time.Duration, what func() string, ok func() bool) {
	t.Helper()
	eventuallyWithin(t, func() time.Duration { return limit }, what, ok)
}

// eventually waits for a program that computes: the time does not count for which the guest's
// processors waited for one of this machine. Beside 30 other programs they ran for 15 s and waited
// for 99 s, and DPDK's testpmd, which starts within 10 s, took more than a minute.
func (w *world) eventually(t *testing.T, what func() string, ok func() bool) {
	t.Helper()
	waited := w.vm.Waiting()
	eventuallyWithin(t, func() time.Duration { return patience + waited() }, what, ok)
}

// eventuallyWithin does what eventually does, with a limit that may grow meanwhile.
func eventuallyWithin(t *testing.T, limit func() time.Duration, what func() string,
	ok func() bool) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); !ok(); <-tick.C {
		if most := limit(); time.Since(began) > most {
			t.Fatalf("not in %v: %s", most.Round(time.Millisecond), what())
		}
	}
}

// contains checks that a program printed each of the wanted texts; runs of blanks count as one.
func contains(t *testing.T, out string, want ...string) {
	t.Helper()
	flat := strings.Join(strings.Fields(out), " ")
	for _, s := range want {
		if !strings.Contains(flat, s) {
			t.Errorf("%q is not in:\n%s", s, out)
		}
	}
}

func url(p netip.Prefix, port int) string {
	return fmt.Sprintf("http://%s", netip.AddrPortFrom(p.Addr(), uint16(port)))
}
