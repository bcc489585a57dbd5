package stack_test

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/onwire"
)

// filterRules are the rules of both stacks: what they dial is answered all the same.
const filterRules = `chain input {
	udp dport 9 drop
	udp dport { 7, 8 } accept
	icmp type { echo-request, echo-reply } accept
	drop
}`

// asked reports whether the stack answers a datagram to a port, which is sent until then.
func (h *handoverWorld) asked(port int, patience time.Duration) bool {
	h.t.Helper()
	return h.askedFrom(netip.MustParseAddr("10.9.0.2"), port, patience)
}

// askedFrom does what asked does from another address.
func (h *handoverWorld) askedFrom(from netip.Addr, port int, patience time.Duration) bool {
	h.t.Helper()
	var c net.Conn
	must(h.t, h.nets[1].Do(func() (err error) {
		c, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0)),
			&net.UDPAddr{IP: net.IPv4(10, 9, 0, 1), Port: port})
		return err
	}))
	defer c.Close()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if _, err := c.Write([]byte("who")); err != nil {
			continue // refused by ICMP
		}
		must(h.t, c.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
		if _, err := c.Read(make([]byte, 100)); err == nil {
			return true
		}
	}
	return false
}

// testFilterOf checks that the rules hold, and that an answer to what the stack asks passes.
func (h *handoverWorld) testFilterOf(s *stack.Stack) {
	h.t.Helper()
	const short = 300 * time.Millisecond
	if !h.asked(8, hangs) {
		h.t.Error("a port that is let in does not answer")
	}
	if h.asked(9, short) {
		h.t.Error("a port that is denied answers")
	}
	var peer net.PacketConn
	must(h.t, h.nets[1].Do(func() (err error) {
		peer, err = net.ListenPacket("udp4", "10.9.0.2:0")
		return err
	}))
	defer peer.Close()
	go func() {
		b := make([]byte, 100)
		for n, from, err := peer.ReadFrom(b); err == nil; n, from, err = peer.ReadFrom(b) {
			peer.WriteTo(b[:n], from)
		}
	}()
	var c net.Conn
	must(h.t, h.nets[0].Do(func() (err error) {
		ctx, cancel := context.WithTimeout(h.t.Context(), hangs)
		defer cancel()
		c, err = s.DialContext(ctx, "udp", peer.LocalAddr().String())
		return err
	}))
	defer c.Close()
	_, err := c.Write([]byte("question"))
	must(h.t, err)
	must(h.t, c.SetReadDeadline(time.Now().Add(hangs)))
	if _, err := c.Read(make([]byte, 100)); err != nil {
		h.t.Errorf("the answer to what the stack asks: %v", err)
	}
}

// TestFilterHandOver: rules hold on packet sockets and rings, with an address of the stack's own
// and with the host's, and on AF_XDP, and answers pass; a stack that takes over has the rules of
// its own list, and denies whom the one before denies.
func TestFilterHandOver(t *testing.T) {
	onEachLink(t, testFilterHandOver)
	for name, host := range map[string]bool{"AF_XDP": false, "host on AF_XDP": true} {
		t.Run(name, func(t *testing.T) {
			need.Root(t)
			h := &handoverWorld{t: t, host: host, backend: stack.BackendXDP}
			h.make()
			onwire.Make(t, "eth0", h.nets[0], h.nets[1])
			testFilterHandOver(t, h)
		})
	}
}

func testFilterHandOver(t *testing.T, h *handoverWorld) {
	newFilter := func() *stack.Filter {
		f, err := stack.NewFilter(filterRules)
		must(t, err)
		return f
	}
	h.filter = newFilter()
	first := h.open("first", nil, 8, 9)
	h.testFilterOf(first)
	bad := netip.MustParsePrefix("10.9.0.2/32")
	must(t, h.filter.Deny(bad, time.Hour))
	if h.asked(8, 300*time.Millisecond) {
		t.Error("a source that is denied is answered")
	}
	done := h.wait(first)
	h.filter = newFilter()
	second := h.open("second", h.meet(), 8, 9)
	must(t, second.TakeOver(t.Context()))
	must(t, <-done)
	if e := h.filter.Status().Entries; len(e) != 1 || e[0].Prefix != bad || e[0].Until.IsZero() {
		t.Errorf("the stack that takes over denies %+v", e)
	}
	if h.asked(8, 300*time.Millisecond) {
		t.Error("a source that was denied is answered behind the hand-over")
	}
	if !h.filter.Forget(bad) {
		t.Error("the prefix is not there")
	}
	must(t, first.Close()) // which has AF_XDP's sockets, and denies still
	h.testFilterOf(second)
}

// TestDeniedByProgram: what a denied source sends in numbers over AF_XDP is dropped by the XDP
// program and counted with its prefix, a source beside it is answered meanwhile, and the denied one
// as well once it is denied no more.
func TestDeniedByProgram(t *testing.T) {
	for name, host := range map[string]bool{"own address": false, "host's address": true} {
		t.Run(name, func(t *testing.T) {
			need.Root(t)
			h := &handoverWorld{t: t, host: host, backend: stack.BackendXDP}
			h.make()
			onwire.Make(t, "eth0", h.nets[0], h.nets[1])
			other := netip.MustParsePrefix("10.9.0.3/24")
			must(t, h.nets[1].Do(func() error {
				return lab.Up("eth0", lab.Setup{Addresses: []netip.Prefix{other}})
			}))
			var err error
			h.filter, err = stack.NewFilter("")
			must(t, err)
			h.open("one", nil, 8)
			if !h.asked(8, hangs) {
				t.Fatal("there is no answer")
			}
			bad := netip.MustParsePrefix("10.9.0.2/32")
			must(t, h.filter.Deny(bad, 0))
			c := h.dial("udp", 8)
			deadline := time.Now().Add(hangs)
			for n := 0; h.filter.Status().OffloadDropped < 100; n++ {
				c.Write([]byte("who")) // ICMP may refuse it
				if time.Now().After(deadline) {
					t.Fatalf("of %d datagrams too few are dropped ahead: %+v", n,
						h.filter.Status())
				}
			}
			s := h.filter.Status()
			if s.OffloadRefused > 0 || s.Offloaded == 0 || len(s.Entries) != 1 ||
				s.Entries[0].Packets < s.OffloadDropped {
				t.Errorf("%+v", s)
			}
			if !h.askedFrom(other.Addr(), 8, hangs) {
				t.Error("a source beside it is not answered")
			}
			if !h.filter.Forget(bad) || !h.asked(8, hangs) {
				t.Error("a source that is denied no more is not answered")
			}
		})
	}
}
