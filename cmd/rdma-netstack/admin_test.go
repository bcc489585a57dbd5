package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/stack/admin"
)

// look runs a command and returns what it prints.
func look(args ...string) (stdout, stderr string, code int) {
	var out, errs bytes.Buffer
	code = run(args, &out, &errs)
	return out.String(), errs.String(), code
}

// serveFlagsOf returns the flags that serve http would have.
func serveFlagsOf(t *testing.T, args ...string) serveFlags {
	t.Helper()
	var f serveFlags
	cmd := &cobra.Command{}
	f.addTo(cmd)
	if err := cmd.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	if err := f.complete(":80", cmd.Flags().Changed); err != nil {
		t.Fatal(err)
	}
	return f
}

// TestLook looks at a server of this process with each command, and after its end.
func TestLook(t *testing.T) {
	f := serveFlagsOf(t, "--device", "sim", "--sim-wire", "none", "--address", "192.0.2.10/24",
		"--admin", "127.0.0.1:0")
	s, err := openSlice(t.Context(), f, warningLog(os.Stderr))
	if err != nil {
		t.Fatal(err)
	}
	defer s.closeAfter(nil)
	if _, err := s.stack.Listen("tcp", "192.0.2.10:80"); err != nil {
		t.Fatal(err)
	}
	pid := []string{"--pid", number(os.Getpid())}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"ss", "-tlnp"},
			"LISTEN 0      2048      192.0.2.10:80        0.0.0.0:*    users:((\""},
		{[]string{"ss", "-u", "-a"}, "State Recv-Q"},
		{[]string{"ss", "-a"}, "Netid State  Recv-Q Send-Q Local Address:Port Peer Address:Port"},
		{[]string{"status", "netstat", "-s"}, "Tcp:\n    0 active connection openings\n"},
		{[]string{"status", "errors"}, ""},
		{[]string{"status"}, "frames by rings of the software NIC on none, since "},
		{[]string{"errors"}, ""},
		{[]string{"status", "rules"}, "queue 0 and Linux  "},
		{[]string{"status", "health"}, "  reporter device\n    state healthy error 0 recover 0 " +
			"grace_period 0 auto_recover true auto_dump true\n"},
		{[]string{"health", "show", "rx"}, "  reporter rx\n"},
		{[]string{"status", "health", "dump", "tx"}, "tx0 at "},
		{[]string{"health", "dump", "--now", "rx"}, "  wqe  0     posted"},
		{[]string{"status", "stats", "--all"}, "     rx0_packets: 0\n"},
		{[]string{"top", "--interval", "1ms", "--count", "2"}, "connections, 0 opened/s"},
		{[]string{"top", "--interval", "1ms", "--count", "1", "--json"}, `"queues":[{"queue":0,`},
		{[]string{"stats", "--interval", "1ms", "--count", "2"}, " s:\n"},
	} {
		stdout, stderr, code := look(append(c.args, pid...)...)
		if code != exitDone || stderr != "" || !strings.Contains(stdout, c.want) {
			t.Errorf("%v: code %d, %q\n%s", c.args, code, stderr, stdout)
		}
	}
	checkProfiles(t, pid)
	var sockets []stack.Socket
	var counters admin.Counters
	var problems []admin.Problem
	var reporters []admin.Reporter
	var dumps []admin.Dump
	var info admin.Info
	var rules []ownedRule
	var all overview
	for command, v := range map[string]any{"ss": &sockets, "status stats": &counters,
		"status errors": &problems, "status health": &reporters, "status": &all,
		"status health dump device": &dumps, "status rules": &rules} {
		stdout, _, _ := look(append(append(strings.Fields(command), "--json"), pid...)...)
		if err := json.Unmarshal([]byte(stdout), v); err != nil {
			t.Errorf("%s --json: %v", command, err)
		}
	}
	queues := s.stack.Device().NumTx() + 1
	if all.Info.PID != os.Getpid() || len(all.Health) != 6 {
		t.Errorf("status: %+v", all)
	}
	if len(reporters) != 6 || len(dumps) != queues || len(dumps[queues-1].WQEs) == 0 {
		t.Errorf("%d reporters, %d dumps of %d queues", len(reporters), len(dumps), queues)
	}
	_, stderr, code := look(append(strings.Fields("status health recover device"), pid...)...)
	if code != exitFailed || !strings.Contains(stderr, "reporter device is healthy") {
		t.Errorf("recover of what is healthy: code %d, %q", code, stderr)
	}
	server, err := (&lookFlags{pid: os.Getpid()}).server(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	backend := func() string {
		t.Helper()
		if err := server.Get(t.Context(), "/info", &info); err != nil {
			t.Fatal(err)
		}
		return info.Backend
	}
	if b := backend(); b != "rings" {
		t.Errorf("backend %s", b)
	}
	s.sim.FailDevice()
	for deadline := time.Now().Add(time.Minute); backend() != "none"; {
		if time.Now().After(deadline) {
			t.Fatalf("backend %s without a device", info.Backend)
		}
	}
	s.closeAfter(nil)
	if _, stderr, code := look(append([]string{"ss"}, pid...)...); code != exitFailed ||
		!strings.Contains(stderr, "server") {
		t.Errorf("after the end: code %d, %q", code, stderr)
	}
}

