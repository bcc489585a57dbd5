package deploy

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// TestServeConfined: a server without capabilities but those that it says, under its filter of
// system calls and with a few paths only, serves, is looked at, opens an interface again that went
// away, takes an address that the host gets, and ends in order.
func TestServeConfined(t *testing.T) {
	need.Long(t, "builds the program and replaces an interface, 10 s")
	h := newHosts(t)
	root, run := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "page"), []byte("a page"), 0o644); err != nil {
		t.Fatal(err)
	}
	bin := program(t)
	card := []string{"--device", "veth0"}
	for _, tt := range []struct {
		name        string
		device      []string
		address, at string
		caps        uint64 // kept: CAP_NET_BIND_SERVICE is 0x400, _ADMIN 0x1000, _RAW 0x2000
		change      func(*testing.T)
		then        string // where it is after the change
	}{
		{"packet sockets", card, "192.0.2.10/24", "http://192.0.2.10/page", 0x2000, h.replaceCable,
			"http://192.0.2.10/page"},
		{"the host's address", card, "host", "http://192.0.2.2/page", 0x3400, h.addAddress,
			"http://192.0.2.3/page"},
		{"software NIC", []string{"--device", "sim", "--sim-wire", "packet:veth0"}, "192.0.2.10/24",
			"http://192.0.2.10/page", 0, h.addAddress, "http://192.0.2.10/page"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cmd := exec.Command(bin, append([]string{"serve", "http", "--address", tt.address,
				"--root", root, "--seccomp", "--landlock", "--json-logs"}, tt.device...)...)
			cmd.Env = append(os.Environ(), "RUNTIME_DIRECTORY="+run)
			s := h.start(t, cmd)
			defer func() {
				if t.Failed() {
					t.Log(s.stderr.String())
				}
			}()
			if memlockIsFinite(t) && tt.caps != 0 {
				tt.caps |= 0x4000 // CAP_IPC_LOCK
			}
			caps := fmt.Sprintf("%016x", tt.caps)
			want := map[string]string{"CapEff": caps, "CapPrm": caps, "CapBnd": caps,
				"NoNewPrivs": "1", "Seccomp": "2"}
			for name, got := range s.status(t, "CapEff", "CapPrm", "CapBnd", "NoNewPrivs",
				"Seccomp") {
				if len(got) != 1 || got[0] != want[name] {
					t.Errorf("%s of the threads: %s, want %s", name, got, want[name])
				}
			}
			if got := h.get(t, tt.at); got != "a page" {
				t.Errorf("got %q", got)
			}
			ss := func(flags, want string) {
				t.Helper()
				look := exec.Command(bin, "ss", flags, "--pid", itoa(s.Process.Pid))
				look.Env = cmd.Env
				if out, err := look.CombinedOutput(); err != nil ||
					!strings.Contains(string(out), want) {
					t.Errorf("ss %s: %v: %s; want %s", flags, err, out, want)
				}
			}
			ss("-l", "LISTEN")
			if tt.address == "host" { // a connection that the kernel has accepted: sock_diag
				c, err := h.server.DialContext(t.Context(), "tcp", "192.0.2.2:80")
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				ss("-t", c.LocalAddr().String())
				ss("-ti", "kernel")
			}
			tt.change(t)
			if got := h.get(t, tt.then); got != "a page" {
				t.Errorf("after the change: %q", got)
			}
			s.stop(t)
			for _, bad := range []string{"not permitted", "permission denied"} {
				if strings.Contains(s.stderr.String(), bad) {
					t.Errorf("refused: %s", &s.stderr)
				}
			}
			if left, _ := filepath.Glob(filepath.Join(run, "*")); len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
		})
	}
}

// replaceCable removes the interfaces and makes them anew.
func (h hosts) replaceCable(t *testing.T) {
	t.Helper()
	h.ip(t, "link", "delete", "veth0")
	h.connect(t)
}

// addAddress gives the server's host another address.
func (h hosts) addAddress(t *testing.T) {
	t.Helper()
	h.ip(t, "address", "replace", "192.0.2.3/24", "dev", "veth0")
}

func (h hosts) ip(t *testing.T, args ...string) {
	t.Helper()
	ip := exec.Command(need.Tool(t, "ip"), args...)
	if err := h.server.Start(ip); err != nil {
		t.Fatal(err)
	}
	if err := ip.Wait(); err != nil {
		t.Fatalf("ip %q: %v", args, err)
	}
}

func memlockIsFinite(t *testing.T) bool {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		t.Fatal(err)
	}
	return limit.Cur != math.MaxUint64
}

func itoa(n int) string { return fmt.Sprint(n) }

func contains(all []string, s string) bool {
	for _, have := range all {
		if have == s {
			return true
		}
	}
	return false
}
