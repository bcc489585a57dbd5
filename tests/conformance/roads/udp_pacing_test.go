package roads

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/racing"
)

// peer names a port of the client that nothing listens on.
var peer = netip.AddrPortFrom(clientIP.Addr(), 9)

// listenPaced returns a socket of the server that has a rate, and what it sends from now on.
func (w *World) listenPaced(t testing.TB, rate uint64) (*stack.UDPConn, *windows) {
	t.Helper()
	c, err := w.Server.ListenUDP("udp4", nil)
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	must(t, c.SetPacing(rate))
	sent := &windows{w: w, began: w.Now()}
	ways := w.Travel(Road{Delay: 500 * time.Microsecond}, 0)
	ways[0].Lose = func(frame []byte) bool { sent.note(frame); return true }
	return c, sent
}

func (c *windows) total() (sum int) {
	for _, n := range c.bytes {
		sum += n
	}
	return sum
}

// took runs f and returns the time that it took.
func (w *World) took(f func()) time.Duration {
	began := w.Now()
	w.await(time.Hour, f)
	return w.Now() - began
}

// TestUDPPacing: a socket sends its rate within 2 % and a datagram in any 10 ms, as counted on the
// wire: one by one, in batches and in segments, of one goroutine and of several.
func TestUDPPacing(t *testing.T) {
	oneProcessor(t)
	if racing.Detector {
		need.That(t, "race detector", errors.New("takes minutes with it; make test has it without"))
	}
	b := make([]byte, 1400)
	one := func(c *stack.UDPConn) error { _, err := c.WriteToUDPAddrPort(b, peer); return err }
	batch := func(c *stack.UDPConn) error {
		ms := make([]stack.Message, 16)
		for i := range ms {
			ms[i] = stack.Message{Buffers: [][]byte{b}, Addr: net.UDPAddrFromAddrPort(peer)}
		}
		n, err := c.WriteBatch(ms, 0)
		if err == nil && (n == 0 || ms[n-1].N != len(b)) {
			t.Errorf("WriteBatch: %d, the last of %d bytes", n, ms[n-1].N)
		}
		return err
	}
	segments := func(c *stack.UDPConn) error {
		_, err := c.WriteToUDPAddrPort(make([]byte, 5*1400), peer)
		return err
	}
	for _, tt := range []struct {
		name    string
		write   func(*stack.UDPConn) error
		writers int
		segment int
		longest int // bytes of frames that leave at once
	}{
		{"one by one", one, 1, 0, 1442}, {"four writers", one, 4, 0, 1442},
		{"batches", batch, 1, 0, 1442}, {"segments", segments, 1, 1400, 5 * 1442},
	} {
		for _, rate := range []uint64{1e6 / 8, 1e7 / 8, 1e8 / 8, 1e9 / 8} {
			withinExact(t, func(w *World) {
				c, sent := w.listenPaced(t, rate)
				must(t, c.SetSegmentSize(tt.segment))
				const spans, skipped = 20, 5
				must(t, c.SetWriteDeadline(w.clock.Now().Add(spans*window)))
				w.await(time.Minute, func() {
					var all sync.WaitGroup
					for range tt.writers {
						all.Go(func() {
							for tt.write(c) == nil {
							}
						})
					}
					all.Wait()
				})
				want := float64(rate) * window.Seconds()
				for i, n := range sent.bytes[skipped : spans-1] {
					off := max(float64(n)-want, want-float64(n)) - float64(tt.longest)
					if off > 0.02*want {
						t.Errorf("%s, %d bytes/s: %d bytes in window %d, want %.0f", tt.name, rate,
							n, i+skipped, want)
					}
				}
				st := w.Server.Stats()
				if st.UDPPaced != 1 || st.UDPPacingWaits == 0 {
					t.Errorf("%d sockets with a rate, %d waits", st.UDPPaced, st.UDPPacingWaits)
				}
				t.Logf("%s, %d bytes/s: %d datagrams, %d waits", tt.name, rate, st.UDPSent,
					st.UDPPacingWaits)
				must(t, c.Close())
				if st := w.Server.Stats(); st.UDPPaced != 0 {
					t.Errorf("%d sockets with a rate after Close", st.UDPPaced)
				}
			})
		}
	}
}

// TestUDPPacingCounts: what a write is followed by is the time that its frames take at the rate,
// those of segments and fragments too, without what pads short ones. One that is refused is
// followed by none.
func TestUDPPacingCounts(t *testing.T) {
	oneProcessor(t)
	withinExact(t, func(w *World) {
		const rate = 1_000_000 // a byte takes 1 us
		c, sent := w.listenPaced(t, rate)
		for _, tt := range []struct{ size, segment int }{
			{0, 0}, {1, 0}, {1472, 0}, {1500, 0}, {10_000, 0}, {65_507, 0}, {64_000, 1200},
			{64_100, 1000}, {1000, 1000}, {3, 1},
		} {
			must(t, c.SetSegmentSize(tt.segment))
			before := sent.total()
			took := w.took(func() {
				_, err := c.WriteToUDPAddrPort(make([]byte, tt.size),
					netip.MustParseAddrPort("203.0.113.1:9"))
				if !errors.Is(err, syscall.ENETUNREACH) {
					t.Errorf("without a route: %v", err)
				}
				_, err = c.WriteToUDPAddrPort(make([]byte, tt.size), peer)
				must(t, err)
			})
			if took != 0 {
				t.Errorf("a write after one that was refused waits %v", took)
			}
			bytes := sent.total() - before
			must(t, c.SetSegmentSize(0))
			took = w.took(func() {
				_, err := c.WriteToUDPAddrPort(nil, peer)
				must(t, err)
			})
			if want := time.Duration(bytes) * time.Microsecond; bytes < tt.size ||
				bytes > 300 && took != want || bytes < 100 && took != 0 {
				t.Errorf("%d bytes in segments of %d: %d in frames, then a wait of %v, want %v",
					tt.size, tt.segment, bytes, took, want)
			}
			w.clock.Advance(time.Second)
		}
	})
}

