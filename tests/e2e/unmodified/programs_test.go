// Package unmodified builds programs whose source is not touched by rdma-netstack build, puts their
// sockets on a slice, and has clients on a kernel's sockets try them from another network
// namespace. The kernel's own counters tell that nothing went its way.
//
// A program is a package of a module as the module proxy gives it (PACKAGE@VERSION), or a main
// package below programs where a module has none, or has one with more than is tried.
package unmodified

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/tests/e2e/services/world"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// binaries names a directory where what was built is kept for another run.
var binaries = flag.String("bin", "", "directory of built programs; those in it are not built")

const (
	source    = "../../.." // of rdma-netstack
	hostIP    = "10.9.0.1"
	sliceIP   = "10.9.0.10" // on a MAC address of its own
	outsideIP = "10.9.0.2"
)

// program describes one that is built, and how it is tried.
type program struct {
	name  string
	build string // PACKAGE
	// args returns the arguments of the program, which is to be reached at host and may write to
	// dir.
	args func(t *testing.T, host, dir string) []string
	// sockets counts the slice's sockets that the program opens before it is ready, by kind.
	sockets map[string]int
	// client has the arguments of "clients", of which the address is the last one.
	client string
	// check takes the place of the client.
	check func(t *testing.T, s *session)
	quick bool // runs with -short
	sim   bool // runs on the software ConnectX as well
}

func programs() []program {
	none := func(*testing.T, string, string) []string { return nil }
	tcp, udp := map[string]int{"tcp_listener": 1}, map[string]int{"udp": 1}
	both := map[string]int{"tcp_listener": 1, "udp": 1}
	return []program{
		{name: "net http", build: "./programs/http", args: none, sockets: tcp, client: "http",
			quick: true, sim: true},
		{name: "example", args: none, sockets: both, client: "example", quick: true,
			build: "github.com/rdma-netstack/rdma-netstack/examples/unmodified"},
		{name: "miekg dns", build: "./programs/dns", args: none, sockets: both, client: "dns",
			quick: true, sim: true},
		{name: "quic-go", build: "github.com/quic-go/quic-go/example@v0.65.0", args: quicArgs,
			sockets: udp, check: overHTTP3WithECN, sim: true},
		{name: "Caddy", build: "./programs/caddy", args: caddyArgs, sockets: both,
			client: "caddy"},
		{name: "CoreDNS", build: "./programs/coredns", args: coreDNSArgs, sockets: both,
			check: reloadCoreDNS},
		{name: "gRPC", build: "google.golang.org/grpc/interop/server@v1.84.0", sockets: tcp,
			args: none, check: callGRPC},
		{name: "mochi MQTT", build: "github.com/mochi-mqtt/server/v2/cmd@v2.7.9", args: none,
			sockets: map[string]int{"tcp_listener": 3}, client: "mqtt"},
		{name: "pion TURN", build: "github.com/pion/turn/v5/examples/turn-server/simple@v5.1.3",
			args: func(_ *testing.T, host, _ string) []string {
				return []string{"-public-ip", host, "-users", "user=pass"}
			}, sockets: udp, client: "turn"},
		{name: "memberlist", build: "./programs/memberlist", args: none, sockets: both,
			client: "memberlist"},
		{name: "redcon", build: "./programs/redcon", args: none, sockets: tcp, client: "redcon"},
		{name: "NATS", build: "github.com/nats-io/nats-server/v2@v2.15.2", args: none,
			sockets: tcp, client: "nats"},
		{name: "gliderlabs ssh", build: "./programs/ssh", args: none, sockets: tcp, client: "ssh"},
		{name: "WireGuard bind", build: "./programs/wireguard", args: none, sockets: udp,
			client: "wireguard"},
		{name: "fasthttp", build: "./programs/fasthttp", args: none, sockets: tcp,
			client: "fasthttp"},
		{name: "websocket", build: "./programs/websocket", args: none, sockets: tcp,
			client: "websocket"},
		{name: "go-redis", build: "./programs/redisclient", args: dials("6379"),
			check: serves("redis-server")},
		{name: "go-sql-driver", build: "./programs/mysqlclient", args: dials("3306"),
			check: serves("mysql-server")},
		{name: "etcd", build: "./programs/etcd", args: etcdArgs,
			sockets: map[string]int{"tcp_listener": 2}, client: "etcd"},
		{name: "rclone", build: "github.com/rclone/rclone@v1.76.0",
			args: func(_ *testing.T, _, dir string) []string {
				return []string{"serve", "webdav", "--addr", ":8080", dir}
			}, sockets: tcp, client: "webdav"},
		{name: "Prometheus", args: prometheusArgs, sockets: tcp, check: scrape,
			build: "github.com/prometheus/prometheus/cmd/prometheus@v0.316.0"},
		{name: "chisel", sockets: tcp, check: tunnel, build: "github.com/jpillora/chisel@v1.11.3",
			args: func(*testing.T, string, string) []string {
				return []string{"server", "--port", "8080"}
			}},
	}
}

