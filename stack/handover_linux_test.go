package stack_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/netpair"
)

// handoverWorld is an interface whose address is handed over from stack to stack, and a host at the
// other end of its cable.
type handoverWorld struct {
	t    *testing.T
	nets [2]*lab.Net
	path string      // of the socket that waits for a newcomer
	nic  *simnic.NIC // whose port the interface is; nil: there are packet sockets only
	host bool        // the address is the host's own

	filter  *stack.Filter // of stacks that are opened; nil: none
	backend stack.Backend // without a NIC; auto: packet sockets
}

// onEachLink runs a test on packet sockets and on rings, with an address of the stacks' own and
// with the host's.
func onEachLink(t *testing.T, test func(*testing.T, *handoverWorld)) {
	for name, h := range map[string]*handoverWorld{"packet sockets": {},
		"rings": {nic: card(t, "sim", 1)}, "host on packet sockets": {host: true},
		"host on rings": {host: true, nic: card(t, "sim", 1)}} {
		t.Run(name, func(t *testing.T) {
			h.t = t
			h.make()
			test(t, h)
		})
	}
}

func newHandoverWorld(t *testing.T) *handoverWorld {
	t.Helper()
	h := &handoverWorld{t: t}
	h.make()
	return h
}

// make lays the cable: to the interface, or to the port of the software NIC, which in host mode has
// an interface that is a TAP.
func (h *handoverWorld) make() {
	t := h.t
	t.Helper()
	need.NetNS(t)
	netpair.CheckLeaks(t)
	h.path = filepath.Join(t.TempDir(), "handover")
	for i := range h.nets {
		n, err := lab.New("hand-over test")
		must(t, err)
		t.Cleanup(func() { n.Close() })
		h.nets[i] = n
	}
	port := "eth0"
	if h.nic != nil {
		port = "port0"
	}
	must(t, lab.Cable(h.nets[0], port, h.nets[1], "eth0"))
	must(t, h.nets[0].Do(func() error { return lab.Up(port, lab.Setup{}) }))
	must(t, h.nets[1].Do(func() error {
		return lab.Up("eth0", lab.Setup{Addresses: []netip.Prefix{
			netip.MustParsePrefix("10.9.0.2/24")}})
	}))
	must(t, h.nets[0].Do(func() error {
		if h.nic != nil {
			w, err := wire.OpenPacket(port)
			must(t, err)
			must(t, h.nic.ConnectWire(w))
		}
		if !h.host {
			return nil
		}
		setup := lab.Setup{Addresses: []netip.Prefix{netip.MustParsePrefix("10.9.0.1/24")}}
		if h.nic != nil {
			// the kernel, to which the port is an interface of its own, is not to answer there
			must(t, os.WriteFile("/proc/sys/net/ipv4/conf/port0/arp_ignore", []byte("8"), 0))
			must(t, netlink.LinkAdd(&netlink.Tuntap{Mode: netlink.TUNTAP_MODE_TAP,
				LinkAttrs: netlink.LinkAttrs{Name: "eth0", HardwareAddr: h.nic.MAC()},
				Flags:     netlink.TUNTAP_NO_PI | netlink.TUNTAP_VNET_HDR}))
			setup.MAC = h.nic.MAC()
		}
		return lab.Up("eth0", setup)
	}))
	if h.host && h.nic != nil {
		must(t, h.nets[0].Do(func() error {
			tap, err := wire.OpenTAP("eth0")
			must(t, err)
			return h.nic.ConnectNetdev(tap)
		}))
	}
}