// TestUDPPacedWrite: a write that waits ends with the deadline, that of the socket's Close and that
// of the stack, and goes on at once when there is another rate, or none.
func TestUDPPacedWrite(t *testing.T) {
	oneProcessor(t)
	withinExact(t, func(w *World) {
		c, sent := w.listenPaced(t, 100)
		write := func() (took time.Duration, err error) {
			took = w.took(func() { _, err = c.WriteToUDPAddrPort(make([]byte, 958), peer) })
			return took, err
		}
		after := func(d time.Duration, f func()) { w.clock.AfterFunc(d, f) }
		took, first := write()
		if first != nil || took != 0 {
			t.Errorf("the first took %v, %v", took, first)
		}
		must(t, c.SetWriteDeadline(w.clock.Now().Add(time.Second)))
		if took, err := write(); !errors.Is(err, os.ErrDeadlineExceeded) || took != time.Second {
			t.Errorf("with a deadline: %v after %v", err, took)
		}
		n, err := c.WriteBatch([]stack.Message{{Buffers: [][]byte{{1}},
			Addr: net.UDPAddrFromAddrPort(peer)}}, 0)
		if n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a batch with a deadline: %d, %v", n, err)
		}
		must(t, c.SetWriteDeadline(time.Time{}))
		// 900 bytes are left, of which 100 go in a second: then 800 at the other rate
		after(time.Second, func() { must(t, c.SetPacing(10_000)) })
		if took, err := write(); err != nil || took != time.Second+80*time.Millisecond {
			t.Errorf("with another rate after a second: %v after %v", err, took)
		}
		if got := c.Settings().Pacing; got != 10_000 {
			t.Errorf("%d bytes/s", got)
		}
		must(t, c.SetPacing(1))
		after(time.Second, func() { must(t, c.SetPacing(0)) })
		if took, err := write(); err != nil || took != time.Second {
			t.Errorf("without a rate after a second: %v after %v", err, took)
		}
		if took, _ := write(); took != 0 {
			t.Errorf("without a rate: %v", took)
		}
		must(t, c.SetPacing(1))
		_, _ = write()
		total := sent.total()
		after(time.Second, func() { _ = c.Close() })
		if took, err := write(); !errors.Is(err, net.ErrClosed) || took != time.Second {
			t.Errorf("closed: %v after %v", err, took)
		}
		if n := sent.total() - total; n != 0 {
			t.Errorf("closed: %d bytes more", n)
		}
		if err := c.SetPacing(1); !errors.Is(err, net.ErrClosed) {
			t.Errorf("SetPacing after Close: %v", err)
		}
		c, _ = w.listenPaced(t, 1)
		_, _ = write()
		after(time.Second, func() { _ = w.Server.Close() })
		if took, err := write(); !errors.Is(err, net.ErrClosed) || took > time.Minute {
			t.Errorf("of a stack that is closed: %v after %v", err, took)
		}
	})
}

// TestUDPPacedBatch: a batch waits for its first datagram, sends what the rate lets out by then,
// and says how many that was; without a rate it sends all.
func TestUDPPacedBatch(t *testing.T) {
	oneProcessor(t)
	withinExact(t, func(w *World) {
		c, _ := w.listenPaced(t, 10_000_000) // 2,000 bytes in 200 us
		ms := make([]stack.Message, 100)
		for i := range ms {
			ms[i] = stack.Message{Buffers: [][]byte{make([]byte, 58)},
				Addr: net.UDPAddrFromAddrPort(peer)}
		}
		for i, want := range []time.Duration{0, 200 * time.Microsecond, 200 * time.Microsecond} {
			var n int
			var err error
			took := w.took(func() { n, err = c.WriteBatch(ms, 0) })
			if n != 20 || err != nil || took != want {
				t.Errorf("batch %d: %d datagrams, %v, after %v; want 20 after %v", i, n, err, took,
					want)
			}
		}
		must(t, c.SetPacing(0))
		if n, err := c.WriteBatch(ms, 0); n != len(ms) || err != nil {
			t.Errorf("without a rate: %d datagrams, %v", n, err)
		}
		connected, err := w.Server.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(peer))
		must(t, err)
		defer connected.Close()
		must(t, connected.SetPacing(10_000_000))
		for i := range ms {
			ms[i].Addr = nil
		}
		if n, err := connected.WriteBatch(ms, 0); n != 20 || err != nil {
			t.Errorf("of a connected socket: %d datagrams, %v", n, err)
		}
	})
}