// mode says how the slice is had.
type mode struct {
	name string
	host string // the address that clients dial
	env  []string
	sim  bool
}

func modes() []mode {
	own := "RDMA_NETSTACK_ADDRESS=" + sliceIP + "/24"
	simulated := []string{"RDMA_NETSTACK_DEVICE=sim", "RDMA_NETSTACK_SIM_WIRE=packet:eth0", own}
	return []mode{
		{name: "host", host: hostIP,
			env: []string{"RDMA_NETSTACK_DEVICE=eth0", "RDMA_NETSTACK_ADDRESS=host"}},
		{name: "own MAC", host: sliceIP, env: []string{"RDMA_NETSTACK_DEVICE=eth0", own}},
		{name: "sim", host: sliceIP, env: simulated, sim: true},
		{name: "sim, 2 % loss", host: sliceIP, sim: true,
			env: append(slices.Clone(simulated), "RDMA_NETSTACK_FAULTS=drop=2%")},
	}
}

// TestPrograms makes the clients of each program try it in each mode.
func TestPrograms(t *testing.T) {
	need.NetNS(t)
	b := newBuilder(t)
	clients := b.plain(t, "clients", "./clients")
	for _, p := range programs() {
		t.Run(p.name, func(t *testing.T) {
			if !p.quick {
				need.Long(t, "a build of a minute")
			}
			binary := b.overlaid(t, p)
			for _, m := range modes() {
				if m.sim && !p.sim {
					continue
				}
				t.Run(m.name, func(t *testing.T) {
					if m.sim {
						need.Long(t, "the software ConnectX, also with losses")
					}
					s := start(t, b, p, m, binary, clients)
					before := s.kernelTraffic(t)
					if p.check != nil {
						p.check(t, s)
					} else {
						s.client(t, clients, p.client, m.host)
					}
					if after := s.kernelTraffic(t); !maps.Equal(before, after) {
						t.Errorf("by the kernel, before and after:\n%v\n%v", before, after)
					}
				})
			}
		})
	}
}

// builder builds programs.
type builder struct {
	dir     string
	command string // rdma-netstack
}

func newBuilder(t *testing.T) *builder {
	t.Helper()
	b := &builder{dir: *binaries}
	if b.dir == "" {
		b.dir = t.TempDir()
	}
	dir, err := filepath.Abs(b.dir)
	must(t, errors.Join(err, os.MkdirAll(dir, 0o755)))
	b.dir = dir
	b.command = filepath.Join(dir, "rdma-netstack")
	run(t, source, "go", "build", "-o", b.command, "./cmd/rdma-netstack")
	return b
}

// plain builds a package by go build.
func (b *builder) plain(t *testing.T, name, pkg string) string {
	t.Helper()
	to := filepath.Join(b.dir, name)
	if _, err := os.Stat(to); err == nil {
		return to
	}
	if module, version, ok := strings.Cut(pkg, "@"); ok {
		at := exec.Command("go", "install", module+"@"+version)
		at.Env = append(os.Environ(), "GOBIN="+b.dir, "GOWORK=off", "GOFLAGS=-trimpath")
		out, err := at.CombinedOutput()
		if err != nil {
			t.Fatalf("go install %s: %v\n%s", pkg, err, out)
		}
		must(t, os.Rename(filepath.Join(b.dir, filepath.Base(module)), to))
		return to
	}
	run(t, ".", "go", "build", "-o", to, pkg)
	return to
}

// overlaid builds a program by rdma-netstack build.
func (b *builder) overlaid(t *testing.T, p program) string {
	t.Helper()
	to := filepath.Join(b.dir, strings.ReplaceAll(p.name, " ", "-"))
	if _, err := os.Stat(to); err == nil {
		return to
	}
	args := []string{"build", "--source", source, "-o", to}
	if p.sim {
		args = append(args, "--sim")
	}
	run(t, ".", b.command, append(args, p.build)...)
	return to
}

// run runs a command that has to succeed, and returns what it prints on standard output.
func run(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, out.Bytes(),
			complaint.Bytes())
	}
	return out.String()
}

