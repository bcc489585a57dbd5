package stack_test

import (
	"bytes"
	"crypto/sha256"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/moving"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// TestSpread: by load flows come to the first queue at first, else to all.
func TestSpread(t *testing.T) {
	for _, c := range []struct {
		spread stack.Spread
		mode   stack.RxMode
		asked  int
		want   int
	}{
		{stack.SpreadLoad, stack.RxAdaptive, 0, 1}, {stack.SpreadAll, stack.RxAdaptive, 0, 4},
		{stack.SpreadLoad, stack.RxPolling, 0, 4}, {stack.SpreadLoad, stack.RxInterrupt, 0, 1},
		{stack.SpreadLoad, stack.RxAdaptive, 3, 3},
	} {
		cfg := onCard(card(t, "sim", 1), 4, "192.0.2.1/24")
		cfg.Uplink.Spread, cfg.Uplink.RxMode = c.spread, c.mode
		if c.asked > 0 {
			cfg.Driver = func(d *dv.Config) { d.ActiveRxQueues = c.asked }
		}
		s, err := stack.Open(t.Context(), cfg)
		need.That(t, "simnic", onlyUnsupported(err))
		must(t, err)
		if got := s.Device().ActiveRxQueues(); got != c.want {
			t.Errorf("%v, %v, %d: %d active queues, want %d", c.spread, c.mode, c.asked, got,
				c.want)
		}
		must(t, s.Close())
	}
	if err := (stack.Config{Uplink: stack.UplinkOptions{Spread: 9}}).Validate(); err == nil {
		t.Error("Spread(9) is accepted")
	}
}

// TestSpreadChanges moves flows between queues again and again under eight transfers: frames may be
// reordered, and all bytes arrive.
func TestSpreadChanges(t *testing.T) {
	j := join(t, cable{queues: 4})
	j.mustMove(t, moving.Limit)
	l, err := j.server.Listen("tcp", ":9")
	must(t, err)
	var served sync.WaitGroup
	served.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			served.Go(func() {
				defer c.Close()
				sum := sha256.New()
				if _, err := io.Copy(sum, c); err != nil {
					t.Error(err)
				}
				if _, err := c.Write(sum.Sum(nil)); err != nil {
					t.Error(err)
				}
			})
		}
	})
	data := make([]byte, 1<<20)
	rand.NewChaCha8([32]byte{1}).Read(data)
	sum := sha256.Sum256(data)
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for range stack.Rounds(10) {
				c, err := j.client.Dial("tcp",
					at(netip.MustParseAddr("192.0.2.1"), &net.TCPAddr{Port: 9}))
				if err != nil {
					t.Error(err)
					return
				}
				_, err = c.Write(data)
				must(t, err)
				must(t, c.(interface{ CloseWrite() error }).CloseWrite())
				got, err := io.ReadAll(c)
				if err != nil || !bytes.Equal(got, sum[:]) {
					t.Errorf("%x, %v", got, err)
				}
				c.Close()
			}
		})
	}
	done := make(chan struct{})
	go func() { clients.Wait(); close(done) }()
	changes := 0
	for over := false; !over; {
		for _, s := range []*stack.Stack{j.server, j.client} {
			must(t, s.Device().Rebalance([][]int{{1, 1, 0, 0}, {1, 1, 1, 1}, {0, 0, 1, 0},
				{1, 0, 0, 0}}[changes%4]))
		}
		changes++
		select {
		case <-done:
			over = true
		default:
		}
	}
	must(t, l.Close())
	served.Wait()
	t.Logf("%d changes, %d segments sent again", changes,
		j.server.Stats().TCPRetransmits+j.client.Stats().TCPRetransmits)
}
