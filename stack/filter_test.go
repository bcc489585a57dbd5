package stack_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/capture"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/netpair"
)

// openFiltered opens a stack with a filter, nil for none, on a software NIC.
func openFiltered(t *testing.T, w wire.Wire, address string, f *stack.Filter,
	change ...func(*stack.Config)) *stack.Stack {
	t.Helper()
	nic, err := simnic.New(simnic.Config{})
	if err == nil {
		err = nic.ConnectWire(w)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nic.Close() })
	cfg := stack.Config{
		NIC: dv.NIC{Model: dv.Model{Kernel: kernel.Opener(nic),
			Facts: dv.PortFacts{Name: nic.Config().Name, MAC: nic.MAC(), MTU: nic.MTU()}}},
		Addresses:  []netip.Prefix{netip.MustParsePrefix(address)},
		Addressing: stack.AddressOptions{DuplicateDetection: -1}, Filter: f,
	}
	for _, c := range change {
		c(&cfg)
	}
	st, err := stack.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return st
}

// TestFilter: behind a policy that drops everything a stack dials, asks by datagrams and is
// answered; nobody reaches its own port; and what its list forbids to send is EPERM.
func TestFilter(t *testing.T) {
	f, err := stack.NewFilter(`
		chain input { policy drop; }
		chain output { udp dport 9 drop; }`)
	if err != nil {
		t.Fatal(err)
	}
	near, far := wire.Pair()
	us, other := openFiltered(t, near, "192.0.2.1/24", f), openFiltered(t, far, "192.0.2.2/24", nil)
	ln, err := other.Listen("tcp", ":7")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := us.Dial("tcp", "192.0.2.2:7")
	if err != nil {
		t.Fatalf("our own dial: %v", err)
	}
	conn.Close()
	ln.Close()
	if _, err := us.Listen("tcp", ":8"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if c, err := other.DialContext(ctx, "tcp", "192.0.2.1:8"); err == nil {
		c.Close()
		t.Error("our port answers behind a policy that drops")
	}

	server, err := other.ListenPacket("udp", ":10")
	if err != nil {
		t.Fatal(err)
	}
	client, err := us.ListenPacket("udp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	to, b := &net.UDPAddr{IP: net.IPv4(192, 0, 2, 2), Port: 10}, make([]byte, 9)
	for range 3 { // by netstack, then by templates
		if _, err := client.WriteTo([]byte("question"), to); err != nil {
			t.Fatal(err)
		}
		_, from, err := server.ReadFrom(b)
		if err == nil {
			_, err = server.WriteTo([]byte("answer"), from)
		}
		if err == nil {
			err = client.SetReadDeadline(time.Now().Add(time.Minute))
		}
		if err == nil {
			_, _, err = client.ReadFrom(b)
		}
		if err != nil {
			t.Fatalf("a datagram and its answer: %v", err)
		}
		if _, err := client.WriteTo(b, &net.UDPAddr{IP: to.IP, Port: 9}); !errors.Is(err,
			syscall.EPERM) {
			t.Errorf("a datagram that the list forbids: %v", err)
		}
	}
	if s := us.LinkStats(); s.RxFiltered == 0 || s.TxFiltered != 3 {
		t.Errorf("%d received packets and %d sent ones are counted", s.RxFiltered, s.TxFiltered)
	}
	a, _ := netpair.NewPorts(netpair.Faults{})
	if _, err := stack.New(a, stack.Config{Filter: f}); err == nil ||
		!strings.Contains(err.Error(), "rdma.Options.Filter") {
		t.Errorf("New with a filter: %v", err)
	}
}

// TestPeers: a stack spares its own addresses, whoever it has a connection with and whom a
// connected UDP socket is for, and no other.
func TestPeers(t *testing.T) {
	near, far := wire.Pair()
	us := openFiltered(t, near, "192.0.2.1/24", nil)
	other := openFiltered(t, far, "192.0.2.2/24", nil)
	want := func(when string, want ...string) {
		t.Helper()
		got := map[string]bool{}
		for _, a := range us.Peers() {
			if a.Is4() {
				got[a.String()] = true
			}
		}
		if fmt.Sprint(slices.Sorted(maps.Keys(got))) != fmt.Sprint(want) {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
	}
	ln, err := us.Listen("tcp", ":7")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	want("with a listener", "192.0.2.1")
	c, err := other.Dial("tcp", "192.0.2.1:7")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if accepted, err := ln.Accept(); err != nil {
		t.Fatal(err)
	} else {
		defer accepted.Close()
	}
	want("with a connection", "192.0.2.1", "192.0.2.2")
	u, err := us.Dial("udp", "192.0.2.9:9")
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	want("with a connected UDP socket", "192.0.2.1", "192.0.2.2", "192.0.2.9")
}

// TestFilterCapture: a capture has what the filter drops with the rule that did, of both
// directions: segments, datagrams of netstack's and those that go straight to the link.
func TestFilterCapture(t *testing.T) {
	f, err := stack.NewFilter(`
		chain input { tcp dport 8 drop; }
		chain output { udp dport 9 drop; tcp dport 9 drop; }`)
	if err != nil {
		t.Fatal(err)
	}
	near, far := wire.Pair()
	us, other := openFiltered(t, near, "192.0.2.1/24", f), openFiltered(t, far, "192.0.2.2/24", nil)
	out := &firstWrite{began: make(chan struct{})}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- us.Capture(ctx, out, capture.Options{}, 0) }()
	<-out.began
	dial := func(from *stack.Stack, to string) {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		if c, err := from.DialContext(ctx, "tcp", to); err == nil {
			c.Close()
			t.Errorf("%s answers", to)
		}
	}
	dial(us, "192.0.2.2:9")
	dial(other, "192.0.2.1:8")
	client, err := us.ListenPacket("udp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	for range 3 { // by netstack, then by templates
		client.WriteTo([]byte("question"), &net.UDPAddr{IP: net.IPv4(192, 0, 2, 2), Port: 9})
	}
	stop()
	if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	for want, least := range map[string]int{"rule 1 of the filter's chain input drops it": 1,
		"rule 1 of the filter's chain output drops it": 3,
		"rule 2 of the filter's chain output drops it": 1} {
		if n := strings.Count(out.String(), want); n < least {
			t.Errorf("%d frames with the comment %q, want %d", n, want, least)
		}
	}
}

// TestPolicyDropsSent: behind a policy that drops all that is sent a stack finds its addresses
// free, follows groups, serves and refuses connections; of what it sends by itself the policy drops
// errors of ICMP alone.
func TestPolicyDropsSent(t *testing.T) {
	f, err := stack.NewFilter(`chain output { policy drop; }`)
	if err != nil {
		t.Fatal(err)
	}
	near, far := wire.Pair()
	six := func(cfg *stack.Config, address string) {
		cfg.Addresses = append(cfg.Addresses, netip.MustParsePrefix(address))
	}
	us := openFiltered(t, near, "192.0.2.1/24", f, func(cfg *stack.Config) {
		six(cfg, "2001:db8::1/64")
		cfg.Addressing.DuplicateDetection = 100 * time.Millisecond
	})
	other := openFiltered(t, far, "192.0.2.2/24", nil, func(cfg *stack.Config) {
		six(cfg, "2001:db8::2/64")
	})
	out := &firstWrite{began: make(chan struct{})}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- us.Capture(ctx, out, capture.Options{}, 0) }()
	<-out.began
	sent := func(what string, want uint64) {
		t.Helper()
		for end := time.Now().Add(time.Minute); us.LinkStats().TxFiltered < want &&
			time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		if n := us.LinkStats().TxFiltered; n != want {
			t.Errorf("%s: %d sent packets were dropped, want %d", what, n, want)
		}
	}
	sent("addresses", 0)
	ln, err := us.Listen("tcp", ":7")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for _, to := range []string{"192.0.2.1", "2001:db8::1"} {
		to := netip.MustParseAddr(to)
		c, err := other.Dial("tcp", netip.AddrPortFrom(to, 7).String())
		if err != nil {
			t.Fatal(err)
		}
		accepted, err := ln.Accept()
		if err == nil {
			_, err = accepted.Write([]byte("hello"))
		}
		if err == nil {
			_, err = io.ReadFull(c, make([]byte, 5))
		}
		if err == nil {
			err = errors.Join(accepted.Close(), c.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
		_, err = other.Dial("tcp", netip.AddrPortFrom(to, 8).String())
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("a closed port of %s: %v", to, err)
		}
	}
	for _, group := range []string{"239.1.2.3", "ff0e::77"} {
		g, err := us.ListenMulticastUDP("udp", nil, &net.UDPAddr{IP: net.ParseIP(group), Port: 9})
		if err != nil {
			t.Fatal(err)
		}
		g.Close()
	}
	sent("connections, resets and groups", 0)
	for i, to := range []string{"192.0.2.1:99", "[2001:db8::1]:99"} {
		c, err := other.Dial("udp", to)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		sent("port unreachable", uint64(i+1))
		c.Close()
	}
	stop()
	if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	const dropped = "the policy of the filter's chain output drops it"
	if n := strings.Count(out.String(), dropped); n != 2 {
		t.Errorf("a capture has %d frames that the policy drops, want 2:\n%q", n, out.String())
	}
}

// firstWrite is a buffer that tells of its first bytes.
type firstWrite struct {
	strings.Builder
	began chan struct{}
}

func (w *firstWrite) Write(b []byte) (int, error) {
	if w.Len() == 0 {
		close(w.began)
	}
	return w.Builder.Write(b)
}