// session holds a program that runs, and its network.
type session struct {
	host, outside *lab.Net
	dir           string
	log           *lockedBuffer
	process       *os.Process
	mode          mode
	b             *builder
	clients       string
}

// newNetwork makes two hosts with a cable between them.
func newNetwork(t *testing.T) (host, outside *lab.Net) {
	t.Helper()
	var all []*lab.Net
	for _, name := range []string{"host", "outside"} {
		n, err := lab.New(name)
		must(t, err)
		t.Cleanup(func() { n.Close() })
		all = append(all, n)
	}
	must(t, lab.Cable(all[0], "eth0", all[1], "eth0"))
	for i, ip := range []string{hostIP, outsideIP} {
		setup := lab.Setup{Addresses: []netip.Prefix{netip.MustParsePrefix(ip + "/24")}}
		must(t, all[i].Do(func() error { return lab.Up("eth0", setup) }))
	}
	return all[0], all[1]
}

// start starts a program in a new network and waits until its sockets are open.
func start(t *testing.T, b *builder, p program, m mode, binary, clients string) *session {
	t.Helper()
	s := &session{dir: t.TempDir(), log: &lockedBuffer{}, mode: m, b: b, clients: clients}
	s.host, s.outside = newNetwork(t)
	args := p.args(t, m.host, s.dir)
	s.startProcess(t, binary, args, append([]string{"RUNTIME_DIRECTORY=" + s.dir}, m.env...))
	s.await(t, "sockets of the slice", func() bool {
		counts, err := s.sliceSockets()
		for kind, n := range p.sockets {
			if err != nil || counts[kind] < n {
				return false
			}
		}
		return true
	})
	return s
}

// startProcess starts a program on the host, which the end of the test ends.
func (s *session) startProcess(t *testing.T, binary string, args, env []string) {
	t.Helper()
	s.startCommand(t, exec.Command(binary, args...), env)
}

// startCommand starts a command on the host, which the end of the test ends.
func (s *session) startCommand(t *testing.T, cmd *exec.Cmd, env []string) {
	t.Helper()
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = s.log, s.log
	must(t, s.host.Start(cmd))
	s.process = cmd.Process
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		select {
		case err := <-ended:
			t.Errorf("the program ended by itself: %v", err)
		default:
			cmd.Process.Kill()
			<-ended
		}
		if t.Failed() {
			t.Logf("the program's output:\n%s", s.log)
		}
	})
}

// await asks until ok says yes, for a minute at most.
func (s *session) await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no %s after a minute", what)
		}
	}
}

// client runs a client outside, which has to succeed.
func (s *session) client(t *testing.T, binary string, args ...string) {
	t.Helper()
	if _, err := s.tryClient(t, binary, args...); err != nil {
		t.Error(err)
	}
}

// tryClient runs a client outside and returns what it prints.
func (s *session) tryClient(t *testing.T, binary string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	must(t, s.outside.Start(cmd))
	err := cmd.Wait()
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s%s", strings.Join(args, " "), err, out.Bytes(),
			complaint.Bytes())
	}
	return out.String(), err
}

// sliceSockets reads program_sockets_total{way="slice"} of the program, by kind.
func (s *session) sliceSockets() (map[string]int, error) {
	paths, err := filepath.Glob(filepath.Join(s.dir, "*.sock"))
	if err != nil || len(paths) == 0 {
		return nil, errors.Join(err, errors.New("no admin socket yet"))
	}
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", paths[0])
		}}}
	r, err := c.Get("http://localhost/metrics")
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	counts := map[string]int{}
	for lines := bufio.NewScanner(r.Body); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), "} ")
		_, labels, ok := strings.Cut(name, "program_sockets_total{")
		if !ok || !strings.Contains(labels, `way="slice"`) {
			continue
		}
		_, kind, _ := strings.Cut(labels, `kind="`)
		kind, _, _ = strings.Cut(kind, `"`)
		if counts[kind], err = strconv.Atoi(value); err != nil {
			return nil, err
		}
	}
	return counts, nil
}

