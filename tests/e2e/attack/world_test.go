//go:build linux

package attack

import (
	"bufio"
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/onwire"
)

// The hosts, from prefixes reserved for documentation. The kernel of the namespace has the client's
// addresses, and is the server's router.
const (
	server4   = "192.0.2.10"
	server6   = "2001:db8::10"
	client4   = "192.0.2.1"
	client6   = "2001:db8::1"
	serverMAC = "02:00:5e:10:00:01"
	port      = "slice0" // the interface of the namespace
)

// startTime is the longest that a server may take to report that it serves.
const startTime = 20 * time.Second

// world is one server on a slice, in a namespace with its clients and attackers.
type world struct {
	t   *testing.T
	ns  *lab.Net // of the clients and attackers, and of the server
	far *lab.Net // the server's, if it has one of its own
	cmd *exec.Cmd
	log journal

	began   time.Time   // when the server was started
	answers chan string // lines after the first, of a faulty server

	wire string   // the interface that is the server's wire, if not a TAP of its own
	link []string // flags of the server's link, if not a software ConnectX

	lasted   time.Duration // the attack
	baseline int64         // resident memory before the attack, bytes
	peak     int64         // the most since; guarded by watch
	watch    sync.Mutex
}

// journal keeps the beginning of a process's output and counts all of it.
type journal struct {
	mu   sync.Mutex
	text strings.Builder // guarded by mu
	size int64           // guarded by mu
}

// journalSize is the number of bytes that a journal keeps.
const journalSize = 256 << 10

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if room := journalSize - j.text.Len(); room > 0 {
		j.text.Write(b[:min(len(b), room)])
	}
	j.size += int64(len(b))
	return len(b), nil
}

// written returns the beginning of the text and the size of all of it.
func (j *journal) written() (string, int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String(), j.size
}

// newWorld makes only the namespace.
func newWorld(t *testing.T) *world {
	t.Helper()
	required(t)
	ns, err := lab.New("attack")
	must(t, err)
	t.Cleanup(func() { ns.Close() })
	return &world{t: t, ns: ns}
}

// newCable is newWorld with an interface that exists before the server: it is one end of a cable,
// and the other end is connected to the server's NIC.
func newCable(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	must(t, lab.Cable(w.ns, "wire0", w.ns, port))
	must(t, w.ns.Do(func() error {
		if err := lab.Up("wire0", lab.Setup{}); err != nil {
			return err
		}
		return lab.Up(port, lab.Setup{Addresses: []netip.Prefix{
			netip.MustParsePrefix(client4 + "/24"), netip.MustParsePrefix(client6 + "/64")}})
	}))
	w.wire = "packet:wire0"
	return w
}

// newFarCable makes a world with the server in a namespace of its own, at the other end of a cable
// without offloads, on the given link: flags of serve. The netdev has the server's IPv4 address if
// the stack is to serve on that.
func newFarCable(t *testing.T, link ...string) *world {
	t.Helper()
	w := newWorld(t)
	far, err := lab.New("attacked")
	must(t, err)
	t.Cleanup(func() { far.Close() })
	must(t, lab.Cable(far, "wire0", w.ns, port))
	must(t, w.ns.Do(func() error {
		return lab.Up(port, lab.Setup{Addresses: []netip.Prefix{
			netip.MustParsePrefix(client4 + "/24"), netip.MustParsePrefix(client6 + "/64")}})
	}))
	var own []netip.Prefix
	if slices.Contains(link, "host") {
		own = append(own, netip.MustParsePrefix(server4+"/24"))
	}
	must(t, far.Do(func() error { return lab.Up("wire0", lab.Setup{Addresses: own}) }))
	onwire.Make(t, "wire0", far)
	onwire.Make(t, port, w.ns)
	w.far, w.link = far, append([]string{"--device", "wire0"}, link...)
	return w
}

// home returns the namespace that the server runs in.
func (w *world) home() *lab.Net { return cmp.Or(w.far, w.ns) }

// newServer starts the program with a command and a slice with the usual addresses.
func newServer(t *testing.T, command string, args ...string) *world {
	t.Helper()
	w := newWorld(t)
	w.start(command, append([]string{"--address", server4 + "/24", "--address", server6 + "/64",
		"--gateway", client4}, args...)...)
	return w
}

// start runs "rdma-netstack serve command" in the namespace and waits until it serves.
func (w *world) start(command string, args ...string) {
	w.t.Helper()
	if !w.tryStart(command, args...) {
		text, _ := w.log.written()
		w.t.Fatalf("the server did not start within %v:\n%s", startTime, text)
	}
}

// tryStart is start that returns whether the server serves.
func (w *world) tryStart(command string, args ...string) bool {
	w.t.Helper()
	wire := "tap:" + port
	if w.wire != "" {
		wire = w.wire
	}
	link := w.link
	if link == nil {
		link = []string{"--device", "sim", "--sim-wire", wire, "--mac", serverMAC}
	}
	args = slices.Concat([]string{"serve", command}, link, args)
	return w.run(exec.Command(program(w.t), args...), "serving")
}

// run starts a server process in the namespace and reports whether it prints a line that contains
// sign.
func (w *world) run(cmd *exec.Cmd, sign string) bool {
	w.t.Helper()
	out, writer, err := os.Pipe()
	must(w.t, err)
	defer writer.Close()
	cmd.Stdout, cmd.Stderr = writer, &w.log
	must(w.t, w.home().Start(cmd))
	w.cmd, w.began = cmd, time.Now()
	w.t.Cleanup(w.stop)
	says := make(chan bool, 2) // the sign, then the end
	go func() {
		defer out.Close()
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			fmt.Fprintln(&w.log, lines.Text())
			if strings.Contains(lines.Text(), sign) {
				says <- true
			} else if w.answers != nil {
				w.answers <- lines.Text()
			}
		}
		says <- false
	}()
	select {
	case ok := <-says:
		return ok
	case <-time.After(startTime):
		return false
	}
}

// stop kills the server at once: its orderly end is not tested here.
func (w *world) stop() {
	w.cmd.Process.Kill()
	w.cmd.Wait()
	if w.t.Failed() {
		text, size := w.log.written()
		w.t.Logf("the server's log has %d bytes, which begin with:\n%s", size,
			text[:min(len(text), 4096)])
	}
}

// port opens the namespace's interface for raw frames.
func (w *world) port() *lab.Port {
	w.t.Helper()
	var p *lab.Port
	must(w.t, w.ns.Do(func() (err error) { p, err = lab.OpenPort(port); return err }))
	w.t.Cleanup(func() { p.Close() })
	return p
}

// tool runs a program in the namespace until it exits or limit passes, and returns its output.
func (w *world) tool(limit time.Duration, name string, args ...string) (string, error) {
	var out journal
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := w.ns.Start(cmd); err != nil {
		return "", err
	}
	timer := time.AfterFunc(limit, func() { cmd.Process.Kill() })
	defer timer.Stop()
	err := cmd.Wait()
	text, _ := out.written()
	return text, err
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func netipFrom(b [16]byte) netip.Addr { return netip.AddrFrom16(b) }

func sprintf(format string, args ...any) string { return fmt.Sprintf(format, args...) }

// rate describes the rate of an attack.
func (w *world) rate(n int, what string) string {
	return fmt.Sprintf("%.0f %s/s", float64(n)/w.lasted.Seconds(), what)
}
