//go:build linux

package vm

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/vm/pcie"
	"github.com/rdma-netstack/rdma-netstack/tests/vm/rig"
)

// programs are the rows of TestUserPrograms.
var programs = []check{
	{"perftest", testPerftest},
	{"rule rate", testRuleRate},
	{"sniffer", testSniffer},
	{"sockperf", testSockperf},
	{"ethtool under load", testTour},
	{"LRO", testMerging},
	{"tcpdump", testTcpdump},
	{"pause", testPause},
	{"reloads", testReloads},
}

// TestUserPrograms has programs use the model under one kernel that know the netdev, or the RDMA
// device through libibverbs, and has its user change the netdev's settings. It is not a part of
// make test.
func TestUserPrograms(t *testing.T) {
	p, version := gatherForUsers(t, "5 to 12 minutes")
	p.libpcap(t)
	p.memory = 896
	w := boot(t, t.Context(), p, version, simnic.Config{}, pcie.Config{})
	t.Run("probe", func(t *testing.T) { testProbe(t, w) })
	for _, c := range programs {
		t.Run(strings.ReplaceAll(c.name, " ", "-"), func(t *testing.T) {
			c.run(t, w)
			w.noComplaints(t)
			w.cleanLog(t)
		})
	}
}

// gatherForUsers is gather for tests of other users of the model, with their programs, and the
// kernel to run them under. It skips the test, which takes that long, unless USERS is set.
func gatherForUsers(t *testing.T, takes string) (p *machineParts, version string) {
	t.Helper()
	if os.Getenv("USERS") == "" {
		need.That(t, "users", fmt.Errorf("make test-vm-users runs it, in %s", takes))
	}
	need.TUN(t)
	p = gather(t, t.Context())
	var err error
	suite := cmp.Or(os.Getenv("SUITE"), "bookworm")
	p.tools, err = p.cache.UserTools(t.Context(), suite)
	need.That(t, "packages", err)
	var versions []string
	for _, pkg := range []string{"ibverbs-providers", "dpdk-dev", "perftest", "sockperf", "ethtool",
		"iproute2"} {
		versions = append(versions, pkg+" "+p.tools.Version(pkg))
	}
	t.Logf("debian %s: %s", suite, strings.Join(versions, ", "))
	return p, cmp.Or(os.Getenv("KERNEL"), "6.12")
}

// load is iperf3 between the netdev and outside: TCP in both directions at once.
type load struct {
	w      *world
	client *exec.Cmd
	ended  chan error
	output *rig.Log
}

// loadRate is iperf3's bit rate in each direction: emulated processors have time left beside it.
const loadRate = "8M"

// loaded starts the load, which goes on until the test ends.
func (w *world) loaded(t *testing.T) *load {
	t.Helper()
	server := w.start(t, "iperf3", "-s", "--forceflush")
	eventually(t, func() string { return "iperf3 listening: " + w.output(t, server) },
		func() bool { return strings.Contains(w.output(t, server), "listening") })
	l := &load{w: w, ended: make(chan error, 1), output: &rig.Log{}}
	l.client = exec.Command(need.Tool(t, "iperf3"), "-c", netdev4.Addr().String(), "--bidir",
		"-b", loadRate, "-t", "3600", "--forceflush", "--connect-timeout", "20000")
	l.client.Stdout, l.client.Stderr = l.output, l.output
	if err := w.outside.Start(l.client); err != nil {
		t.Fatal(err)
	}
	go func() { l.ended <- l.client.Wait() }()
	t.Cleanup(func() { l.client.Process.Kill(); <-l.ended })
	return l
}

// step is how many bytes the load moves each way to count as going on.
const step = 256 << 10

// flows checks that the load goes on in both directions, and that bytes come through the netdev
// unchanged, both ways.
func (l *load) flows(t *testing.T) {
	t.Helper()
	before := l.w.nic.Counters().Netdev
	eventually(t, func() string {
		now := l.w.nic.Counters().Netdev
		return fmt.Sprintf("iperf3 going on: %d bytes received, %d sent:\n%s",
			now.RxBytes-before.RxBytes, now.TxBytes-before.TxBytes, l.output)
	}, func() bool {
		now := l.w.nic.Counters().Netdev
		return now.RxBytes-before.RxBytes >= step && now.TxBytes-before.TxBytes >= step
	})
	select {
	case err := <-l.ended:
		l.ended <- err
		t.Fatalf("iperf3 ended: %v\n%s", err, l.output)
	default:
	}
	if err := l.w.client.Download(l.w.ctx, url(netdev4, netdevPort), step); err != nil {
		t.Error(err)
	}
	if err := l.w.client.Echo(l.w.ctx, url(netdev6, netdevPort), step); err != nil {
		t.Error(err)
	}
}

// served runs the web server on the guest kernel's own sockets, once.
func (w *world) served(t *testing.T) {
	t.Helper()
	if w.serving {
		return
	}
	w.serving = true
	w.must(t, rig.Request{Op: "serve", Argv: []string{fmt.Sprintf(":%d", netdevPort)}})
}