// kernelTraffic reads the counters of the host's kernel that TCP connections and UDP datagrams
// raise: packet sockets, by which the slice has its frames, do not.
func (s *session) kernelTraffic(t *testing.T) map[string]string {
	t.Helper()
	counters := map[string]string{}
	must(t, s.host.Do(func() error {
		text, err := os.ReadFile("/proc/thread-self/net/snmp")
		if err != nil {
			return err
		}
		lines := strings.Split(string(text), "\n")
		for i := 0; i+1 < len(lines); i += 2 {
			names, values := strings.Fields(lines[i]), strings.Fields(lines[i+1])
			for j, name := range names {
				switch name = names[0] + name; name {
				case "Tcp:PassiveOpens", "Tcp:ActiveOpens", "Udp:InDatagrams", "Udp:OutDatagrams":
					counters[name] = values[j]
				}
			}
		}
		// Those of IPv6 itself rise with neighbour discovery, which is the kernel's, too.
		text, err = os.ReadFile("/proc/thread-self/net/snmp6")
		for line := range strings.Lines(string(text)) {
			switch words := strings.Fields(line); words[0] {
			case "Udp6InDatagrams", "Udp6OutDatagrams":
				counters[words[0]] = words[1]
			}
		}
		return err
	}))
	if len(counters) != 6 {
		t.Fatalf("counters of the kernel: %v", counters)
	}
	return counters
}

// lockedBuffer collects the output of a process.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func quicArgs(t *testing.T, _, _ string) []string {
	id := world.NewIdentity(t)
	return []string{"-bind", "0.0.0.0:6121", "-cert", id.Cert, "-key", id.Key}
}

func caddyArgs(t *testing.T, _, dir string) []string {
	id := world.NewIdentity(t)
	www := filepath.Join(dir, "www")
	must(t, os.Mkdir(www, 0o755))
	must(t, os.WriteFile(filepath.Join(www, "file"), blob(3_000_000), 0o644))
	list := func(v ...any) []any { return v }
	type object = map[string]any
	text, err := json.Marshal(object{
		"admin":   object{"disabled": true},
		"storage": object{"module": "file_system", "root": dir},
		"apps": object{
			"http": object{"servers": object{"test": object{
				"listen":                  list(":443"),
				"automatic_https":         object{"disable": true},
				"tls_connection_policies": list(object{}),
				"routes": list(object{"handle": list(object{"handler": "file_server",
					"root": www})}),
			}}},
			"tls": object{"certificates": object{"load_files": list(object{
				"certificate": id.Cert, "key": id.Key})}},
		},
	})
	must(t, err)
	config := filepath.Join(dir, "caddy.json")
	must(t, os.WriteFile(config, text, 0o644))
	return []string{"run", "--config", config}
}

func coreDNSArgs(t *testing.T, _, dir string) []string {
	config := filepath.Join(dir, "Corefile")
	writeCorefile(t, config, "192.0.2.1")
	return []string{"-conf", config}
}

// blob returns the n bytes that the clients expect.
func blob(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

// writeCorefile writes the configuration by which CoreDNS answers a.example with an address.
func writeCorefile(t *testing.T, name, address string) {
	t.Helper()
	text := fmt.Sprintf(".:53 {\n\treload 2s 1s\n\terrors\n\thosts {\n\t\t%s a.example\n\t}\n}\n",
		address)
	must(t, os.WriteFile(name, []byte(text), 0o644))
}

// reloadCoreDNS changes the configuration, by which CoreDNS makes new listeners and sockets of the
// Files of the old ones. A connection that the old listener has accepted may be closed unanswered.
func reloadCoreDNS(t *testing.T, s *session) {
	ask := func(want string) {
		s.await(t, "answer "+want, func() bool {
			got, err := s.tryClient(t, s.clients, "coredns", s.mode.host)
			return err == nil && got == want+"\n"+want+"\n"
		})
	}
	ask("192.0.2.1")
	writeCorefile(t, filepath.Join(s.dir, "Corefile"), "192.0.2.2")
	ask("192.0.2.2")
	if out := s.log.String(); !strings.Contains(out, "Reloading complete") {
		t.Error("it answers anew without a reload")
	}
}

// callGRPC runs test cases of gRPC's own client.
func callGRPC(t *testing.T, s *session) {
	client := s.b.plain(t, "grpc-client", "google.golang.org/grpc/interop/client@v1.84.0")
	for _, test := range []string{"empty_unary", "large_unary", "client_streaming",
		"server_streaming", "ping_pong", "status_code_and_message", "cancel_after_first_response"} {
		s.client(t, client, "-server_host", s.mode.host, "-server_port", "10000", "-test_case",
			test)
	}
}

// dials returns the argument of a program that dials a port outside.
func dials(port string) func(*testing.T, string, string) []string {
	return func(*testing.T, string, string) []string {
		return []string{net.JoinHostPort(outsideIP, port)}
	}
}

// serves has a server outside, and waits until the program, which is its client, has "checked" what
// it gets.
func serves(server string) func(*testing.T, *session) {
	return func(t *testing.T, s *session) {
		s.startOutside(t, s.clients, server, outsideIP)
		s.await(t, "end of the client's checks", func() bool {
			return strings.Contains(s.log.String(), "checked")
		})
		counts, err := s.sliceSockets()
		if err != nil || counts["tcp_dialed"] < 5 {
			t.Errorf("dialed by the slice: %v, %v", counts, err)
		}
	}
}

// startOutside starts a program outside, which the end of the test ends.
func (s *session) startOutside(t *testing.T, binary string, args ...string) {
	t.Helper()
	cmd := exec.Command(binary, args...)
	out := &lockedBuffer{}
	cmd.Stdout, cmd.Stderr, cmd.Dir = out, out, s.dir
	must(t, s.outside.Start(cmd))
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Logf("%s outside:\n%s", filepath.Base(binary), out)
		}
	})
}

