package hostmode

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/onwire"
)

const (
	hostIP, hostIPv6       = "10.9.0.1", "fd00:9::1"
	outsideIP, outsideIPv6 = "10.9.0.2", "fd00:9::2"
	bridgeIP, containerIP  = "172.20.0.1", "172.20.0.2"
)

// world is three namespaces:
//
//	outside ── cable ── eth0 host br0 ── cable ── container
//
// With rings eth0 is the netdev of a software ConnectX, which is in the server's process: a TAP,
// and the cable ends at the card's port.
type world struct {
	host, outside, container *lab.Net
	rings                    bool
	given                    bool   // the card is the machine's
	netdev                   string // that the server is on
	taken                    string // what another process has of the card: "61440/256", or none
}

func newWorld(t testing.TB) *world { return newWorldOn(t, false) }

func newWorldOn(t testing.TB, rings bool) *world {
	t.Helper()
	need.NetNS(t)
	w := &world{host: newNet(t, "host"), outside: newNet(t, "outside"), rings: rings,
		netdev: "eth0"}
	if rings {
		w.makeCard(t)
	} else {
		must(t, lab.Cable(w.host, "eth0", w.outside, "eth0"))
		if os.Getenv(backendEnv) == stack.BackendXDP.String() {
			onwire.Make(t, "eth0", w.host, w.outside)
		}
	}
	w.connect(t)
	return w
}

// connect makes the container, and gives everybody addresses.
func (w *world) connect(t testing.TB) {
	t.Helper()
	w.container = newNet(t, "container")
	must(t, lab.Cable(w.host, "veth1", w.container, "eth0"))
	up(t, w.host, "eth0", hostIP+"/24", hostIPv6+"/64")
	up(t, w.outside, "eth0", outsideIP+"/24", outsideIPv6+"/64")
	must(t, w.host.Do(func() error {
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}
		if err := netlink.LinkAdd(bridge); err != nil {
			return err
		}
		port, err := netlink.LinkByName("veth1")
		if err != nil {
			return err
		}
		return netlink.LinkSetMaster(port, bridge)
	}))
	up(t, w.host, "veth1")
	up(t, w.host, "br0", bridgeIP+"/24")
	up(t, w.container, "eth0", containerIP+"/24")
	route(t, w.container, "eth0", "0.0.0.0/0", bridgeIP)
}

func newNet(t testing.TB, name string) *lab.Net {
	t.Helper()
	n, err := lab.New(name)
	must(t, err)
	t.Cleanup(func() { n.Close() })
	return n
}

func up(t testing.TB, n *lab.Net, ifname string, addrs ...string) {
	t.Helper()
	var setup lab.Setup
	for _, a := range addrs {
		setup.Addresses = append(setup.Addresses, netip.MustParsePrefix(a))
	}
	must(t, n.Do(func() error { return lab.Up(ifname, setup) }))
}

// route adds a route by a router.
func route(t testing.TB, n *lab.Net, ifname, to, router string) {
	t.Helper()
	must(t, n.Do(func() error {
		link, err := netlink.LinkByName(ifname)
		if err != nil {
			return err
		}
		_, dst, err := net.ParseCIDR(to)
		if err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: dst,
			Gw: net.ParseIP(router)})
	}))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// server is a process with a stack.
type server struct {
	t      testing.TB
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	opened time.Duration // how long stack.Open took
	ended  sync.Once
}

// start starts a server on the host's eth0, with listeners: "tcp :8080".
func (w *world) start(t testing.TB, listeners ...string) *server {
	t.Helper()
	s := &server{t: t, cmd: exec.Command(os.Args[0])}
	s.cmd.Env = append(os.Environ(), serverEnv+"="+w.netdev)
	if w.rings && !w.given {
		s.cmd.Env = append(s.cmd.Env, ringsEnv+"="+w.taken)
	}
	s.cmd.Stderr = os.Stderr
	var err error
	s.in, err = s.cmd.StdinPipe()
	must(t, err)
	out, err := s.cmd.StdoutPipe()
	must(t, err)
	s.out = bufio.NewReader(out)
	must(t, w.host.Start(s.cmd))
	t.Cleanup(s.kill)
	line := s.read()
	if s.opened, err = time.ParseDuration(strings.TrimPrefix(line, "open ")); err != nil {
		t.Fatalf("the server says %q", line)
	}
	for _, l := range listeners {
		s.ok(l)
	}
	return s
}

func (s *server) read() string {
	s.t.Helper()
	line, err := s.out.ReadString('\n')
	if err != nil {
		s.t.Fatalf("the server has ended: %v", err)
	}
	return strings.TrimSuffix(line, "\n")
}

// do has the server do what the line says, and returns its answer.
func (s *server) do(line string) string {
	s.t.Helper()
	_, err := fmt.Fprintln(s.in, line)
	must(s.t, err)
	return s.read()
}

// ok is do for what must not fail.
func (s *server) ok(line string) string {
	s.t.Helper()
	answer := s.do(line)
	if strings.HasPrefix(answer, "error ") {
		s.t.Fatalf("%s: %s", line, answer)
	}
	return answer
}

// stop has the server close its stack, and waits for its end.
func (s *server) stop() {
	s.t.Helper()
	s.ended.Do(func() {
		s.in.Close()
		must(s.t, s.cmd.Wait())
	})
}

func (s *server) kill() {
	s.ended.Do(func() {
		s.cmd.Process.Kill()
		s.cmd.Wait()
	})
}

// dial connects from a namespace.
func dial(n *lab.Net, to string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return n.DialContext(ctx, "tcp", to)
}

// kernelCounter reads a counter of /proc/net/snmp of the host, such as Tcp OutRsts.
func (w *world) kernelCounter(t testing.TB, group, name string) (value int) {
	t.Helper()
	must(t, w.host.Do(func() error {
		text, err := os.ReadFile("/proc/thread-self/net/snmp")
		if err != nil {
			return err
		}
		var names []string
		for line := range strings.Lines(string(text)) {
			words := strings.Fields(line)
			if words[0] != group+":" {
				continue
			}
			if names == nil {
				names = words
				continue
			}
			for i, n := range names {
				if n == name {
					value, err = strconv.Atoi(words[i])
					return err
				}
			}
		}
		return fmt.Errorf("no counter %s %s", group, name)
	}))
	return value
}
