package stack_test

import (
	"io"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/netpair"
)

// TestOrphanIsReset: a connection closed with data that does not fit into the peer's window, which
// stays shut while the peer answers probes, is there for OrphanTimeout and no longer.
func TestOrphanIsReset(t *testing.T) {
	const patience = 2 * time.Second
	server, client := netpair.New(t, netpair.Faults{}, netpair.Both(func(cfg *stack.Config) {
		cfg.TCP.OrphanTimeout = patience
		cfg.TCP.ReceiveBuffer = stack.BufferRange{Default: 8 << 10, Max: 8 << 10}
	}))
	s, c := pair(t, server, client)
	defer c.Close()
	if _, err := s.Write(make([]byte, 64<<10)); err != nil {
		t.Fatal(err)
	}
	timedOut := func() uint64 {
		for name, n := range server.Counters() {
			if name == "TCP.EstablishedTimedout" {
				return n
			}
		}
		t.Fatal("no such counter")
		return 0
	}
	open := len(server.Netstack().RegisteredEndpoints())
	must(t, s.Close())
	began := time.Now()
	eventually(t, "the data given up", func() bool { return timedOut() == 1 })
	if held := time.Since(began); held < patience/2 {
		t.Errorf("given up after %v, want about %v", held, patience)
	}
	eventually(t, "the connection gone", func() bool {
		return len(server.Netstack().RegisteredEndpoints()) < open
	})
}

// TestOrphanDelivers: a peer that takes what is left after a while gets all of it.
func TestOrphanDelivers(t *testing.T) {
	const size = 64 << 10
	server, client := netpair.New(t, netpair.Faults{}, netpair.Both(func(cfg *stack.Config) {
		cfg.TCP.ReceiveBuffer = stack.BufferRange{Default: 8 << 10, Max: 8 << 10}
	}))
	s, c := pair(t, server, client)
	if _, err := s.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	must(t, s.Close())
	eventually(t, "the shut window probed", func() bool { return server.Stats().TCPTimeouts > 0 })
	n, err := io.Copy(io.Discard, c)
	if n != size || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
}
