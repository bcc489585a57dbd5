package unmodified

import (
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// TestVerdicts: programs whose sockets would be the kernel's in silence are refused, with the file
// and the function, and built with --allow. docs/unmodified.md has the same table.
func TestVerdicts(t *testing.T) {
	need.Long(t, "builds of a minute each")
	b := newBuilder(t)
	for _, tt := range []struct {
		name, dir, build string
		refused          []string
		allow            string
		warned           []string
	}{
		{name: "gnet", dir: "bypass", build: "./gnet", allow: "socket,poller",
			refused: []string{"pkg/socket/", "unix.Socket (socket)", "unix.EpollWait"}},
		{name: "evio", dir: ".", build: "github.com/tidwall/evio/examples/echo-server@v1.0.8",
			allow: "socket,poller", refused: []string{"syscall.EpollWait", "kavu/go_reuseport"}},
		{name: "nbio", dir: ".", build: "github.com/lesismal/nbio/autobahn/server@v1.6.8",
			allow: "socket,poller", refused: []string{"syscall.EpollWait (poller)"}},
		{name: "x/net/icmp", dir: "bypass", build: "./icmp", allow: "socket",
			refused: []string{"golang.org/x/net/icmp.ListenPacket calls syscall.Socket (socket)"}},
		{name: "tableflip", dir: "bypass", build: "./tableflip",
			warned: []string{"tableflip", "net.FileListener (inherit)"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			to := filepath.Join(t.TempDir(), "program")
			build := func(flags ...string) (string, error) {
				args := append([]string{"build", "-o", to}, flags...)
				source, err := filepath.Abs(source)
				must(t, err)
				cmd := exec.Command(b.command, append(args, "--source", source, tt.build)...)
				cmd.Dir = tt.dir
				out, err := cmd.CombinedOutput()
				return string(out), err
			}
			out, err := build()
			if (err != nil) != (tt.refused != nil) {
				t.Fatalf("built or refused: %v\n%s", err, out)
			}
			for _, want := range append(tt.refused, tt.warned...) {
				if !strings.Contains(out, want) {
					t.Errorf("no %q in\n%s", want, out)
				}
			}
			if tt.allow == "" {
				return
			}
			if out, err := build("--allow", tt.allow); err != nil {
				t.Errorf("--allow %s: %v\n%s", tt.allow, err, out)
			}
		})
	}
}

// TestNamedFiles: a program that is built of files by their names has the slice's sockets, too, by
// build and by run.
func TestNamedFiles(t *testing.T) {
	need.Long(t, "a build")
	need.NetNS(t)
	b := newBuilder(t)
	dir, binary := t.TempDir(), filepath.Join(t.TempDir(), "program")
	plainServer().writeTo(t, dir)
	out, err := b.build(t, dir, nil, "-o", binary, "main.go", "text.go")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	askShape(t, b, modes()[1], binary, "plain")

	source, err := filepath.Abs(source)
	must(t, err)
	s := &session{dir: dir, log: &lockedBuffer{}, mode: modes()[1], b: b}
	s.host, s.outside = newNetwork(t)
	cmd := exec.Command(b.command, "run", "--source", source, "./main.go", "./text.go", "argument")
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, s.log, s.log
	cmd.Env = append(append(os.Environ(), "RUNTIME_DIRECTORY="+dir), s.mode.env...)
	must(t, s.host.Start(cmd))
	defer func() {
		cmd.Process.Signal(syscall.SIGTERM) // it ends the program
		cmd.Wait()
		if t.Failed() {
			t.Logf("%s", s.log)
		}
	}()
	s.await(t, "listener", func() bool {
		counts, err := s.sliceSockets()
		return err == nil && counts["tcp_listener"] == 1
	})
	if got := askProcess(t, s); got != "plain" {
		t.Errorf("it answers %q", got)
	}
}

// TestPackageTests: the tests of a package run on the slice, and what goes round package net is
// warned of once, and not refused.
func TestPackageTests(t *testing.T) {
	need.Long(t, "builds of a minute each")
	b := newBuilder(t)
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module example.org/p\n\ngo 1.26\n",
		"p.go": "package p\n\nimport \"syscall\"\n\n" +
			"func open() (int, error) { return syscall.Socket(syscall.AF_INET, 1, 0) }\n",
		// The kernel would refuse to listen on an address that is none of this host's.
		"p_test.go": "package p\n\nimport (\n\t\"net\"\n\t\"testing\"\n)\n\n" +
			"func TestListen(t *testing.T) {\n\tl, err := net.Listen(\"tcp\", " +
			"\"192.0.2.10:0\")\n\tif err != nil {\n\t\tt.Fatal(err)\n\t}\n\tl.Close()\n}\n",
	} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	source, err := filepath.Abs(source)
	must(t, err)
	cmd := exec.Command(b.command, "test", "--sim", "--source", source, ".", "--", "-count=1")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "RDMA_NETSTACK_DEVICE=sim",
		"RDMA_NETSTACK_ADDRESS=192.0.2.10/24", "RDMA_NETSTACK_LOG=error")
	out, err := cmd.CombinedOutput()
	if err != nil || strings.Count(string(out), "p.open calls syscall.Socket (socket)") != 1 {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestHandedOn: an upgrade that hands a descriptor to a new process fails, and the old process goes
// on serving.
func TestHandedOn(t *testing.T) {
	need.Long(t, "builds of a minute each")
	need.NetNS(t)
	b := newBuilder(t)
	binary := filepath.Join(t.TempDir(), "tableflip")
	source, err := filepath.Abs(source)
	must(t, err)
	run(t, "bypass", b.command, "build", "--source", source, "-o", binary, "./tableflip")
	p := program{name: "tableflip", sockets: map[string]int{"tcp_listener": 1},
		args: func(*testing.T, string, string) []string { return nil }}
	for _, m := range modes() {
		if m.sim {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			s := start(t, b, p, m, binary, "")
			before := askProcess(t, s)
			must(t, s.process.Signal(syscall.SIGHUP))
			s.await(t, "verdict on the upgrade", func() bool {
				return strings.Contains(s.log.String(), "upgrade: ")
			})
			if out := s.log.String(); !strings.Contains(out, "cannot be inherited") ||
				strings.Contains(out, "upgrade: <nil>") {
				t.Errorf("the upgrade did not fail:\n%s", out)
			}
			if after := askProcess(t, s); after != before {
				t.Errorf("process %s served before, %s after", before, after)
			}
		})
	}
}

