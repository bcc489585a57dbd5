//go:build linux

package vm

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/vm/pcie"
	"github.com/rdma-netstack/rdma-netstack/tests/vm/rig"
)

// Servers take each other's places under clients: processes that each open the device by uverbs,
// with queues and rules of their own.

// upgradeKernel names the one kernel for whose upgrades, and sending in place, make test has time.
const upgradeKernel = "6.12"

// upgradesOf are how often servers are replaced, under how many clients, and whether one is killed.
// Without queries there is no DNS server.
type upgradesOf struct {
	upgrades, bodies, requesters, queries int
	killed                                bool
}

// manyUpgrades are those of make test-vm.
var manyUpgrades = upgradesOf{5, bodies, requesters, 4, true}

// drainLimit is how long connections may take to finish: emulated processors on a busy machine may
// need more than the usual half a minute.
const drainLimit = 4 * time.Minute

// upgradeMode is one kind of address and MAC that servers have.
type upgradeMode struct {
	name       string
	web, names netip.Addr // of the servers; the second may be none
	args       func(of netip.Addr) []string
	few        upgradesOf // of make test
}

// at is where the web server is.
func (m upgradeMode) at() string { return netip.AddrPortFrom(m.web, 80).String() }

// dir begins the names of the servers' runtime directories.
func (m upgradeMode) dir() string { return "/run/" + strings.ReplaceAll(m.name, " ", "-") + "-" }

func ownAddress(of netip.Addr) []string { return []string{"--address", of.String() + "/24"} }

func hostAddress(netip.Addr) []string { return []string{"--address", "host"} }

func netdevMAC(of netip.Addr) []string { return append(ownAddress(of), "--mac", "netdev") }

var upgradeModes = []upgradeMode{
	{"own MAC", slice4.Addr(), netip.MustParseAddr("10.77.0.4"), ownAddress,
		upgradesOf{1, 2, 8, 0, true}},
	{"host", netdev4.Addr(), netdev4.Addr(), hostAddress, upgradesOf{1, 2, 8, 2, false}},
	{"netdev's MAC", slice4.Addr(), netip.Addr{}, netdevMAC, upgradesOf{1, 2, 8, 0, false}},
}

// testUpgrades replaces a web and a DNS server in each mode.
func testUpgrades(t *testing.T, w *world) {
	for _, m := range upgradeModes {
		n := m.few
		if os.Getenv("VM") != "" {
			n = manyUpgrades
		}
		if !m.names.IsValid() {
			n.queries = 0
		}
		t.Run(m.name, func(t *testing.T) { w.upgrades(t, m, n) })
	}
}

func (w *world) upgrades(t *testing.T, m upgradeMode, n upgradesOf) {
	before := w.nic.Objects()
	web := w.upgradable(m, "http", append(m.args(m.web), "--debug-endpoints", "--min-rate",
		minRate)...)
	names := w.upgradable(m, "dns", append(m.args(m.names), "--zone", "/etc/example.zone",
		"--response-rate", "0")...)
	web.next(t)
	l := w.clientsOfUpgrades(t, m, n)
	q := &queries{w: w, at: netip.AddrPortFrom(m.names, 53).String()}
	if n.queries > 0 {
		names.next(t)
		q.start(t, n.queries)
	}
	for i := range n.upgrades {
		began := time.Now()
		web.upgrade(t)
		took := time.Since(began)
		if n.queries > 0 {
			names.upgrade(t)
			q.progress(t)
		}
		l.progress(t, fmt.Sprintf("after upgrade %d", i+1))
		t.Logf("upgrade %d of the web server: %v, the longest pause of a client %v", i+1,
			took.Round(time.Millisecond), time.Duration(l.gap.Swap(0)).Round(time.Millisecond))
	}
	w.onRings(t, l)
	l.stop()
	if n.killed {
		w.replacesKilled(t, web, m, n)
	}
	q.stop()
	if err := errors.Join(l.losses(), q.err()); err != nil {
		t.Errorf("clients failed: %v", err)
	}
	t.Logf("in the upgrades %d KiB in %d transfers at once, %d requests, %d of them repeated; "+
		"%d queries", l.sum(0, n.bodies)*bodyPiece>>10, n.bodies,
		l.sum(n.bodies, n.bodies+n.requesters), l.repeated.Load(), q.answered.Load())
	web.end(t)
	if n.queries > 0 {
		names.end(t)
	}
	w.nothingOf(t, m, before)
}

// clientsOfUpgrades starts the web server's clients.
func (w *world) clientsOfUpgrades(t *testing.T, m upgradeMode, n upgradesOf) *clients {
	t.Helper()
	l := &clients{w: w, at: m.at(), again: true, body: 2 << 20, pause: 2 * time.Millisecond}
	l.start(t, n.bodies, n.requesters)
	return l
}

// upgradable is a server that is replaced by the next again and again.
type upgradable struct {
	w    *world
	dir  string // its runtime directory
	argv []string
	job  int
}

// upgradable is a server of a kind ("http") with its address and flags.
func (w *world) upgradable(m upgradeMode, kind string, flags ...string) *upgradable {
	return &upgradable{w: w, dir: m.dir() + kind, argv: append([]string{"rdma-netstack",
		"serve", kind, "--device", "mlx5_0", "--queues", "2", "--take-over", "auto",
		"--drain", drainLimit.String(), "--log-level", "info"}, flags...)}
}