// TestAdminAddress: what is wrong with --admin is said before anything is opened, and what is taken
// is said when it is.
func TestAdminAddress(t *testing.T) {
	for _, at := range []string{"9100", "127.0.0.1:"} {
		_, stderr, code := look("serve", "http", "--device", "sim", "--admin", at)
		if code != exitUsage || !strings.Contains(stderr, "such as 127.0.0.1:9100") {
			t.Errorf("--admin %s: code %d, %q", at, code, stderr)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, stderr, code := look("serve", "http", "--device", "sim", "--sim-wire", "none", "--admin",
		l.Addr().String())
	if code != exitFailed || !strings.Contains(stderr, "--admin: listen tcp") {
		t.Errorf("code %d, %q", code, stderr)
	}
}

// TestAdminHosts: --admin answers those who ask for an address or a name that it was given, and
// nobody else; it has the status page.
func TestAdminHosts(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	l.Close()
	f := serveFlagsOf(t, "--device", "sim", "--sim-wire", "none", "--address", "192.0.2.10/24",
		"--admin", at, "--admin-host", "node1.example")
	s, err := openSlice(t.Context(), f, warningLog(os.Stderr))
	if err != nil {
		t.Fatal(err)
	}
	defer s.closeAfter(nil)
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]int{at: 200, "localhost:9100": 200, "node1.example": 200,
		name: 200, "evil.example": 421} {
		req, err := http.NewRequest("GET", "http://"+at+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if page := strings.Contains(string(text), "<h1"); err != nil || resp.StatusCode != want ||
			page != (want == 200) {
			t.Errorf("Host %s: %d, %.60q, %v; want %d", host, resp.StatusCode, text, err, want)
		}
	}
	_, stderr, code := look("serve", "http", "--device", "sim", "--admin-host", "node1.example")
	if code != exitUsage || !strings.Contains(stderr, "--admin-host is for --admin") {
		t.Errorf("without --admin: code %d, %q", code, stderr)
	}
}

// TestHealthUsage: what is wrong with the command line is said before a server is looked for.
func TestHealthUsage(t *testing.T) {
	for line, want := range map[string]string{
		"heal":              `no reporter "heal": want one of tx, rx, link, device, stack`,
		"dump":              "dump needs a reporter: one of tx,",
		"recover --json":    "recover needs a reporter",
		"show tx rx":        `unexpected argument "rx"`,
		"dump tx --pid x":   `invalid value "x" for --pid`,
		"show --now tx":     "--now is for dump",
		"dump tx --now --x": "unknown flag --x",
	} {
		args := append([]string{"status", "health"}, strings.Fields(line)...)
		if _, stderr, code := look(args...); code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("health %s: code %d, %q", line, code, stderr)
		}
	}
}

// TestPicture: rates are of what was added, of rings and of packet sockets.
func TestPicture(t *testing.T) {
	at := time.Unix(1000, 0)
	before := admin.Counters{Time: at, Counters: map[string]uint64{"rx0_packets": 100,
		"rx0_bytes": 0, "rx0_hits": 0, "rx0_polls": 0, "tx0_packets": 7, "tx0_doorbells": 0,
		"rx1_frames": 0, "rx1_bytes": 0, "rx1_asleep_nanos": 5}}
	now := admin.Counters{Time: at.Add(2 * time.Second), Counters: map[string]uint64{
		"rx0_packets": 300, "rx0_bytes": 500000, "rx0_hits": 20, "rx0_polls": 50,
		"rx0_drops_error": 4, "tx0_packets": 107, "tx0_doorbells": 25, "rx1_frames": 8,
		"rx1_bytes": 1, "tcp_retransmits": 6, "rx1_asleep_nanos": 1.5e9 + 5},
		Gauges: map[string]uint64{"tcp_current_established": 3, "rx0_ring_left": 256,
			"rx0_ring_size": 1024, "tx0_ring_used": 0, "tx0_ring_size": 512}}
	got := pictureOf(before, now)
	want := queueRates{Queue: 0, RxPackets: 100, RxMbit: 2, Batch: 10, EmptyPolls: 15, RxDrops: 2,
		TxPackets: 50, PerDoorbell: 4, Busy: 1, RxLeft: new(0.25), TxUsed: new(0.0)}
	if len(got.Queues) != 2 || !reflect.DeepEqual(got.Queues[0], want) ||
		got.Queues[1].RxPackets != 4 || got.Connections != 3 || got.Retransmits != 3 {
		t.Errorf("%+v, want %+v first", got, want)
	}
	if q := got.Queues[1]; q.Busy != 0.25 || q.RxLeft != nil {
		t.Errorf("packet sockets: busy %v, ring %v, want 0.25 and none", q.Busy, q.RxLeft)
	}
	var b strings.Builder
	got.print(&b)
	for _, line := range []string{"BUSY%  RX LEFT%", "  100        25 ", "   25         - "} {
		if !strings.Contains(b.String(), line) {
			t.Errorf("%q is not in:\n%s", line, b.String())
		}
	}
}
