package stack_test

import (
	"errors"
	"math"
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/stack/stacktest"
)

// TestUDPPacingOptions: a socket has the rate that was set last, counts as one with a rate while
// there is one, and no more once it is closed.
func TestUDPPacingOptions(t *testing.T) {
	s, _ := stacktest.Pair(t)
	c, err := s.ListenUDP("udp", nil)
	must(t, err)
	for _, tt := range []struct{ set, want, sockets uint64 }{
		{0, 0, 0}, {math.MaxUint64, 0, 0}, {1000, 1000, 1}, {5, 5, 1}, {0, 0, 0}, {7, 7, 1},
		{math.MaxUint64, 0, 0}, {math.MaxUint64 - 1, math.MaxUint64 - 1, 1},
	} {
		must(t, c.SetPacing(tt.set))
		if got, n := c.Settings().Pacing, s.Stats().UDPPaced; got != tt.want || n != tt.sockets {
			t.Errorf("%d bytes/s: %d, %d sockets with a rate; want %d, %d", tt.set, got, n, tt.want,
				tt.sockets)
		}
	}
	must(t, c.Close())
	if err := c.SetPacing(1); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if n := s.Stats().UDPPaced; n != 0 {
		t.Errorf("%d sockets with a rate after Close", n)
	}
}

// TestUDPPacingAtOnce: writers of all kinds, another rate and Close at any moment do not harm each
// other, and leave no socket that counts as one with a rate.
func TestUDPPacingAtOnce(t *testing.T) {
	s, c := stacktest.Pair(t)
	for _, to := range []netip.Addr{stacktest.Used().ClientIP4.Addr(),
		stacktest.Used().ClientIP6.Addr()} {
		from, err := s.ListenUDP("udp", nil)
		must(t, err)
		sink, err := c.ListenUDP("udp", nil)
		must(t, err)
		at := netip.AddrPortFrom(to, uint16(sink.LocalAddr().(*net.UDPAddr).Port))
		var all sync.WaitGroup
		write := func(f func() error) {
			all.Go(func() {
				for err := error(nil); err == nil; err = f() {
				}
			})
		}
		ms := []stack.Message{{Buffers: [][]byte{make([]byte, 100)}}, {Buffers: [][]byte{{1}}}}
		for i := range ms {
			ms[i].Addr = net.UDPAddrFromAddrPort(at)
		}
		for _, size := range []int{1000, 9000} {
			write(func() error {
				_, err := from.WriteToUDPAddrPort(make([]byte, size), at)
				return err
			})
		}
		write(func() error { _, err := from.WriteBatch(ms, 0); return err })
		write(func() error { return from.SetPacing(1_000_000) })
		for i := range 2000 {
			must(t, from.SetPacing([...]uint64{0, 1, 1_000_000_000, 100_000}[i%4]))
		}
		must(t, errors.Join(from.Close(), sink.Close()))
		all.Wait()
	}
	if n := s.Stats().UDPPaced; n != 0 {
		t.Errorf("%d sockets with a rate", n)
	}
}
