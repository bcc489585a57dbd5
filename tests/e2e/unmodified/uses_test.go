package unmodified

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// differences holds what programs/uses prints otherwise on a slice than on the kernel's sockets, by
// use, and why. A slice that does not differ fails the test, too.
var differences = map[string]struct{ prints, why string }{
	"multipath TCP":       {"hello false", "netstack has plain TCP only, as peers without it"},
	"RawConn.Read of UDP": {"error: ENOTSUP", "there is no descriptor with datagrams"},
	"TCPConn.File":        {"unsupported: true error: ENOTSUP", "a connection has no descriptor"},
}

// TestUses: what programs do with package net and with the sockets of others works on a slice as on
// the kernel's sockets, or says in one sentence that it does not.
func TestUses(t *testing.T) {
	need.Long(t, "a build of a minute")
	need.NetNS(t)
	b := newBuilder(t)
	binary := b.overlaid(t, program{name: "uses", build: "./programs/uses"})
	kernel := mode{name: "kernel", host: hostIP}
	want := triedUses(t, b, binary, kernel)
	for _, m := range modes()[:2] {
		t.Run(m.name, func(t *testing.T) {
			for name, got := range triedUses(t, b, binary, m) {
				expected, differs := want[name], false
				if d, ok := differences[name]; ok {
					expected, differs = d.prints, true
				}
				// Both have addresses of their own.
				if own := strings.ReplaceAll(got, m.host, kernel.host); own != expected {
					t.Errorf("%s, differs by design %v:\n%s\nwant\n%s", name, differs, got,
						expected)
				}
			}
		})
	}
}

// triedUses runs the program and returns what it prints, by use.
func triedUses(t *testing.T, b *builder, binary string, m mode) map[string]string {
	t.Helper()
	s := &session{dir: t.TempDir(), log: &lockedBuffer{}, mode: m, b: b}
	s.host, s.outside = newNetwork(t)
	answerNames(t, s)
	echoOutside(t, s)
	s.startProcess(t, binary, []string{m.host, outsideIP}, append([]string{
		"RUNTIME_DIRECTORY=" + s.dir}, m.env...))
	s.await(t, "end of the uses", func() bool {
		return strings.Contains(s.log.String(), "all uses are tried")
	})
	said := map[string]string{}
	for line := range strings.Lines(s.log.String()) {
		if name, text, ok := strings.Cut(strings.TrimSpace(line), ": "); ok &&
			!strings.HasPrefix(line, "time=") {
			said[name] = text
		}
	}
	for name, text := range said {
		t.Logf("%s: %s", name, text)
	}
	if len(said) < 30 {
		t.Fatalf("only %d uses:\n%s", len(said), s.log)
	}
	return said
}

// echoOutside echoes on port 9000 of TCP and UDP outside. A datagram "group ADDRESS" is answered to
// that address.
func echoOutside(t *testing.T, s *session) {
	t.Helper()
	l, err := s.outside.Listen("tcp4", outsideIP+":9000")
	must(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				io.Copy(c, c)
			}()
		}
	}()
	c, err := s.outside.ListenPacket("udp4", outsideIP+":9000")
	must(t, err)
	t.Cleanup(func() { c.Close() })
	go func() {
		for b := make([]byte, 1500); ; {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			if group, ok := strings.CutPrefix(string(b[:n]), "group "); ok {
				if from, err = net.ResolveUDPAddr("udp4", group); err != nil {
					continue
				}
			}
			c.WriteTo(b[:n], from)
		}
	}()
}

