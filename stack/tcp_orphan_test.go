package stack_test

import (
	"errors"
	"io"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/netpair"
)

// TestOrphanIsReset: a connection closed with data that does not fit into the peer's window, which
// stays zero while the peer answers probes, exists for OrphanTimeout and no longer.
func TestOrphanIsReset(t *testing.T) {
	v := newVirtualTime(t)
	const patience = 2 * time.Second
	server, client := netpair.New(t, netpair.Faults{}, netpair.Both(func(cfg *stack.Config) {
		v.option(cfg)
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
	began := v.Now()
	eventually(t, "the data given up", func() bool { return timedOut() == 1 })
	if held := v.Now().Sub(began); held < patience/2 {
		t.Errorf("given up after %v, want about %v", held, patience)
	}
	eventually(t, "the connection gone", func() bool {
		return len(server.Netstack().RegisteredEndpoints()) < open
	})
}

// TestOrphanDelivers: a peer that reads the rest after a while gets all of it.
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

// TestOrphanIsResetInTotal: a peer that reads a little of the rest of a closed connection, again
// and again, is reset although each read comes before the user timeout.
func TestOrphanIsResetInTotal(t *testing.T) {
	v := newVirtualTime(t)
	const patience, rate, size = 3 * time.Second, 64 << 10, 64 << 10
	server, client := netpair.New(t, netpair.Faults{}, netpair.Both(func(cfg *stack.Config) {
		*cfg = stack.WithOrphanRate(*cfg, rate)
		v.option(cfg)
		cfg.TCP.OrphanTimeout = patience
		cfg.TCP.SendBuffer = stack.BufferRange{Default: size, Max: size}
		cfg.TCP.ReceiveBuffer = stack.BufferRange{Default: 8 << 10, Max: 8 << 10}
	}))
	s, c := pair(t, server, client)
	if _, err := s.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	must(t, s.Close())
	began, total, buf := v.Now(), 0, make([]byte, 1<<10)
	for err := error(nil); err == nil; {
		v.sleep(t, 200*time.Millisecond) // the peer's pace: 13 s for all of it
		var n int
		n, err = c.Read(buf)
		if total += n; errors.Is(err, io.EOF) {
			t.Fatalf("all %d bytes were delivered, in %v", total, v.Now().Sub(began))
		}
	}
	if held := v.Now().Sub(began); held < patience || total < 5<<10 {
		t.Errorf("reset after %v and %d bytes, want %v at least", held, total, patience)
	}
	eventually(t, "the connection gone", func() bool {
		for _, ep := range server.Netstack().RegisteredEndpoints() {
			if ep, ok := ep.(*tcp.Endpoint); ok && ep.EndpointState() != tcp.StateTimeWait {
				return false
			}
		}
		return true
	})
}
