// Package anycast runs docs/recipes/anycast.md: a routing daemon announces the prefixes of a
// server, and a shell script withdraws them while the server's /readyz says that it is not well.
package anycast

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/stack/admin"
	"github.com/rdma-netstack/rdma-netstack/tests/e2e/services/world"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

const recipe = "../../../../docs/recipes/anycast.md"

// The router's side: it takes what the recipe's daemon announces into its kernel's routes.
const router = `
router id 192.0.2.1;
protocol device {}
protocol kernel { ipv4 { import none; export all; }; }
protocol kernel { ipv6 { import none; export all; }; }
protocol bgp server {
  local 192.0.2.1 as 64501;
  neighbor 192.0.2.9 as 64500;
  connect delay time 1;
  connect retry time 1;
  error wait time 1, 2;
  ipv4 { import all; export none; };
  ipv6 { import all; export none; };
}
`

// Addresses of both prefixes that the router's kernel asks.
var asked = []string{"198.51.100.0", "198.51.100.77", "2001:db8:1::", "2001:db8:1:2::7"}

// TestRecipe runs the recipe's configuration and script for bird as they are written there.
func TestRecipe(t *testing.T) {
	w, blocks := newRecipeWorld(t)
	w.bird(t, w.server, "server", blocks["protocol static"])
	w.failAndRestore(t, "birdc -s "+w.control("server"), blocks["birdc"])
}

// TestRecipeFRR does so with those for FRR.
func TestRecipeFRR(t *testing.T) {
	world.Tool(t, "bgpd", `bgpd version (\S+)`, "--version")
	need.Tool(t, "zebra")
	w, blocks := newRecipeWorld(t)
	w.frr(t, blocks["remote-as"])
	w.failAndRestore(t, "vtysh --vty_socket "+w.dir, blocks["vtysh"])
}

// newRecipeWorld makes a router that runs bird, and reads the recipe's pieces of code.
func newRecipeWorld(t *testing.T) (*testWorld, map[string]string) {
	t.Helper()
	need.NetNS(t)
	need.Tool(t, "curl")
	need.Tool(t, "birdc")
	world.Tool(t, "bird", `BIRD version (\S+)`, "--version")
	blocks := codeOf(t, recipe)
	w := newWorld(t)
	w.bird(t, w.router, "router", router)
	return w, blocks
}

// failAndRestore runs the script, whose routing daemon is asked by control. The device of the
// server fails for longer than MaxOutage, and comes back: the routes go, and come back. The
// router, on the server's own cable, has its session all the time.
func (w *testWorld) failAndRestore(t *testing.T, control, script string) {
	t.Helper()
	w.await(t, "session", func() bool { return w.sessionUp(t) })
	if got := w.routes(t); got != 0 {
		t.Errorf("%d routes before the server was looked at", got)
	}
	w.watch(t, control, script)
	w.await(t, "announced", func() bool { return w.routes(t) == 2 })
	w.ask(t)

	for round := range 2 {
		w.nic.FailDevice()
		w.await(t, "unhealthy", func() bool { return w.stack.Unhealthy() != nil })
		gone := w.await(t, "withdrawn", func() bool { return w.routes(t) == 0 })
		if !w.sessionUp(t) {
			t.Error("the session of the daemons has ended")
		}
		w.nic.RestoreDevice()
		w.await(t, "healthy", func() bool { return w.stack.Unhealthy() == nil })
		back := w.await(t, "announced again", func() bool { return w.routes(t) == 2 })
		t.Logf("round %d: withdrawn %v after Unhealthy, back after %v", round, gone, back)
		w.ask(t)
	}
}

// codeOf returns the code blocks of a page by the words that they have, each of which is in one.
func codeOf(t *testing.T, page string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(page)
	must(t, err)
	pieces := []string{"protocol static", "remote-as", "birdc", "vtysh"}
	found := map[string]string{}
	for i, block := range strings.Split(string(text), "\n```") {
		_, code, _ := strings.Cut(block, "\n") // behind the language
		for _, words := range pieces {
			if i%2 == 1 && strings.Contains(code, words) {
				found[words] += code
			}
		}
	}
	if len(found) != len(pieces) {
		t.Fatalf("%s has %d of %d pieces of code", page, len(found), len(pieces))
	}
	return found
}

