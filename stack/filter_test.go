package stack_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
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
func openFiltered(t *testing.T, w wire.Wire, address string, f *stack.Filter) *stack.Stack {
	t.Helper()
	nic, err := simnic.New(simnic.Config{})
	if err == nil {
		err = nic.ConnectWire(w)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nic.Close() })
	st, err := stack.Open(t.Context(), stack.Config{
		NIC: dv.NIC{Model: dv.Model{Kernel: kernel.Opener(nic),
			Facts: dv.PortFacts{Name: nic.Config().Name, MAC: nic.MAC(), MTU: nic.MTU()}}},
		Addresses:  []netip.Prefix{netip.MustParsePrefix(address)},
		Addressing: stack.AddressOptions{DuplicateDetection: -1}, Filter: f,
	})
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
