package stack_test

import (
	"context"
	"flag"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/netpair"
)

// TestRxMode checks that the mode reaches the queues: polling alone requests no event.
func TestRxMode(t *testing.T) {
	for _, mode := range []stack.RxMode{stack.RxAdaptive, stack.RxPolling, stack.RxInterrupt} {
		t.Run(mode.String(), func(t *testing.T) {
			netpair.CheckLeaks(t)
			nics := []*simnic.NIC{card(t, "sim_a", 1), card(t, "sim_b", 2)}
			wires := [2]wire.Wire{}
			wires[0], wires[1] = wire.Pair()
			stacks := []*stack.Stack{}
			for i, address := range []string{"192.0.2.1/24", "192.0.2.2/24"} {
				must(t, nics[i].ConnectWire(wires[i]))
				cfg := onCard(nics[i], 1, address)
				if i == 0 {
					cfg.Uplink.RxMode = mode
				}
				s, err := stack.Open(context.Background(), cfg)
				need.That(t, "simnic", onlyUnsupported(err))
				must(t, err)
				t.Cleanup(func() { must(t, s.Close()) })
				stacks = append(stacks, s)
			}
			l, err := stacks[0].Listen("tcp", ":80")
			must(t, err)
			for range 20 {
				c, err := stacks[1].Dial("tcp",
					at(netip.MustParseAddr("192.0.2.1"), &net.TCPAddr{Port: 80}))
				must(t, err)
				c.Close()
				s, err := l.Accept()
				must(t, err)
				s.Close()
			}
			if n := stacks[0].Device().Stats().Rx[0].Arms; (n == 0) != (mode == stack.RxPolling) {
				t.Errorf("%d events asked for", n)
			}
		})
	}
}

func TestRxModeRefused(t *testing.T) {
	if err := (stack.Config{Uplink: stack.UplinkOptions{RxMode: 7}}).Validate(); err == nil ||
		err.Error() != "there is no RxMode(7); use RxAdaptive, RxPolling or RxInterrupt" {
		t.Errorf("%v", err)
	}
	fs, mode := flag.NewFlagSet("", flag.ContinueOnError), stack.RxAdaptive
	fs.SetOutput(&strings.Builder{})
	fs.TextVar(&mode, "mode", stack.RxAdaptive, "")
	if err := fs.Parse([]string{"--mode=interrupt"}); err != nil || mode != stack.RxInterrupt {
		t.Errorf("as a flag: %v, %v", mode, err)
	}
}
