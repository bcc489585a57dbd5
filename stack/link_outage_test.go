package stack_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/netpair"
)

// TestSlowStartAfterOutage: what a connection may send when the link is back is not what several
// timeouts in a row have made of it.
func TestSlowStartAfterOutage(t *testing.T) {
	v := newVirtualTime(t)
	var down atomic.Bool
	server, client := netpair.New(t, netpair.Faults{Tap: func(int, []byte) bool {
		return down.Load()
	}}, netpair.Both(v.option))
	s, _ := pair(t, server, client)
	down.Store(true)
	_, err := s.Write(make([]byte, 1<<20))
	must(t, err)
	v.sleep(t, 10*time.Second)
	info := func() *stack.TCPInfo {
		t.Helper()
		for _, so := range server.Sockets() {
			if so.State == "ESTAB" {
				return so.TCP
			}
		}
		t.Fatalf("no connection: %+v", server.Sockets())
		return nil
	}
	if i := info(); i.Ssthresh > 2 || i.Cwnd > 2 {
		t.Fatalf("after 10 s without a link %+v: netstack holds the threshold; the mend can go", i)
	}
	down.Store(false)
	server.LinkIsUp()
	if i := info(); i.Ssthresh < 1000 || i.Cwnd < 10 {
		t.Errorf("the link is back: %+v", i)
	}
}