// TestSocketActivation: a listener that a program is given as systemd does it (sd_listen_fds(3)) is
// the kernel's, which the build warns of and the program logs and counts; its other sockets are the
// slice's.
func TestSocketActivation(t *testing.T) {
	need.Long(t, "a build of a minute")
	need.NetNS(t)
	b := newBuilder(t)
	dir, binary := t.TempDir(), filepath.Join(t.TempDir(), "program")
	tree{"go.mod": moduleFile("example.org/m", "1.22"), "text.go": constantText,
		"main.go": strings.Replace(server, "log.Fatal(http", "go given()\n\tlog.Fatal(http", 1),
		"given.go": "package main\n\nimport (\n\t\"log\"\n\t\"net\"\n\t\"net/http\"\n\t\"os\"\n)" +
			"\n\nfunc given() {\n\tl, err := net.FileListener(os.NewFile(3, \"LISTEN_FD_3\"))\n" +
			"\tif err != nil {\n\t\tlog.Fatal(err)\n\t}\n\tlog.Fatal(http.Serve(l, nil))\n}\n",
	}.writeTo(t, dir)
	out, err := b.build(t, dir, nil, "-o", binary, ".")
	if err != nil || !strings.Contains(out, "main.given calls net.FileListener (inherit)") &&
		!strings.Contains(out, "m.given calls net.FileListener (inherit)") {
		t.Errorf("%v\n%s", err, out)
	}
	for _, m := range modes()[:2] {
		t.Run(m.name, func(t *testing.T) {
			s := &session{dir: t.TempDir(), log: &lockedBuffer{}, mode: m, b: b}
			s.host, s.outside = newNetwork(t)
			l, err := s.host.Listen("tcp4", hostIP+":8080")
			must(t, err)
			f, err := l.(*net.TCPListener).File()
			must(t, errors.Join(err, l.Close()))
			defer f.Close()
			cmd := exec.Command(binary)
			cmd.ExtraFiles = []*os.File{f}
			s.startCommand(t, cmd, append([]string{"LISTEN_FDS=1", "RUNTIME_DIRECTORY=" + s.dir},
				m.env...))
			s.await(t, "listeners", func() bool {
				counts, err := s.sliceSockets()
				return err == nil && counts["tcp_listener"] == 1 &&
					strings.Contains(s.log.String(), "made of a descriptor")
			})
			for _, url := range []string{"http://" + m.host + "/", "http://" + hostIP + ":8080/"} {
				got, err := get(t, s.outside.DialContext, url)
				if err != nil || got != "plain" {
					t.Errorf("%s: %q, %v", url, got, err)
				}
			}
		})
	}
}

// TestGRPCReads: a server of gRPC makes no system calls of its own for its reads, which by RawConn
// it would: with the variable that we set the other way it has a socket pair for each connection,
// and writes to it and reads from it.
func TestGRPCReads(t *testing.T) {
	need.Long(t, "a build of a minute")
	need.NetNS(t)
	b := newBuilder(t)
	p := programs()[6]
	if p.name != "gRPC" {
		t.Fatalf("the program is %s", p.name)
	}
	binary := b.overlaid(t, p)
	client := b.plain(t, "grpc-client", "google.golang.org/grpc/interop/client@v1.84.0")
	calls := func(m mode) (perRead float64) {
		s := start(t, b, p, m, binary, "")
		ask := func() {
			for range 3 {
				s.client(t, client, "-server_host", m.host, "-server_port", "10000", "-test_case",
					"ping_pong")
			}
		}
		ask() // what is set up once is
		before := readsAndWrites(t, s)
		for range 20 {
			ask()
		}
		return float64(readsAndWrites(t, s)-before) / 60
	}
	without := modes()[1]
	with := without
	with.env = append(with.env[:len(with.env):len(with.env)],
		"GRPC_GO_EXPERIMENTAL_HTTP_FRAMER_READ_BUFFER_POOLING=true")
	got, control := calls(without), calls(with)
	t.Logf("read(2) and write(2) of a run of ping_pong: %.1f, by RawConn %.1f", got, control)
	if control < got+10 {
		t.Errorf("%.1f and by RawConn %.1f: the count does not tell them apart", got, control)
	}
	if got > control/4 {
		t.Errorf("%.1f system calls, want no more than a quarter of the %.1f by RawConn", got,
			control)
	}
}

// readsAndWrites returns how often a process has called read(2) and write(2) (proc_pid_io(5)). The
// slice's frames come and go by other calls.
func readsAndWrites(t *testing.T, s *session) (n int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", s.process.Pid))
	must(t, err)
	for line := range strings.Lines(string(text)) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), ": "); name == "syscr" ||
			name == "syscw" {
			k, err := strconv.Atoi(value)
			must(t, err)
			n += k
		}
	}
	return n
}
