package hostmode

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/onwire"
)

// hardwareAddr is that of eth0 in a namespace, and ifindex.
func hardwareAddr(t testing.TB, n *lab.Net) (mac net.HardwareAddr, index int) {
	t.Helper()
	must(t, n.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err == nil {
			mac, index = link.Attrs().HardwareAddr, link.Attrs().Index
		}
		return err
	}))
	return mac, index
}

// TestNetdevMadeAgain removes the netdev under connections and makes it again with the same MAC and
// addresses: they go on, the kernel resets none of them, and everybody is served by whom it was.
func TestNetdevMadeAgain(t *testing.T) {
	t.Run("packet sockets", func(t *testing.T) { testMadeAgain(t, false) })
	// What comes back is served through AF_XDP if that is possible, else by packet sockets.
	t.Run("AF_XDP", func(t *testing.T) {
		need.Root(t)
		t.Setenv(backendEnv, stack.BackendXDP.String())
		testMadeAgain(t, true)
	})
	t.Run("AF_XDP no longer possible", func(t *testing.T) {
		need.Root(t)
		t.Setenv(backendEnv, stack.BackendXDP.String())
		testMadeAgain(t, false)
	})
}

// testMadeAgain makes the netdev again as it was, or without its offloads.
func testMadeAgain(t *testing.T, onWire bool) {
	w := newWorld(t)
	s := w.start(t, "tcp :8080", "udp :5300", "tcp "+hostIP+":8082")
	echoServer(t, w.outside, ":9100")
	resets := w.kernelCounter(t, "Tcp", "OutRsts")
	for range 2 {
		mac, before := hardwareAddr(t, w.host)
		first, err := dial(w.outside, hostIP+":8080")
		must(t, err)
		first, err = meet(first, "stack")
		must(t, err)
		six, err := dial(w.outside, "["+hostIPv6+"]:8080")
		must(t, err)
		six, err = meet(six, "stack")
		must(t, err)
		must(t, w.host.Do(func() error {
			link, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			return netlink.LinkDel(link) // with the other end
		}))
		s.awaitBackend("none")
		must(t, lab.Cable(w.host, "eth0", w.outside, "eth0"))
		if onWire {
			onwire.Make(t, "eth0", w.host, w.outside)
		}
		up(t, w.outside, "eth0", outsideIP+"/24", outsideIPv6+"/64")
		// the clients send while the host has its address and the server does not know it yet
		sent := make(chan error, 2)
		go func() { sent <- echo(first, payload(1, 300000)) }()
		go func() { sent <- echo(six, payload(2, 300000)) }()
		must(t, w.host.Do(func() error { return lab.Up("eth0", lab.Setup{MAC: mac}) }))
		up(t, w.host, "eth0", hostIP+"/24", hostIPv6+"/64")
		if _, after := hardwareAddr(t, w.host); after == before {
			t.Fatalf("ifindex %d is that from before", after)
		}
		for range cap(sent) {
			must(t, <-sent)
		}
		s.awaitBackend("packet")
		if got := s.ok("xdp"); got != strconv.FormatBool(onWire) {
			t.Errorf("it is served through AF_XDP: %s", got)
		}
		lost := os.Getenv(backendEnv) != "" && !onWire
		if got := s.ok("mtu"); strings.Contains(got, "rx: eth0 is a veth") != lost {
			t.Errorf("health has the notice %q", got)
		}
		for _, at := range []string{hostIP + ":8080", "[" + hostIPv6 + "]:8080", hostIP + ":8082"} {
			for n, owner := range map[*lab.Net]string{w.outside: "stack", w.host: "kernel"} {
				c, err := dial(n, at)
				must(t, err)
				must(t, visit(c, owner, 3, 20000))
			}
		}
		must(t, datagrams(w.outside, hostIP, 3, 100))
		must(t, datagrams(w.host, hostIP, 3, 100))
		if got := s.ok("dial " + outsideIP + ":9100 10"); got != "dialled: stack 10, kernel 0" {
			t.Error(got)
		}
	}
	if got := w.kernelCounter(t, "Tcp", "OutRsts") - resets; got != 0 {
		t.Errorf("the kernel has sent %d RSTs", got)
	}
	s.stop()
}

// TestNetdevAwayAndBack has the netdev of a card go to another network namespace and come back: the
// stack has no addresses meanwhile, then it is on the rings again, with its rules and connections.
func TestNetdevAwayAndBack(t *testing.T) {
	need.TUN(t)
	w := newWorldOn(t, true)
	elsewhere := newNet(t, "elsewhere")
	s := w.start(t, "tcp :8080", "udp :5300")
	eventually(t, "the link-local address is served on", func() bool {
		return strings.Count(fmt.Sprint(s.rules()), "of fe80:") == 4
	})
	before := s.rules()
	echoServer(t, w.outside, ":9100")
	move := func(from, to *lab.Net) {
		t.Helper()
		must(t, from.Do(func() error {
			link, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			ns, err := os.Open(to.Path())
			if err != nil {
				return err
			}
			defer ns.Close()
			return netlink.LinkSetNsFd(link, int(ns.Fd()))
		}))
	}
	for range 2 {
		c, err := dial(w.outside, hostIP+":8080")
		must(t, err)
		met, err := meet(c, "stack")
		must(t, err)
		move(w.host, elsewhere)
		s.awaitBackend("none")
		move(elsewhere, w.host)
		up(t, w.host, "eth0", hostIP+"/24", hostIPv6+"/64")
		must(t, echo(met, payload(1, 300000)))
		s.awaitBackend("rings")
		s.awaitRules(before)
		for n, owner := range map[*lab.Net]string{w.outside: "stack", w.host: "kernel"} {
			c, err := dial(n, hostIP+":8080")
			must(t, err)
			must(t, visit(c, owner, 3, 20000))
		}
		must(t, datagrams(w.outside, hostIP, 3, 100))
		if got := s.ok("dial " + outsideIP + ":9100 10"); got != "dialled: stack 10, kernel 0" {
			t.Error(got)
		}
	}
	if got := w.kernelCounter(t, "Tcp", "OutRsts"); got != 0 {
		t.Errorf("the kernel has sent %d RSTs", got)
	}
	s.stop()
}

// awaitRules waits until the rules of ports are these: those of link-local addresses come last.
func (s *server) awaitRules(want []string) {
	s.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		got := s.rules()
		if slices.Equal(got, want) {
			return
		}
		if time.Now().After(end) {
			s.t.Fatalf("the rules are %q, before %q", got, want)
		}
	}
}