// askProcess gets the id of the process that serves.
func askProcess(t *testing.T, s *session) string {
	t.Helper()
	c := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DialContext: s.outside.DialContext, DisableKeepAlives: true}}
	r, err := c.Get("http://" + s.mode.host + "/")
	must(t, err)
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	must(t, err)
	return string(text)
}

// TestRefusedAtStart: what is wrong with a program's environment is the error of its first socket,
// in one sentence.
func TestRefusedAtStart(t *testing.T) {
	need.NetNS(t)
	b := newBuilder(t)
	binary := b.overlaid(t, programs()[0])
	for _, tt := range []struct {
		name, want string
		env        []string
		taken      string // an address that a listener of the kernel has
	}{
		{name: "no such device", env: []string{"RDMA_NETSTACK_DEVICE=nosuch0",
			"RDMA_NETSTACK_ADDRESS=192.0.2.10/24"}, want: "nor is there an interface nosuch0"},
		{name: "no address", env: []string{"RDMA_NETSTACK_DEVICE=eth0"},
			want: "RDMA_NETSTACK_ADDRESS is missing: host for the addresses of eth0"},
		{name: "no such variable", env: []string{"RDMA_NETSTACK_DEVCIE=eth0"},
			want: "RDMA_NETSTACK_DEVCIE is not known"},
		{name: "no such file", env: []string{"RDMA_NETSTACK_CONFIG=/nosuch"},
			want: "RDMA_NETSTACK_CONFIG: open /nosuch: no such file"},
		{name: "no software ConnectX", env: []string{"RDMA_NETSTACK_DEVICE=sim",
			"RDMA_NETSTACK_SIM_WIRE=tap", "RDMA_NETSTACK_ADDRESS=192.0.2.10/24"},
			want: "RDMA_NETSTACK_SIM_WIRE=tap: want tap:NAME or packet:IFNAME"},
		{name: "no such port", env: []string{"RDMA_NETSTACK_DEVICE=eth0",
			"RDMA_NETSTACK_ADDRESS=host", "RDMA_NETSTACK_LISTEN=http"},
			want: "RDMA_NETSTACK_LISTEN=http: want ports, such as 80,443/tcp,53"},
		{name: "not an RDMA device", env: []string{"RDMA_NETSTACK_DEVICE=eth0",
			"RDMA_NETSTACK_ADDRESS=host", "RDMA_NETSTACK_BACKEND=rings"}, want: "eth0"},
		{name: "kernel beside a MAC of its own", env: []string{"RDMA_NETSTACK_DEVICE=eth0",
			"RDMA_NETSTACK_ADDRESS=192.0.2.10/24", "RDMA_NETSTACK_ON_ERROR=kernel"},
			want: "RDMA_NETSTACK_ON_ERROR=kernel is for RDMA_NETSTACK_ADDRESS=host"},
		{name: "port taken", env: modes()[0].env, taken: ":80",
			want: "address already in use (another process of this host has the port"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			host, _ := newNetwork(t)
			if tt.taken != "" {
				l, err := host.Listen("tcp", tt.taken)
				must(t, err)
				defer l.Close()
			}
			cmd := exec.CommandContext(t.Context(), binary)
			cmd.Env = append(cmd.Environ(), append(tt.env, "RUNTIME_DIRECTORY="+t.TempDir())...)
			log := &lockedBuffer{}
			cmd.Stdout, cmd.Stderr = log, log
			must(t, host.Start(cmd))
			if err := cmd.Wait(); err == nil {
				t.Error("it serves")
			}
			if !strings.Contains(log.String(), tt.want) {
				t.Errorf("no %q in\n%s", tt.want, log)
			}
		})
	}
}

// TestUnconfigured: without a variable the sockets are the kernel's, which its counters show.
func TestUnconfigured(t *testing.T) {
	need.NetNS(t)
	b := newBuilder(t)
	binary := b.overlaid(t, programs()[0])
	s := &session{dir: t.TempDir(), log: &lockedBuffer{}, mode: mode{host: hostIP}}
	s.host, s.outside = newNetwork(t)
	s.startProcess(t, binary, nil, nil)
	s.await(t, "listener", func() bool {
		c, err := s.outside.DialContext(t.Context(), "tcp", hostIP+":80")
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	before := s.kernelTraffic(t)
	s.client(t, b.plain(t, "clients", "./clients"), "http", hostIP)
	after := s.kernelTraffic(t)
	if before["Tcp:PassiveOpens"] == after["Tcp:PassiveOpens"] {
		t.Errorf("connections accepted by the kernel: %s before, %s after",
			before["Tcp:PassiveOpens"], after["Tcp:PassiveOpens"])
	}
}