// open opens a stack that echoes what comes to port 7 and says its name to who asks at the ports.
func (h *handoverWorld) open(name string, p *stack.Predecessor, ports ...int) *stack.Stack {
	h.t.Helper()
	cfg := stack.Config{Uplink: stack.UplinkOptions{Backend: stack.BackendPacket}}
	if h.backend != stack.BackendAuto {
		cfg.Uplink.Backend = h.backend
	}
	cfg.NIC.Device = "eth0"
	if h.nic != nil {
		cfg = onCard(h.nic, 2)
		cfg.NIC.Rings.DelayDrop = true
	}
	cfg.Predecessor, cfg.Addressing.DuplicateDetection = p, -1
	cfg.Filter = h.filter
	if cfg.Host = h.host; h.host {
		cfg.NIC.Model.Facts.Netdev = "eth0"
	} else {
		cfg.Addresses = []netip.Prefix{netip.MustParsePrefix("10.9.0.1/24")}
	}
	var s *stack.Stack
	must(h.t, h.nets[0].Do(func() (err error) {
		s, err = stack.Open(h.t.Context(), cfg)
		return err
	}))
	h.t.Cleanup(func() { s.Close() })
	must(h.t, h.nets[0].Do(func() error { // of host mode's sockets of the kernel
		serveEcho(h.t, s, 7)
		return nil
	}))
	for _, port := range ports {
		var u net.PacketConn
		must(h.t, h.nets[0].Do(func() (err error) {
			u, err = s.ListenPacket("udp", fmt.Sprint(":", port))
			return err
		}))
		go func() {
			b := make([]byte, 100)
			for _, from, err := u.ReadFrom(b); err == nil; _, from, err = u.ReadFrom(b) {
				u.WriteTo([]byte(name), from)
			}
		}()
	}
	return s
}

// wait has a stack wait for a newcomer.
func (h *handoverWorld) wait(s *stack.Stack) <-chan error {
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: h.path})
	must(h.t, err)
	return background(func() error { return s.HandOver(h.t.Context(), l) })
}

func (h *handoverWorld) meet() *stack.Predecessor {
	h.t.Helper()
	p, err := stack.MeetPredecessor(h.t.Context(), h.path)
	must(h.t, err)
	h.t.Cleanup(func() { p.Close() })
	return p
}

func (h *handoverWorld) dial(network string, port int) net.Conn {
	h.t.Helper()
	return h.dialFrom(h.nets[1], network, port)
}

func (h *handoverWorld) dialFrom(n *lab.Net, network string, port int) net.Conn {
	h.t.Helper()
	c, err := n.DialContext(h.t.Context(), network, fmt.Sprint("10.9.0.1:", port))
	must(h.t, err)
	h.t.Cleanup(func() { c.Close() })
	must(h.t, c.SetDeadline(time.Now().Add(hangs)))
	return c
}

// who asks for the name of the stack that receives datagrams to a port, on a socket of the kernel's
// that nobody knows.
func (h *handoverWorld) who(port int) string {
	h.t.Helper()
	c, b := h.dial("udp", port), make([]byte, 100)
	_, err := c.Write([]byte("who"))
	must(h.t, err)
	n, err := c.Read(b)
	must(h.t, err)
	return string(b[:n])
}

// TestHandOver has several newcomers give up, and one take over: connections stay where they are,
// new ones and datagrams go to the newcomer, or where there is a socket; all go to the stack before
// again when the newcomer has ended.
func TestHandOver(t *testing.T) { onEachLink(t, testHandOver) }

func testHandOver(t *testing.T, h *handoverWorld) {
	before := h.open("before", nil, 53, 54)
	handed := h.wait(before)
	old := h.dial("tcp", 7)
	echoed(t, old)
	for _, messages := range [][]string{nil, {"x"}, {"h99"}, {"h1"}, {"h1", "x"}, {"h1", "t[]"}} {
		c, err := net.Dial("unixpacket", h.path)
		must(t, err)
		for _, m := range messages {
			_, err := c.Write([]byte(m))
			must(t, err)
		}
		if len(messages) > 1 { // it answers to hello
			_, err := c.Read(make([]byte, 1000))
			must(t, err)
		}
		c.Close()
		echoed(t, old)
		echoed(t, h.dial("tcp", 7))
	}
	p := h.meet()
	if mac := before.HardwareAddr(); p.MAC.String() != mac.String() ||
		!slices.Equal(p.Addresses, before.Addrs()) {
		t.Errorf("it has %v and %v, want %v and %v", p.MAC, p.Addresses, mac, before.Addrs())
	}
	after := h.open("after", p, 53, 55)
	early := h.dial("tcp", 7)
	echoed(t, early)
	if n := after.Conns(); n != 0 {
		t.Errorf("%d connections before it has taken over, want 0", n)
	}
	must(t, after.TakeOver(t.Context()))
	must(t, result(t, "HandOver", handed))
	late := h.dial("tcp", 7)
	for _, c := range []net.Conn{old, early, late} {
		echoed(t, c)
	}
	if n := after.Conns(); n != 1 {
		t.Errorf("%d connections of the newcomer, want 1", n)
	}
	for port, want := range map[int]string{53: "after", 54: "before", 55: "after"} {
		if got := h.who(port); got != want {
			t.Errorf("port %d is %q's, want %q", port, got, want)
		}
	}
	must(t, after.Close())
	echoed(t, old)
	eventually(t, "a new client of the stack before", func() bool {
		c, err := h.nets[1].DialContext(t.Context(), "tcp", "10.9.0.1:7")
		if err != nil {
			return false
		}
		defer c.Close()
		must(t, c.SetDeadline(time.Now().Add(hangs)))
		_, err = c.Write([]byte("x"))
		if err == nil {
			_, err = io.ReadFull(c, make([]byte, 1))
		}
		return err == nil
	})
	if got := h.who(53); got != "before" {
		t.Errorf("the newcomer has ended, but port 53 is %q's", got)
	}
}