// next starts a server in the place of the one that runs, if any, and returns that.
func (u *upgradable) next(t *testing.T) (before int) {
	t.Helper()
	before, w := u.job, u.w
	u.job = w.must(t, rig.Request{Op: "start", Argv: u.argv,
		Env: []string{"RUNTIME_DIRECTORY=" + u.dir}}).ID
	job := u.job
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("a server says: %s", w.output(t, job))
		}
		w.vm.Do(rig.Request{Op: "stop", Job: job, Signal: 9, Timeout: patience})
	})
	eventually(t, func() string { return "rdma-netstack says: " + w.output(t, job) },
		func() bool { return strings.Contains(w.output(t, job), "try: ") })
	return before
}

// upgrade replaces the server; the one before has to end by itself, with nothing cut.
func (u *upgradable) upgrade(t *testing.T) {
	t.Helper()
	before := u.next(t)
	r, err := u.w.vm.Do(rig.Request{Op: "wait", Job: before, Timeout: drainLimit + patience})
	if err != nil || r.Code != 0 || !strings.Contains(r.Output, "drained: no connection ") {
		t.Errorf("the server before ended with %d, %v: %s", r.Code, err, r.Output)
	}
}

func (u *upgradable) end(t *testing.T) {
	t.Helper()
	(&server{u.w, u.job}).stop(t)
}

// replacesKilled replaces the server while it has a connection that it cannot finish, has clients
// use the next, and kills the one before: its connection ends when the client sends something, and
// the clients of the next do not notice.
func (w *world) replacesKilled(t *testing.T, u *upgradable, m upgradeMode, n upgradesOf) {
	t.Helper()
	conn := w.holding(t, m.at())
	before := u.next(t)
	l := w.clientsOfUpgrades(t, m, n)
	l.progress(t, "beside the server before")
	if r, err := w.vm.Do(rig.Request{Op: "stop", Job: before, Signal: int(unix.SIGKILL),
		Timeout: patience}); err != nil || r.Code != 128+9 {
		t.Errorf("the server before ended with %d, %v: %s", r.Code, err, r.Output)
	}
	eventually(t, func() string { return "the next to know: " + w.output(t, u.job) },
		func() bool {
			return strings.Contains(w.output(t, u.job), "the process taken over from has ended")
		})
	fmt.Fprint(conn, "some of the body")
	if _, err := io.ReadAll(conn); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("a connection of the server that was killed: %v, want it reset", err)
	}
	l.progress(t, "after the server before was killed")
	w.onRings(t, l)
	l.stop()
	if err := l.losses(); err != nil {
		t.Errorf("clients of the next failed: %v", err)
	}
}

// holding opens a connection of whose request the server waits for the body.
func (w *world) holding(t *testing.T, at string) net.Conn {
	t.Helper()
	conn, err := w.outside.DialContext(w.ctx, "tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(2 * patience))
	fmt.Fprint(conn, "POST /-/echo HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n"+
		"Content-Length: 1000\r\n\r\n")
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil ||
		!strings.Contains(line, "100 Continue") {
		t.Fatalf("the request of the server to be killed: %v, %q", err, line)
	}
	return conn
}

// onRings requires that clients are served by the rings of one process, and not by packet sockets.
func (w *world) onRings(t *testing.T, l *clients) {
	t.Helper()
	before := w.nic.Counters()
	l.progress(t, "on rings")
	after := w.nic.Counters()
	slice := after.Slice.TxPackets - before.Slice.TxPackets
	netdev := after.Netdev.TxPackets - before.Netdev.TxPackets
	if n := uint64(len(l.steps)); slice < n || netdev > slice/4 {
		t.Errorf("for %d clients the rings sent %d frames, the netdev %d", n, slice, netdev)
	}
}

// nothingOf requires that the guest has nothing of the servers any more.
func (w *world) nothingOf(t *testing.T, m upgradeMode, before simnic.Objects) {
	t.Helper()
	if left := w.leftovers(t); left != "" {
		t.Errorf("left behind: %s", left)
	}
	if now := w.nic.Objects(); now.Flows != before.Flows {
		t.Errorf("the NIC has %d rules, %d before", now.Flows, before.Flows)
	}
	left := w.must(t, rig.Request{Op: "glob", Path: m.dir() + "*/*"}).Output
	if strings.Count(left, "\n") > 0 { // the one that was killed could not remove its admin socket
		t.Errorf("left behind: %s", left)
	}
	if m.web == netdev4.Addr() {
		w.kernels(t, m.web, 80, 53, 61440)
	}
	w.pinged(t, netdev4.Addr())
}

// TestHostUpgrades upgrades servers on the host's address, each time with the server before killed
// in the end, as often as UPGRADE_ROUNDS says, in one machine. It is not a part of make test.
func TestHostUpgrades(t *testing.T) {
	rounds, err := strconv.Atoi(os.Getenv("UPGRADE_ROUNDS"))
	if err != nil {
		need.That(t, "upgrades", fmt.Errorf("make test-vm-upgrades runs it, in an hour: %w", err))
	}
	need.TUN(t)
	ctx, p := t.Context(), gather(t, t.Context())
	w := boot(t, ctx, p, cmp.Or(os.Getenv("KERNEL"), "7.2"), simnic.Config{}, pcie.Config{})
	testProbe(t, w)
	m := upgradeModes[slices.IndexFunc(upgradeModes,
		func(m upgradeMode) bool { return m.web == netdev4.Addr() })]
	n := m.few
	n.killed = true
	for i := range rounds {
		t.Run(strconv.Itoa(i+1), func(t *testing.T) {
			w.upgrades(t, m, n)
			w.noComplaints(t)
		})
		if err := w.vm.Err(); err != nil {
			t.Fatal(err)
		}
	}
}
