package world

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/moving"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// The hosts' addresses, from the prefixes that RFC 5737 and RFC 3849 reserve for documentation.
const (
	Server4 = "192.0.2.10"
	Server6 = "2001:db8::10"
	Client4 = "192.0.2.1"
	Client6 = "2001:db8::1"
)

// closedPort is a TCP port without a listener: that of discard (RFC 863).
const closedPort = "9"

// port is the name of the client's interface.
const port = "eth0"

// BadWire is the bad wire of all service tests: one frame of twenty is lost, in each direction, and
// as many are late.
const BadWire = "drop=5%,reorder=5%"

// Host opens sockets. *stack.Stack and *lab.Net are hosts.
type Host interface {
	Listen(network, address string) (net.Listener, error)
	ListenPacket(network, address string) (net.PacketConn, error)
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

var (
	_ Host = (*stack.Stack)(nil)
	_ Host = (*lab.Net)(nil)
)

// World is two hosts that can reach each other.
type World struct {
	Server Host
	Client *lab.Net // the host is a kernel
	Wire   string   // faults of the wire, in the syntax of simnic.ParseFaults

	moved moving.Meter // of the wire of a server that runs on a stack
	stack bool         // the server runs on a stack
}

// Moving returns a context for work that lasts at most as long as the test. If nothing moves on the
// wire for the limit, the context ends and the test fails. Between two kernels it does not check
// that.
func (w *World) Moving(t testing.TB, limit time.Duration) context.Context {
	if !w.stack {
		return t.Context()
	}
	return w.moved.Context(t, limit)
}

// Each runs the test twice with the server on a stack: on a good wire and on a bad one.
func Each(t *testing.T, test func(t *testing.T, w *World)) {
	t.Run("good wire", func(t *testing.T) { test(t, New(t, "")) })
	t.Run("bad wire", func(t *testing.T) { test(t, New(t, BadWire)) })
}

// New makes a world whose server runs on a stack. TEST_SEED is the seed of the faults' random
// numbers.
func New(t testing.TB, faults string) *World {
	t.Helper()
	need.NetNS(t)
	need.TUN(t)
	cfg, err := wire.ParseFaults(faults)
	must(t, err)
	if faults != "" {
		cfg.Seed = seed(t)
	}
	w := &World{Client: namespace(t, "client"), Wire: faults, stack: true}
	var cable wire.Wire
	must(t, w.Client.Do(func() (err error) {
		if cable, err = wire.OpenTAP(port); err != nil {
			return err
		}
		return lab.Up(port, lab.Setup{Addresses: prefixes(Client4, Client6)})
	}))
	nic, err := simnic.New(simnic.Config{})
	must(t, err)
	t.Cleanup(func() { nic.Close() })
	cable = recorded(t, "client", cable)
	faulty := wire.WithFaults(cable, cfg)
	w.moved.Losses(faulty)
	cable = recorded(t, "server", faulty)
	must(t, nic.ConnectWire(moving.Wire(cable, &w.moved)))
	st, err := stack.Open(t.Context(), stack.Config{
		NIC: dv.NIC{
			Model: dv.Model{
				Kernel: kernel.Opener(nic),
				Facts: dv.PortFacts{Name: nic.Config().Name, Netdev: nic.Config().Netdev,
					MAC: nic.MAC(), MTU: nic.MTU()},
			},
		},
		Addresses:  prefixes(Server4, Server6),
		Addressing: stack.AddressOptions{DuplicateDetection: -1},
	})
	must(t, err)
	t.Cleanup(func() { end(t, st) })
	w.Server = st
	w.resolve(t)
	return w
}

// resolve has the client resolve the server's link addresses until they are known. Linux repeats a
// lost ARP request after a second and counts that second in the round-trip time of the SYN that
// waits for it: the retransmission timeout begins at 3 s, and two losses in a row make 7 s of
// silence, independent of the server.
func (w *World) resolve(t testing.TB) {
	t.Helper()
	for _, host := range []string{Server4, Server6} {
		for {
			ctx, cancel := context.WithTimeout(t.Context(), Patience)
			_, err := w.Client.DialContext(ctx, "tcp", net.JoinHostPort(host, closedPort))
			cancel()
			if errors.Is(err, syscall.ECONNREFUSED) {
				break
			}
			if !errors.Is(err, syscall.EHOSTUNREACH) { // three requests without an answer
				t.Fatalf("connect to a closed port of %s: %v, want refused", host, err)
			}
		}
	}
}

// end closes the stack, which must not take long and must not have failed before.
func end(t testing.TB, st *stack.Stack) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := st.Shutdown(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("shut the stack down: %v", err)
	}
}

// NewKernel makes a world whose server runs on a kernel, too.
func NewKernel(t testing.TB) *World {
	t.Helper()
	need.NetNS(t)
	client, server := namespace(t, "client"), namespace(t, "server")
	must(t, lab.Cable(client, port, server, port))
	for n, p := range map[*lab.Net][]netip.Prefix{client: prefixes(Client4, Client6),
		server: prefixes(Server4, Server6)} {
		must(t, n.Do(func() error { return lab.Up(port, lab.Setup{Addresses: p}) }))
	}
	return &World{Server: server, Client: client}
}

func namespace(t testing.TB, name string) *lab.Net {
	t.Helper()
	n, err := lab.New(name)
	must(t, err)
	t.Cleanup(func() { n.Close() })
	return n
}

// Listen opens a TCP listener on the server that lasts as long as the test.
func (w *World) Listen(t testing.TB, port int) net.Listener {
	t.Helper()
	ln, err := w.Server.Listen("tcp", fmt.Sprintf(":%d", port))
	must(t, err)
	t.Cleanup(func() { ln.Close() })
	return ln
}

// ListenPacket opens a UDP socket on the server that lasts as long as the test.
func (w *World) ListenPacket(t testing.TB, port int) net.PacketConn {
	t.Helper()
	pc, err := w.Server.ListenPacket("udp", fmt.Sprintf(":%d", port))
	must(t, err)
	t.Cleanup(func() { pc.Close() })
	return pc
}

func prefixes(v4, v6 string) []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix(v4 + "/24"), netip.MustParsePrefix(v6 + "/64")}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// seed is TEST_SEED, or a new one; either way it is logged.
func seed(t testing.TB) uint64 {
	t.Helper()
	n := uint64(time.Now().UnixNano())
	if s := os.Getenv("TEST_SEED"); s != "" {
		var err error
		n, err = strconv.ParseUint(s, 0, 64)
		must(t, err)
	}
	t.Logf("TEST_SEED=%d", n)
	return n
}
