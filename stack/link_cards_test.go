package stack_test

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/moving"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/netpair"
)

// card is a software NIC of its own.
func card(t *testing.T, name string, seed uint64) *simnic.NIC {
	t.Helper()
	return cardWith(t, simnic.Config{Name: name, Seed: seed})
}

func cardWith(t *testing.T, cfg simnic.Config) *simnic.NIC {
	t.Helper()
	cfg.Netdev = cfg.Name + "net"
	n, err := simnic.New(cfg)
	must(t, err)
	t.Cleanup(func() { n.Close() })
	return n
}

// onCard is the configuration of a stack on n, by n's clock: if that is virtual, events do not come
// by descriptors, which time would not wait for.
func onCard(n *simnic.NIC, queues int, addresses ...string) stack.Config {
	clock := n.Config().Clock
	linux := kernel.New(n, kernel.Config{EventQueues: clock.Virtual()})
	cfg := stack.Config{Addressing: stack.AddressOptions{DuplicateDetection: -1}, Clock: clock,
		NIC: dv.NIC{
			Model: dv.Model{
				Kernel: linux.OpenNode,
				Facts: dv.PortFacts{Name: n.Config().Name, Netdev: n.Config().Netdev,
					MAC: n.MAC(), MTU: n.MTU()},
			}, RxQueues: queues, TxQueues: queues,
		}}
	cfg.Uplink.Spread = stack.SpreadAll // what a test sends uses every queue
	for _, a := range addresses {
		cfg.Addresses = append(cfg.Addresses, netip.MustParsePrefix(a))
	}
	return cfg
}

// cable is the configuration of two joined software NICs.
type cable struct {
	queues int // of each NIC
	mtu    int // 0: 1500
	faults wire.FaultConfig
	clock  clock.Clock         // of all of it
	change func(*stack.Config) // of both stacks; may be nil
}

// joined are two stacks on two software NICs with a cable between them.
type joined struct {
	server, client *stack.Stack
	nic            *simnic.NIC // the server's
	moved          *moving.Meter
}

// join makes a cable. Its faults are on the server's side and progress is counted on the client's,
// so that each attempt of the client to connect counts, lost or not.
func join(t *testing.T, c cable) *joined {
	t.Helper()
	netpair.CheckLeaks(t)
	a := cardWith(t, simnic.Config{Name: "sim_a", Seed: 1, MTU: c.mtu, Clock: c.clock})
	b := cardWith(t, simnic.Config{Name: "sim_b", Seed: 2, MTU: c.mtu, Clock: c.clock})
	wa, wb := wire.Pair()
	if c.faults.Clock = c.clock; c.faults.Drop > 0 && c.clock.Virtual() {
		// Without a round trip time stands still while netstack repairs losses, so that RACK takes
		// what it has just sent again for lost, for ever: its order is that of the times of sending
		// (RFC 8985 section 6.2), and the retransmission timer never expires.
		c.faults.Delay = max(c.faults.Delay, 50*time.Microsecond)
	}
	j := &joined{nic: a, moved: new(moving.Meter)}
	must(t, a.ConnectWire(wire.WithFaults(wa, c.faults)))
	must(t, b.ConnectWire(moving.Wire(wb, j.moved)))
	j.server = c.open(t, a, "192.0.2.1/24", "2001:db8::1/64")
	j.client = c.open(t, b, "192.0.2.2/24", "2001:db8::2/64")
	if c.faults.Corrupt > 0 {
		netpair.Acquaint(t, j.server, j.client)
		netpair.Acquaint(t, j.client, j.server)
	}
	return j
}

func (c *cable) open(t *testing.T, n *simnic.NIC, addresses ...string) *stack.Stack {
	t.Helper()
	cfg := onCard(n, c.queues, addresses...)
	quick(&cfg)
	if c.change != nil {
		c.change(&cfg)
	}
	s, err := stack.Open(context.Background(), cfg)
	need.That(t, "simnic", onlyUnsupported(err))
	must(t, err)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// cards are two stacks on two software NICs with a good cable between them.
func cards(t *testing.T, queues int) (server, client *stack.Stack, serverNIC *simnic.NIC) {
	t.Helper()
	j := join(t, cable{queues: queues})
	return j.server, j.client, j.nic
}

// mustMove fails the test, and closes both stacks, when nothing has moved between them for the
// limit. It ends with stop, or with the test.
func (j *joined) mustMove(t *testing.T, limit time.Duration) (stop func()) {
	ctx, stop := j.moved.Watch(t.Context(), limit)
	done := make(chan struct{})
	context.AfterFunc(ctx, func() {
		defer close(done)
		if err := context.Cause(ctx); errors.Is(err, moving.ErrStopped) {
			t.Error(err)
			j.server.Close()
			j.client.Close()
		}
	})
	t.Cleanup(func() {
		stop()
		<-done
	})
	return stop
}

// onlyUnsupported is err where the software NIC does not exist, such as on systems other than
// Linux.
func onlyUnsupported(err error) error {
	if errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	return nil
}

// TestDriverLimits: what other options decide is refused from Driver, and the device is free again.
func TestDriverLimits(t *testing.T) {
	nic := card(t, "sim", 1)
	for name, change := range map[string]func(*dv.Config){
		"HostMode":  func(d *dv.Config) { d.HostMode = true },
		"TakesOver": func(d *dv.Config) { d.TakesOver = true },
	} {
		cfg := onCard(nic, 1, "192.0.2.1/24")
		cfg.Driver = change
		s, err := stack.Open(t.Context(), cfg)
		if err == nil {
			must(t, s.Close())
		}
		if err == nil || !strings.Contains(err.Error(), "use Host or Predecessor") {
			t.Errorf("%s: %v, want a refusal that names Host and Predecessor", name, err)
		}
	}
	s, err := stack.Open(t.Context(), onCard(nic, 1, "192.0.2.1/24"))
	need.That(t, "simnic", onlyUnsupported(err))
	must(t, err)
	must(t, s.Close())
}
