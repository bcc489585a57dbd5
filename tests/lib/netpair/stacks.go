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

// New returns two stacks on one cable. They are closed when the test ends, which then fails if one
// of their goroutines remains.
func New(t testing.TB, faults Faults, opts ...Option) (server, client *stack.Stack) {
	t.Helper()
	CheckLeaks(t)
	a, b := NewPorts(faults)
	return open(t, a, true, opts), open(t, b, false, opts)
}

func open(t testing.TB, p *Port, server bool, opts []Option) *stack.Stack {
	t.Helper()
	cfg := stack.Config{Addressing: stack.AddressOptions{DuplicateDetection: -1},
		Addresses: []netip.Prefix{
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

// CheckLeaks fails the test if, once it has ended, a goroutine runs code of a stack that did not
// exist when CheckLeaks was called. Call it before anything that registers a cleanup which ends
// such goroutines.
func CheckLeaks(t testing.TB) { checkLeaks(t, 30*time.Second) }

// checkLeaks waits up to patience for goroutines that are about to end. It identifies them by
// number and does not count them, because the trace of a goroutine that has not run yet names no
// code of a stack. For the same reason it waits for new ones that are about to run.
func checkLeaks(t testing.TB, patience time.Duration) {
	before := goroutines()
	t.Cleanup(func() {
		var left []string
		for end := time.Now().Add(patience); time.Now().Before(end); { // no event reports their end
			waiting := false
			left = left[:0]
			for id, trace := range goroutines() {
				if _, known := before[id]; known {
					continue
				}
				if ofStack(trace) {
					left = append(left, trace)
				}
				head, _, _ := strings.Cut(trace, "\n")
				waiting = waiting || strings.Contains(head, "[runnable")
			}
			if len(left) == 0 && !waiting {
				return
			}
			time.Sleep(time.Millisecond)
		}
		if len(left) > 0 {
			t.Errorf("%d goroutines of stacks are left:\n%s", len(left),
				strings.Join(left, "\n\n"))
		}
	})
}

// goroutines are the traces of all except the caller, by number, which is never used again.
func goroutines() map[string]string {
	buf := make([]byte, 4<<20)
	buf = buf[:runtime.Stack(buf, true)]
	all := map[string]string{}
	for _, trace := range strings.Split(string(buf), "\n\n")[1:] {
		id, _, _ := strings.Cut(strings.TrimPrefix(trace, "goroutine "), " ")
		all[id] = trace
	}
	return all
}

// ofStack reports whether a goroutine runs code of a stack.
func ofStack(trace string) bool {
	return strings.Contains(trace, "gvisor.dev/gvisor") ||
		strings.Contains(trace, "rdma-netstack/stack.") ||
		strings.Contains(trace, "netpair.(*Port)")
}

// Acquaint adds the hardware address of each address of other to s's neighbour tables. Netstack
// lets datagrams overtake those that wait for address resolution; and ARP has no checksum: an entry
// that a bad wire corrupted is valid for a minute.
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
