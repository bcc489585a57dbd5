package hostmode

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// TestManyRings is TestMany on a card.
func TestManyRings(t *testing.T) {
	need.TUN(t)
	many(t, newWorldOn(t, true), short)
}

// rules are those of ports that a server's device has, in order.
func (s *server) rules() []string {
	all := strings.Split(s.ok("rules"), ", ")
	slices.Sort(all)
	return all
}

// TestRulesOfListeners follows the rules of a server: one per address of each port, none for those
// of the block, and none behind the last listener; two processes have not the same port.
func TestRulesOfListeners(t *testing.T) {
	need.TUN(t)
	w := newWorldOn(t, true)
	w.taken = "61440/256"
	s := w.start(t)
	if got := s.ok("stats"); !strings.Contains(got, `"FirstPort":61696`) {
		t.Errorf("the first block is another's: %s", got)
	}
	var block []string
	for _, a := range []string{hostIP, hostIPv6} {
		for _, p := range []string{"TCP", "UDP"} {
			block = append(block, p+" ports 61696 to 61951 of "+a)
		}
	}
	want := func(when string, more ...string) {
		t.Helper()
		all := append(slices.Clone(block), more...)
		slices.Sort(all)
		got := slices.DeleteFunc(s.rules(), func(r string) bool {
			return strings.Contains(r, " of fe80:")
		})
		if !slices.Equal(got, all) {
			t.Errorf("%s: rules %q, want %q", when, got, all)
		}
	}
	want("at first")
	s.ok("tcp :8080")
	s.ok("udp " + hostIP + ":5300")
	s.ok("tcp :61700")
	mine := []string{"TCP port 8080 of " + hostIP, "TCP port 8080 of " + hostIPv6,
		"UDP port 5300 of " + hostIP}
	want("with listeners", mine...)
	s.ok("steal 8081/1")
	for _, at := range []string{":8081", hostIP + ":8081"} {
		answer := s.do("tcp " + at)
		if !strings.HasPrefix(answer, "error listen") ||
			strings.Count(answer, "is steered by another process") != 1 {
			t.Errorf("a port that another process has of the card: %q", answer)
		}
	}
	want("with one refused", mine...)
	ln, err := w.host.Listen("tcp", hostIP+":8081")
	must(t, err) // the kernel's socket went with the refusal
	ln.Close()
	c, err := dial(w.outside, hostIP+":8080")
	must(t, err)
	before, err := meet(c, "stack") // it is accepted: closing the listener does not reset it
	must(t, err)
	s.ok("close")
	want("without listeners", "UDP port 5300 of "+hostIP)
	must(t, echo(before, payload(1, 100000)))
	s.stop()
}

// awaitBackend waits until frames are carried so.
func (s *server) awaitBackend(want string) {
	s.t.Helper()
	for end := time.Now().Add(time.Minute); s.ok("backend") != want; {
		if time.Now().After(end) {
			s.t.Fatalf("the backend is %s, not %s", s.ok("backend"), want)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// TestDeviceLost takes the card's device away under connections: packet sockets of the netdev carry
// them, and new ones, until it is back, with its rules.
func TestDeviceLost(t *testing.T) {
	need.TUN(t)
	w := newWorldOn(t, true)
	s := w.start(t, "tcp :8080", "udp :5300")
	before := s.rules()
	echoServer(t, w.outside, ":9100")
	for range 2 {
		c, err := dial(w.outside, hostIP+":8080")
		must(t, err)
		s.ok("lose")
		s.awaitBackend("packet")
		for _, r := range s.rules() {
			if !strings.HasSuffix(r, " no device") {
				t.Errorf("without a device there is rule %s", r)
			}
		}
		must(t, visit(c, "stack", 1, 200000))
		must(t, each(10, 4, func(i int) error {
			c, err := dial(w.outside, hostIP+":8080")
			if err != nil {
				return err
			}
			return visit(c, "stack", i, 20000)
		}))
		must(t, datagrams(w.outside, hostIP, 3, 100))
		if got := s.ok(fmt.Sprintf("dial %s:9100 10", outsideIP)); got !=
			"dialled: stack 10, kernel 0" {
			t.Error(got)
		}
		c, err = dial(w.outside, hostIP+":8080")
		must(t, err)
		s.ok("return")
		s.awaitBackend("rings")
		if got := s.rules(); !slices.Equal(got, before) {
			t.Errorf("the rules are %q, before %q", got, before)
		}
		must(t, visit(c, "stack", 1, 200000))
		must(t, datagrams(w.outside, hostIP, 3, 100))
	}
	if got := w.kernelCounter(t, "Tcp", "OutRsts"); got != 0 {
		t.Errorf("the kernel has sent %d RSTs", got)
	}
	s.stop()
}

// TestVLAN serves on the netdev of a VLAN on the card's: the rules have its id, and the frames of
// the device above the tag.
func TestVLAN(t *testing.T) {
	need.TUN(t)
	const own, other = "10.9.5.1", "10.9.5.2"
	w := &world{host: newNet(t, "host"), outside: newNet(t, "outside"), rings: true,
		netdev: "eth0.5"}
	w.makeCard(t)
	up(t, w.outside, "eth0")
	for n, addr := range map[*lab.Net]string{w.host: own, w.outside: other} {
		need.That(t, "VLAN interfaces", n.Do(func() error {
			parent, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			return netlink.LinkAdd(&netlink.Vlan{VlanId: 5, LinkAttrs: netlink.LinkAttrs{
				Name: "eth0.5", ParentIndex: parent.Attrs().Index}})
		}))
		up(t, n, "eth0.5", addr+"/24")
	}
	s := w.start(t, "tcp :8080", "udp :5300")
	echoServer(t, w.outside, ":9100")
	everything := func(when string) {
		t.Helper()
		for _, n := range []*lab.Net{w.outside, w.host} {
			c, err := dial(n, own+":8080")
			must(t, err)
			must(t, visit(c, map[*lab.Net]string{w.outside: "stack", w.host: "kernel"}[n], 1,
				200000))
			if err := datagrams(n, own, 3, 100); err != nil {
				t.Errorf("%s: %v", when, err)
			}
		}
		if got := s.ok("dial " + other + ":9100 10"); got != "dialled: stack 10, kernel 0" {
			t.Errorf("%s: %s", when, got)
		}
	}
	everything("rings")
	s.steered(t, 0)
	s.ok("lose")
	s.awaitBackend("packet")
	everything("packet sockets")
	s.ok("return")
	s.awaitBackend("rings")
	everything("rings again")
	// without its netdev the stack has no addresses; the device is opened again with it
	must(t, w.host.Do(func() error {
		vlan, err := netlink.LinkByName("eth0.5")
		if err != nil {
			return err
		}
		if err := netlink.LinkDel(vlan); err != nil {
			return err
		}
		parent, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.LinkAdd(&netlink.Vlan{VlanId: 5, LinkAttrs: netlink.LinkAttrs{
			Name: "eth0.5", ParentIndex: parent.Attrs().Index}})
	}))
	s.awaitBackend("none")
	up(t, w.host, "eth0.5", own+"/24")
	s.awaitBackend("rings")
	everything("made again")
	s.stop()
}
