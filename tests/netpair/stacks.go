package netpair

import (
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// The addresses of the two stacks that New makes.
var (
	ServerIP4 = netip.MustParseAddr("192.0.2.1")
	ClientIP4 = netip.MustParseAddr("192.0.2.2")
	ServerIP6 = netip.MustParseAddr("2001:db8::1")
	ClientIP6 = netip.MustParseAddr("2001:db8::2")
)

// Option changes the configuration of a stack of a pair.
type Option func(server bool, cfg *stack.Config)

// Both applies change to both stacks.
func Both(change func(*stack.Config)) Option {
	return func(_ bool, cfg *stack.Config) { change(cfg) }
}

// Server applies change to the first stack only.
func Server(change func(*stack.Config)) Option {
	return func(server bool, cfg *stack.Config) {
		if server {
			change(cfg)
		}
	}
}

// New returns two stacks on one cable. They are closed when the test ends, which then fails if a
// goroutine of theirs is left.
func New(t testing.TB, faults Faults, opts ...Option) (server, client *stack.Stack) {
	t.Helper()
	CheckLeaks(t)
	a, b := NewPorts(faults)
	return open(t, a, true, opts), open(t, b, false, opts)
}

func open(t testing.TB, p *Port, server bool, opts []Option) *stack.Stack {
	t.Helper()
	cfg := stack.Config{DuplicateDetection: -1, Addresses: []netip.Prefix{
		netip.PrefixFrom(ClientIP4, 24), netip.PrefixFrom(ClientIP6, 64),
	}}
	if server {
		cfg.Addresses = []netip.Prefix{netip.PrefixFrom(ServerIP4, 24),
			netip.PrefixFrom(ServerIP6, 64)}
	}
	for _, o := range opts {
		o(server, &cfg)
	}
	s, err := stack.New(p, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// Seed is that of TEST_SEED, or a new one; either way it is logged.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("TEST_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 0, 64); err != nil {
			t.Fatalf("TEST_SEED: %v", err)
		}
	}
	t.Logf("TEST_SEED=%d", seed)
	return seed
}

// CheckLeaks fails the test if there are more goroutines of stacks when it has ended than now. It
// is to be called before anything that registers a cleanup which ends them.
func CheckLeaks(t testing.TB) {
	before := len(goroutines())
	t.Cleanup(func() {
		var left []string
		// nobody tells of it
		for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(
			time.Millisecond) {
			if left = goroutines(); len(left) <= before {
				return
			}
		}
		t.Errorf("%d goroutines of stacks before the test, %d after it:\n%s", before, len(left),
			strings.Join(left, "\n\n"))
	})
}

// goroutines returns the traces of those that run code of a stack.
func goroutines() (of []string) {
	buf := make([]byte, 4<<20)
	buf = buf[:runtime.Stack(buf, true)]
	for i, g := range strings.Split(string(buf), "\n\n") {
		stacks := strings.Contains(g, "gvisor.dev/gvisor") ||
			strings.Contains(g, "rdma-netstack/stack.") || strings.Contains(g, "netpair.(*Port)")
		if i > 0 && stacks && !strings.Contains(g, "netpair.goroutines") {
			of = append(of, g)
		}
	}
	return of
}

// Acquaint tells s the hardware address of each address of other. Netstack lets datagrams overtake
// those that wait for it to be resolved; and nothing covers ARP: what a bad wire made of it is
// believed for a minute.
func Acquaint(t testing.TB, s, other *stack.Stack) {
	t.Helper()
	for _, p := range other.Addrs() {
		proto := header.IPv6ProtocolNumber
		if p.Addr().Is4() {
			proto = header.IPv4ProtocolNumber
		}
		if err := s.Netstack().AddStaticNeighbor(1, proto, tcpip.AddrFromSlice(p.Addr().AsSlice()),
			tcpip.LinkAddress(other.HardwareAddr())); err != nil {
			t.Fatal(err)
		}
	}
}
