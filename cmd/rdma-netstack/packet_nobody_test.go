//go:build linux

package main

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// serveOnVeth is what a newcomer without an mlx5 device types.
const serveOnVeth = "serve http --device veth0 --address 192.0.2.10/24 --debug-endpoints"

// TestServeWithCapabilityOnly serves as an ordinary user with CAP_NET_RAW and nothing else, whose
// socket buffers are those that the system allows everybody.
func TestServeWithCapabilityOnly(t *testing.T) {
	need.Root(t)
	server, client := vethLab(t)
	s := &script{t: t, dir: t.TempDir(), net: server}
	s.background = s.program(strings.Fields(serveOnVeth))
	s.background.Dir = "/"
	s.background.SysProcAttr = &syscall.SysProcAttr{
		Credential:  &syscall.Credential{Uid: nobodyUser, Gid: nobodyUser},
		AmbientCaps: []uintptr{unix.CAP_NET_RAW},
	}
	if err := s.launchBackground(); err != nil {
		t.Fatal(err)
	}
	if err := s.out.await("try: "); err != nil {
		t.Fatal(err, s.errs)
	}
	download(t, client, "192.0.2.10")
	s.stop(t)
}

// download wants 3,000,000 bytes of a server by curl.
func download(t *testing.T, from *lab.Net, server string) {
	t.Helper()
	k := &script{t: t, dir: t.TempDir(), net: from}
	if err := k.run(k.command([]string{need.Tool(t, "curl"), "-sS", "--max-time", "30", "-o",
		"/dev/null", "-w", "%{size_download}", "http://" + server + "/-/bytes/3000000"})); err != nil ||
		k.stdout != "3000000" {
		t.Errorf("%v, %q, %s", err, k.stdout, k.stderr)
	}
}

// TestRootWithoutCapability is refused in one sentence: it is the capability that counts, as in a
// container without --cap-add NET_RAW.
func TestRootWithoutCapability(t *testing.T) {
	need.Root(t)
	server, _ := vethLab(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := &script{t: t, dir: t.TempDir(), net: server}
	argv := []string{need.Tool(t, "setpriv"), "--bounding-set=-net_raw", "--inh-caps=-net_raw",
		self}
	if err := s.run(s.command(append(argv, strings.Fields(serveOnVeth)...))); err != nil {
		t.Fatal(err)
	}
	if s.code != exitFailed || strings.Count(s.stderr, "\n") != 1 ||
		!strings.Contains(s.stderr, "packet sockets need CAP_NET_RAW: setcap") {
		t.Errorf("code %d, %q", s.code, s.stderr)
	}
}

// TestHostAddressWithoutNetAdmin is refused in one sentence by kernels that want CAP_NET_ADMIN for
// the filters of the host's ports, and the doctor knows it before.
func TestHostAddressWithoutNetAdmin(t *testing.T) {
	need.Root(t)
	server, _ := vethLab(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := &script{t: t, dir: t.TempDir(), net: server}
	run := func(args ...string) {
		t.Helper()
		argv := []string{need.Tool(t, "setpriv"), "--bounding-set=-net_admin,-bpf,-sys_admin",
			"--inh-caps=-net_admin,-bpf,-sys_admin", self}
		if err := s.run(s.command(append(argv, args...))); err != nil {
			t.Fatal(err)
		}
	}
	run("doctor")
	if !strings.Contains(s.stdout, "--address host is refused") {
		need.That(t, "kernel", errors.New("it lets anybody filter TCP sockets"))
	}
	run("serve", "http", "--address", "host", "--device", "veth0", "--backend", "packet")
	if s.code != exitFailed || strings.Count(s.stderr, "\n") != 1 ||
		!strings.Contains(s.stderr, "this kernel wants CAP_NET_ADMIN") {
		t.Errorf("code %d, %q", s.code, s.stderr)
	}
}

// TestHostAddressWithCapBPF serves without CAP_NET_ADMIN where bpf(2) is allowed, and the doctor
// does not say that it is refused.
func TestHostAddressWithCapBPF(t *testing.T) {
	need.Root(t)
	server, client := vethLab(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := &script{t: t, dir: t.TempDir(), net: server}
	command := func(args ...string) *exec.Cmd {
		return s.command(append([]string{need.Tool(t, "setpriv"),
			"--bounding-set=-net_admin,-sys_admin", "--inh-caps=-net_admin,-sys_admin", self},
			args...))
	}
	if err := s.run(command("doctor")); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(s.stdout, "--address host is refused") {
		t.Errorf("the doctor says:\n%s", s.stdout)
	}
	s.background = command("serve", "http", "--address", "host", "--device", "veth0", "--backend",
		"packet", "--debug-endpoints")
	if err := s.launchBackground(); err != nil {
		t.Fatal(err)
	}
	if err := s.out.await("try: "); err != nil {
		t.Fatal(err, s.errs)
	}
	download(t, client, "192.0.2.2")
	s.stop(t)
}

// userNamespaceScript makes a veth pair with the kernel on its other end, serves, and fetches.
const userNamespaceScript = `set -e
ip link add veth0 type veth peer name veth1
ip address add 192.0.2.1/24 dev veth1
ip link set veth0 up
ip link set veth1 up
/proc/self/fd/3 ` + serveOnVeth + ` >&2 &
curl -sS -o /dev/null -w '%{size_download}' --retry 60 --retry-all-errors --retry-delay 1 \
	--max-time 60 http://192.0.2.10/-/bytes/3000000
kill -TERM $!
wait $!
`

// TestServeInUserNamespace serves as an ordinary user in a user namespace of its own, where it has
// the capability over the interfaces it has made.
func TestServeInUserNamespace(t *testing.T) {
	need.Root(t)
	need.UserNS(t)
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	s := &script{t: t, dir: t.TempDir(), nobody: true}
	need.Tool(t, "ip")
	need.Tool(t, "curl")
	cmd := s.command([]string{need.Tool(t, "unshare"), "--user", "--map-root-user", "--net",
		need.Tool(t, "sh"), "-c", userNamespaceScript})
	cmd.ExtraFiles = []*os.File{self} // a user cannot reach the path of a test
	if err := s.run(cmd); err != nil || s.code != exitDone || s.stdout != "3000000" ||
		!strings.Contains(s.stderr, "served through AF_PACKET") {
		t.Errorf("code %d, %v, %q:\n%s", s.code, err, s.stdout, s.stderr)
	}
}