func etcdArgs(_ *testing.T, host, dir string) []string {
	peers := "http://" + net.JoinHostPort(host, "2380")
	return []string{"--data-dir", filepath.Join(dir, "data"),
		"--listen-client-urls", "http://0.0.0.0:2379",
		"--advertise-client-urls", "http://" + net.JoinHostPort(host, "2379"),
		"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers,
		"--initial-cluster", "default=" + peers}
}

func prometheusArgs(t *testing.T, _, dir string) []string {
	config := filepath.Join(dir, "prometheus.yml")
	must(t, os.WriteFile(config, []byte("scrape_configs:\n- job_name: outside\n"+
		"  scrape_interval: 1s\n  static_configs:\n  - targets: ['"+
		net.JoinHostPort(outsideIP, "9100")+"']\n"), 0o644))
	return []string{"--config.file", config, "--storage.tsdb.path", filepath.Join(dir, "data"),
		"--web.listen-address", "0.0.0.0:9090"}
}

// scrape has Prometheus scrape a server outside.
func scrape(t *testing.T, s *session) {
	s.startOutside(t, s.clients, "metrics-server", outsideIP)
	s.client(t, s.clients, "prometheus", s.mode.host)
}

// tunnel has chisel's client tunnel HTTP to a server outside, which chisel dials.
func tunnel(t *testing.T, s *session) {
	s.startOutside(t, s.b.plain(t, "plain-http", "./programs/http"))
	s.startOutside(t, filepath.Join(s.b.dir, "chisel"), "client", // without settings: as go build's
		"http://"+net.JoinHostPort(s.mode.host, "8080"),
		net.JoinHostPort(outsideIP, "8081")+":"+net.JoinHostPort(outsideIP, "80"))
	s.await(t, "tunnel", func() bool {
		_, err := s.tryClient(t, s.clients, "http", net.JoinHostPort(outsideIP, "8081"))
		return err == nil
	})
	counts, err := s.sliceSockets()
	if err != nil || counts["tcp_dialed"] < 20 {
		t.Errorf("dialed by the slice: %v, %v", counts, err)
	}
}

// overHTTP3WithECN runs the client of HTTP/3. Both ends mark their packets with ECT(0): quic-go
// goes on doing so after its first ten only if the other end reports the marks that it received
// (RFC 9000 section 13.4.2).
func overHTTP3WithECN(t *testing.T, s *session) {
	fromHost, fromOutside := countMarked(t, s.outside), countMarked(t, s.host)
	s.client(t, s.clients, "quic", s.mode.host)
	if sent, came := fromHost(), fromOutside(); sent < 100 || came < 20 {
		t.Errorf("%d packets of the program and %d of the client are marked ECT(0)", sent, came)
	}
}

// countMarked counts the UDP packets over IPv4 with ECT(0) that a host receives until the count is
// asked for.
func countMarked(t *testing.T, at *lab.Net) func() int {
	t.Helper()
	var port *lab.Port
	must(t, at.Do(func() (err error) {
		port, err = lab.OpenPort("eth0")
		return err
	}))
	t.Cleanup(func() { port.Close() })
	marked := make(chan int, 1)
	go func() {
		n := 0
		defer func() { marked <- n }()
		for buf := make([]byte, 1<<16); ; {
			f, err := port.Recv(buf, time.Time{})
			if err != nil {
				return
			}
			if len(f) > 42 && f[12] == 8 && f[13] == 0 && f[23] == 17 && f[15]&3 == 2 {
				n++
			}
		}
	}()
	return func() int {
		port.Close()
		return <-marked
	}
}