// TestHandOverEnds: the stack before ends, after it has handed over or between the meeting and
// that. The newcomer has all frames then.
func TestHandOverEnds(t *testing.T) {
	for _, first := range []bool{true, false} {
		name := fmt.Sprint("before the change: ", first)
		test := func(t *testing.T, h *handoverWorld) {
			before := h.open("before", nil)
			handed := h.wait(before)
			old := h.dial("tcp", 7)
			echoed(t, old)
			after := h.open("after", h.meet())
			if first {
				must(t, before.Close())
			}
			must(t, after.TakeOver(t.Context()))
			late := h.dial("tcp", 7)
			if !first {
				must(t, result(t, "HandOver", handed))
				must(t, before.Close())
			}
			echoed(t, late)
			if _, err := old.Read(make([]byte, 1)); err == nil {
				t.Error("a connection of the stack that has ended goes on")
			}
			echoed(t, h.dial("tcp", 7))
		}
		t.Run(name, func(t *testing.T) { onEachLink(t, test) })
	}
}

// TestHandOverInTurn has stacks take over one after the other, each from the one before, which ends
// with a connection.
func TestHandOverInTurn(t *testing.T) {
	onEachLink(t, func(t *testing.T, h *handoverWorld) {
		before := h.open("0", nil, 53)
		for i := range 4 {
			handed := h.wait(before)
			old := h.dial("tcp", 7)
			echoed(t, old)
			p := h.meet()
			next := h.open(fmt.Sprint(i+1), p, 53)
			must(t, next.TakeOver(t.Context()))
			must(t, result(t, "HandOver", handed))
			echoed(t, old)
			if h.host { // by the kernel
				c := h.dialFrom(h.nets[0], "tcp", 7)
				echoed(t, c)
				defer echoed(t, c)
			}
			if got, want := h.who(53), fmt.Sprint(i+1); got != want {
				t.Errorf("%s answers, want %s", got, want)
			}
			must(t, before.Close())
			echoed(t, h.dial("tcp", 7))
			if h.host {
				echoed(t, h.dialFrom(h.nets[0], "tcp", 7))
			}
			before = next
		}
	})
}

// TestHandOverRefused: both have to be on one kind of link that Open makes, and who waits stops
// with its context.
func TestHandOverRefused(t *testing.T) {
	h := newHandoverWorld(t)
	pair, _ := netpair.New(t, netpair.Faults{})
	if err := result(t, "HandOver", h.wait(pair)); err == nil {
		t.Error("a stack on a link of another kind hands over")
	}
	if _, err := stack.MeetPredecessor(t.Context(), h.path); err == nil {
		t.Error("somebody listens after HandOver")
	}
	on := h.open("packet sockets", nil)
	h.wait(on)
	cfg := onCard(card(t, "sim", 1), 1, "10.9.0.1/24")
	cfg.Predecessor = h.meet()
	if _, err := stack.Open(t.Context(), cfg); err == nil ||
		!strings.Contains(err.Error(), "serves on packet, and this one would on rings") {
		t.Errorf("rings take over from packet sockets: %v", err)
	}
	must(t, on.Close())
	h.path += "2"
	s := h.open("alone", nil)
	must(t, s.TakeOver(t.Context())) // nothing to do
	ctx, cancel := context.WithCancel(t.Context())
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: h.path})
	must(t, err)
	waiting := background(func() error { return s.HandOver(ctx, l) })
	p := h.meet()
	cancel()
	if err := result(t, "HandOver", waiting); err == nil {
		t.Error("HandOver goes on after its context has ended")
	}
	must(t, p.Close())
	must(t, p.Close())
}