// testWorld holds a server with a slice on its port and Linux beside it, and a router.
type testWorld struct {
	server, router *lab.Net
	nic            *simnic.NIC
	stack          *stack.Stack
	dir            string
}

// newWorld serves UDP and the admin endpoint that the script asks.
func newWorld(t *testing.T) *testWorld {
	t.Helper()
	w := &testWorld{dir: t.TempDir()}
	for _, n := range []**lab.Net{&w.server, &w.router} {
		made, err := lab.New("anycast")
		must(t, err)
		t.Cleanup(func() { made.Close() })
		*n = made
	}
	must(t, lab.Cable(w.server, "eth0", w.router, "eth0"))
	for n, addresses := range map[*lab.Net][]string{w.server: {"192.0.2.9/24", "2001:db8::9/64"},
		w.router: {"192.0.2.1/24", "2001:db8::1/64"}} {
		must(t, n.Do(func() error {
			return lab.Up("eth0", lab.Setup{Addresses: prefixes(addresses...)})
		}))
	}
	nic, err := simnic.New(simnic.Config{})
	must(t, err)
	t.Cleanup(func() { nic.Close() })
	w.nic = nic
	must(t, w.server.Do(func() error {
		cable, err := wire.OpenPacket("eth0")
		if err != nil {
			return err
		}
		if err := nic.ConnectWire(cable); err != nil {
			return err
		}
		w.stack, err = stack.Open(context.Background(), stack.Config{
			NIC: dv.NIC{Model: dv.Model{Kernel: kernel.Opener(nic), Facts: dv.PortFacts{
				Name: nic.Config().Name, MAC: nic.MAC(), MTU: nic.MTU()}}},
			Addresses:  prefixes("192.0.2.10/24", "2001:db8::10/64"),
			Addressing: stack.AddressOptions{DuplicateDetection: -1},
			Uplink: stack.UplinkOptions{Fallback: "none",
				MaxOutage: 200 * time.Millisecond},
		}.WithLocal(prefixes("198.51.100.0/24", "2001:db8:1::/48")...))
		return err
	}))
	t.Cleanup(func() { w.stack.Close() })
	echo, err := w.stack.ListenPacket("udp", ":7")
	must(t, err)
	go func() {
		for b := make([]byte, 2048); ; {
			n, from, err := echo.ReadFrom(b)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				echo.WriteTo(b[:n], from)
			}
		}
	}()
	ln, err := w.server.Listen("tcp", "127.0.0.1:9100")
	must(t, err)
	look := &http.Server{Handler: admin.Handler(admin.Config{Stack: w.stack,
		Checks: []admin.Check{{Name: "device", Run: w.stack.Unhealthy}}})}
	t.Cleanup(func() { look.Close() })
	go look.Serve(ln)
	return w
}

// bird starts the routing daemon in a namespace; its log is the test's when that has failed.
func (w *testWorld) bird(t *testing.T, n *lab.Net, name, config string) {
	t.Helper()
	file := filepath.Join(w.dir, name+".conf")
	must(t, os.WriteFile(file, []byte("log stderr all;\n"+config), 0o644))
	w.start(t, n, name, exec.Command(need.Tool(t, "bird"), "-f", "-c", file, "-s", w.control(name),
		"-P", filepath.Join(w.dir, name+".pid")))
}

// frr starts FRR's daemons beside the server.
func (w *testWorld) frr(t *testing.T, config string) {
	t.Helper()
	for name, config := range map[string]string{"zebra": "", "bgpd": config} {
		file := filepath.Join(w.dir, name+".conf")
		must(t, os.WriteFile(file, []byte(config), 0o644))
		w.start(t, w.server, name, exec.Command(need.Tool(t, name), "--skip_runas",
			"--config_file", file, "--pid_file", filepath.Join(w.dir, name+".pid"),
			"--vty_socket", w.dir, "--vty_port", "0", "--log", "stdout",
			"--socket", filepath.Join(w.dir, "zserv.api")))
	}
}

