package stack_test

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/netpair"
)

// TestDeadlineOfClock: deadlines of conns and of dials are times of Config.Clock; one of the
// system's clock is not reached.
func TestDeadlineOfClock(t *testing.T) {
	virtual := newVirtualTime(t)
	server, client := netpair.New(t, netpair.Faults{}, netpair.Both(virtual.option))
	s, c := pair(t, server, client)
	virtual.stop()
	u, err := client.ListenUDP("udp4", nil)
	must(t, err)
	defer u.Close()
	for name, conn := range map[string]net.Conn{"TCP": s, "UDP": u} {
		t.Run(name, func(t *testing.T) {
			must(t, conn.SetReadDeadline(time.Now())) // decades away
			must(t, conn.SetReadDeadline(virtual.Now().Add(time.Hour)))
			errs := background(func() error { _, err := conn.Read(make([]byte, 1)); return err })
			virtual.Advance(59 * time.Minute)
			select {
			case err := <-errs:
				t.Fatalf("after 59 minutes: %v", err)
			default:
			}
			virtual.Advance(time.Minute)
			if err := result(t, "Read", errs); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("after an hour: %v", err)
			}
		})
	}
	must(t, c.Close())
}

// firstSYN is the TCP header of the first segment that a client of seed sends.
func firstSYN(t *testing.T, seed uint64) []byte {
	t.Helper()
	var mu sync.Mutex
	var syn []byte // guarded by mu
	tap := func(end int, f []byte) bool {
		mu.Lock()
		defer mu.Unlock()
		if end == 1 && syn == nil && f[12] == 8 && f[13] == 0 && f[23] == 6 {
			syn = bytes.Clone(f[34:])
		}
		return false
	}
	virtual := clocktest.New()
	server, client := netpair.New(t, netpair.Faults{Tap: tap},
		func(server bool, c *stack.Config) {
			if c.Clock = virtual.Clock(); !server {
				c.Random = clocktest.Random(seed)
			}
		})
	l, err := server.ListenTCP("tcp4", &net.TCPAddr{Port: 80})
	must(t, err)
	errs := background(func() error {
		c, err := client.DialTCP("tcp", nil,
			net.TCPAddrFromAddrPort(netip.AddrPortFrom(netpair.ServerIP4, 80)))
		if err == nil {
			c.Close()
		}
		return err
	})
	for len(errs) == 0 { // the neighbour is asked by a timer that expires at once
		virtual.Advance(0)
	}
	must(t, <-errs)
	must(t, l.Close())
	mu.Lock()
	defer mu.Unlock()
	return syn
}

// TestRandomDecides: with one seed a client's port, sequence number and timestamp are the same
// again, and with another they are not.
func TestRandomDecides(t *testing.T) {
	one, again, other := firstSYN(t, 1), firstSYN(t, 1), firstSYN(t, 2)
	if len(one) < 20 || !bytes.Equal(one, again) {
		t.Errorf("seed 1 gives\n%x, then\n%x", one, again)
	}
	if bytes.Equal(one[:8], other[:8]) {
		t.Errorf("seeds 1 and 2 give %x", one[:8])
	}
}