// control returns the control socket of a daemon of bird.
func (w *testWorld) control(name string) string { return filepath.Join(w.dir, name+".ctl") }

// watch runs the recipe's script beside the server. Its program for asking the daemon is what
// control says, with arguments.
func (w *testWorld) watch(t *testing.T, control, script string) {
	t.Helper()
	bin := filepath.Join(w.dir, "bin")
	must(t, os.Mkdir(bin, 0o755))
	program, args, _ := strings.Cut(control, " ")
	must(t, os.WriteFile(filepath.Join(bin, program), []byte("#!/bin/sh\nexec "+
		need.Tool(t, program)+" "+args+" \"$@\"\n"), 0o755))
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
	w.start(t, w.server, "watcher", cmd)
}

// start runs a program until the test has ended.
func (w *testWorld) start(t *testing.T, n *lab.Net, name string, cmd *exec.Cmd) {
	t.Helper()
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.WaitDelay = time.Second // what the script has started may hold the output open
	must(t, n.Start(cmd))
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-ended
		if t.Failed() {
			t.Logf("%s said:\n%s", name, said.String())
		}
	})
}

// sessionUp says whether the router has the session with the server's daemon.
func (w *testWorld) sessionUp(t *testing.T) bool {
	out, err := exec.Command(need.Tool(t, "birdc"), "-s", w.control("router"), "show", "protocols",
		"server").CombinedOutput()
	return err == nil && bytes.Contains(out, []byte("Established"))
}

// routes counts the server's prefixes among the routes of the router's kernel, by the slice's
// addresses.
func (w *testWorld) routes(t *testing.T) (n int) {
	t.Helper()
	for _, route := range [][]string{{"-4", "198.51.100.0/24", "via 192.0.2.10 "},
		{"-6", "2001:db8:1::/48", "via 2001:db8::10 "}} {
		out, err := w.run(t, w.router, "ip", route[0], "route", "show", "exact", route[1])
		must(t, err)
		if strings.Contains(out, route[2]) {
			n++
		} else if out != "" {
			t.Fatalf("route %s", out)
		}
	}
	return n
}

// run returns what a program prints in a namespace.
func (w *testWorld) run(t *testing.T, n *lab.Net, program string, args ...string) (string, error) {
	var out bytes.Buffer
	cmd := exec.Command(need.Tool(t, program), args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := n.Start(cmd); err != nil {
		return "", err
	}
	err := cmd.Wait()
	return out.String(), err
}

// await waits until ok, and returns for how long.
func (w *testWorld) await(t *testing.T, what string, ok func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	for !ok() {
		if time.Since(began) > world.Patience {
			t.Fatalf("not %s; %v, %+v", what, w.stack.Unhealthy(), w.stack.LinkStatus())
		}
		time.Sleep(5 * time.Millisecond)
	}
	return time.Since(began).Round(time.Millisecond)
}

// ask makes the router's kernel ask at addresses of the prefixes. A connected socket takes answers
// from the address that it asked only.
func (w *testWorld) ask(t *testing.T) {
	t.Helper()
	for _, at := range asked {
		w.await(t, "answered from "+at, func() bool { return w.askAt(t, at) == nil })
	}
}

// askAt asks once.
func (w *testWorld) askAt(t *testing.T, at string) error {
	c, err := w.router.DialContext(t.Context(), "udp", net.JoinHostPort(at, "7"))
	if err != nil {
		return err
	}
	defer c.Close()
	must(t, c.SetDeadline(time.Now().Add(time.Second)))
	b := []byte("to " + at)
	if _, err = c.Write(b); err == nil {
		_, err = io.ReadFull(c, b)
	}
	if err == nil && string(b) != "to "+at {
		t.Errorf("%s answers %q", at, b)
	}
	return err
}

func prefixes(all ...string) (list []netip.Prefix) {
	for _, p := range all {
		list = append(list, netip.MustParsePrefix(p))
	}
	return list
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
