package roads

import (
	"errors"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/racing"
)

// windows counts the bytes of frames by the windows of 10 ms that they are sent in.
type windows struct {
	w     *World
	began time.Duration
	bytes []int
}

const window = 10 * time.Millisecond

// note serves as a Way.Lose that loses nothing.
func (c *windows) note(frame []byte) bool {
	i := int((c.w.Now() - c.began) / window)
	for len(c.bytes) <= i {
		c.bytes = append(c.bytes, 0)
	}
	c.bytes[i] += len(frame)
	return false
}

// connectPaced returns the ends of a connection whose server has a rate.
func (w *World) connectPaced(t testing.TB, rate uint64) (server, client *stack.TCPConn) {
	server, client, err := w.connect()
	must(t, err)
	must(t, server.SetPacing(rate))
	return server, client
}

// closeBoth closes the ends of a connection.
func (w *World) closeBoth(server, client *stack.TCPConn) {
	w.await(time.Minute, func() { _, _ = server.Close(), client.Close() })
}

// TestPacing: a connection sends its rate within 2 % and a segment in any 10 ms, as counted on the
// wire, from when its window suffices.
func TestPacing(t *testing.T) {
	oneProcessor(t)
	if racing.Detector {
		need.That(t, "race detector", errors.New("takes minutes with it; make test has it without"))
	}
	for _, rate := range []uint64{1e6 / 8, 1e7 / 8, 1e8 / 8, 1e9 / 8} {
		within(t, func(w *World) {
			ways := w.Travel(Road{Delay: 500 * time.Microsecond}, 0)
			server, client := w.connectPaced(t, rate)
			defer w.closeBoth(server, client)
			c := &windows{w: w, began: w.Now()}
			ways[0].Lose = c.note
			const spans, skipped = 20, 5
			size := int64(rate) * spans / 100
			go func() { _, _ = server.Write(make([]byte, size)) }()
			var err error
			w.await(time.Hour, func() { _, err = io.CopyN(io.Discard, client, size) })
			must(t, err)
			const segment = 1514
			want := float64(rate) * window.Seconds()
			worst := 0.0
			for _, n := range c.bytes[skipped:spans] {
				off := max(float64(n)-want, want-float64(n)) - segment
				worst = max(worst, off/want)
			}
			st := w.Server.Stats()
			t.Logf("%d bytes/s: off by %.2f %% and a segment in 10 ms, %d waits, %d stalls", rate,
				max(0, worst)*100, st.TCPPacingWaits, st.TCPPacingStalls)
			if worst > 0.02 {
				t.Errorf("%d bytes/s: windows of 10 ms hold %v, want %.0f", rate, c.bytes, want)
			}
			if st.TCPRetransmits != 0 || st.TCPPaced != 1 {
				t.Errorf("%d segments sent again, %d connections with a rate",
					st.TCPRetransmits, st.TCPPaced)
			}
		})
	}
}

// TestPacedWrite: a write takes the time of its rate, ends at a deadline with what it has written,
// and goes on at once when the limit is taken away. Nothing is sent again meanwhile. A road without
// delay would not do: of two segments sent in one moment, RACK of netstack takes the second for
// lost when the first is acknowledged in the same moment.
func TestPacedWrite(t *testing.T) {
	oneProcessor(t)
	within(t, func(w *World) {
		w.Travel(Road{Delay: 500 * time.Microsecond}, 0)
		server, client := w.connectPaced(t, 100_000)
		defer w.closeBoth(server, client)
		go func() { _, _ = io.Copy(io.Discard, client) }()
		write := func(size int) (n int, took time.Duration, err error) {
			began := w.Now()
			w.await(time.Minute, func() { n, err = server.Write(make([]byte, size)) })
			return n, w.Now() - began, err
		}
		n, took, err := write(50_000)
		must(t, err)
		if took < 480*time.Millisecond || took > 540*time.Millisecond {
			t.Errorf("%d bytes and headers at 100000 bytes/s took %v", n, took)
		}
		must(t, server.SetWriteDeadline(w.clock.Now().Add(time.Second)))
		n, _, err = write(1 << 20)
		if !errors.Is(err, os.ErrDeadlineExceeded) || n < 90_000 || n > 100_000 {
			t.Errorf("%d bytes until the deadline, %v", n, err)
		}
		must(t, server.SetWriteDeadline(time.Time{}))
		w.clock.AfterFunc(time.Second, func() { _ = server.SetPacing(0) })
		_, took, err = write(140_000)
		must(t, err)
		if took < time.Second || took > 1200*time.Millisecond {
			t.Errorf("it took %v, want a second: no limit held what was left then", took)
		}
		if st := w.Server.Stats(); st.TCPPacingWaits < 50 || st.TCPRetransmits != 0 {
			t.Errorf("%d waits, %d segments sent again", st.TCPPacingWaits, st.TCPRetransmits)
		}
	})
}

// TestPacedRest: a pause between writes is not made up for, as a timer that comes late is.
func TestPacedRest(t *testing.T) {
	oneProcessor(t)
	within(t, func(w *World) {
		w.Travel(Road{Delay: 500 * time.Microsecond}, 0)
		server, client := w.connectPaced(t, 1_000_000)
		defer w.closeBoth(server, client)
		go func() { _, _ = io.Copy(io.Discard, client) }()
		for range 3 {
			began := w.Now()
			w.await(time.Minute, func() { _, _ = server.Write(make([]byte, 100_000)) })
			if took := w.Now() - began; took < 100*time.Millisecond {
				t.Errorf("100000 bytes and headers at 1000000 bytes/s took %v", took)
			}
			w.clock.Advance(time.Second)
		}
	})
}

// TestReplacedRate: a rate that another takes the place of leaves no timer behind, though it would
// have fired in minutes only.
func TestReplacedRate(t *testing.T) {
	oneProcessor(t)
	within(t, func(w *World) {
		w.Travel(Road{Delay: 500 * time.Microsecond}, 0)
		server, client := w.connectPaced(t, 0)
		defer w.closeBoth(server, client)
		go func() { _, _ = io.Copy(io.Discard, client) }()
		send := func() {
			t.Helper()
			if !w.await(time.Minute, func() { _, _ = server.Write(make([]byte, 100_000)) }) {
				t.Error("a write does not end")
			}
			w.clock.Advance(10 * time.Second) // those of TCP expire
		}
		send()
		timers := w.clock.Timers()
		for _, rate := range []uint64{0, 1e6} {
			must(t, server.SetPacing(1))
			w.clock.AfterFunc(time.Second, func() { _ = server.SetPacing(rate) })
			send()
			if n := w.clock.Timers(); n != timers {
				t.Errorf("%d timers after a byte per second became %d, %d before", n, rate, timers)
			}
		}
	})
}

// TestPacedStall: of what the rate has let out to a peer that does not read, little more than 10 ms
// of it is unsent, and the rest of the write waits.
func TestPacedStall(t *testing.T) {
	oneProcessor(t)
	within(t, func(w *World) {
		w.Travel(Road{Delay: 500 * time.Microsecond}, 0)
		server, client := w.connectPaced(t, 1_000_000)
		defer w.closeBoth(server, client)
		must(t, client.SetReadBuffer(64<<10))
		must(t, server.SetWriteDeadline(w.clock.Now().Add(2*time.Second)))
		var n int
		var err error
		w.await(time.Minute, func() { n, err = server.Write(make([]byte, 1<<20)) })
		if !errors.Is(err, os.ErrDeadlineExceeded) || n < 10_000 || n > 256<<10 {
			t.Errorf("%d bytes written to a peer that does not read, %v", n, err)
		}
		if st := w.Server.Stats(); st.TCPPacingStalls < 10 {
			t.Errorf("%d stalls", st.TCPPacingStalls)
		}
	})
}

// TestPacingSparesQueue: connections that together have less than the road's rate lose at most a
// tenth of what they lose without rates of their own.
func TestPacingSparesQueue(t *testing.T) {
	oneProcessor(t)
	need.Long(t, "two times 64 transfers, some seconds")
	if racing.Detector {
		need.That(t, "race detector", errors.New("takes minutes with it; make test has it without"))
	}
	const conns = 64
	for _, tt := range []struct {
		name string
		rate uint64 // bits per second of each
		road float64
		grow int // bytes that each sends before, at no rate and by a road that loses nothing
		each int // bytes
	}{
		{"1 Mbit of 70", 1e6, 70e6, 0, 128 << 10},
		{"10 Mbit of 700", 10e6, 700e6, 512 << 10, 320 << 10},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := Road{Delay: 10 * time.Millisecond, Rate: tt.road / 8,
				Queue: tt.road / 8 / 10} // 100 ms
			without := transferAtOnce(t, r, conns, 0, tt.grow, tt.each, notMeasured)
			with := transferAtOnce(t, r, conns, tt.rate/8, tt.grow, tt.each, notMeasured)
			t.Logf("without rates: %v; with rates: %v", without, with)
			if without.lost == 0 {
				t.Error("nothing is lost: the test shows nothing")
			}
			if with.lost > without.lost/10 {
				t.Errorf("%d frames lost with rates, %d without", with.lost, without.lost)
			}
			if with.lost == 0 && with.resent != 0 {
				t.Errorf("%d segments sent again, and nothing lost", with.resent)
			}
		})
	}
}

// transferred says what became of transfers.
type transferred struct {
	lost   int    // frames, for want of room in the queue
	resent uint64 // segments
	waits  uint64 // for a rate, and for the windows of connections that have one
	frames int    // both ways
	took   time.Duration
	spent  time.Duration // of the processors
}

func (r transferred) String() string {
	return fmt.Sprintf("%d frames lost, %d sent again, %v", r.lost, r.resent, r.took)
}

// transferAtOnce sends each bytes by connections of a rate on a road, all at the same time. Before,
// and without the rate, their windows grow by grow bytes on a road of the same delay and 40 Gbit/s.
// spent tells what this process has taken of the processors.
func transferAtOnce(t testing.TB, r Road, conns int, rate uint64, grow, each int,
	spent func(testing.TB) time.Duration) (to transferred) {
	t.Helper()
	within(t, func(w *World) {
		w.Travel(Road{Delay: r.Delay, Rate: 40e9 / 8, Queue: 1e9}, 0)
		var servers, clients []*stack.TCPConn
		for range conns {
			server, client := w.connectPaced(t, 0)
			defer w.closeBoth(server, client)
			servers, clients = append(servers, server), append(clients, client)
		}
		send := func(size int) {
			done := make(chan error, conns)
			for i := range conns {
				go func() { _, _ = servers[i].Write(make([]byte, size)) }()
				go func() {
					_, err := io.CopyN(io.Discard, clients[i], int64(size))
					done <- err
				}()
			}
			w.await(time.Hour, func() {
				for range conns {
					if err := <-done; err != nil {
						t.Error(err)
					}
				}
			})
		}
		send(grow)
		ways, before, began, used := w.Travel(r, 0), w.Server.Stats(), w.Now(), spent(t)
		for _, c := range servers {
			must(t, c.SetPacing(rate))
		}
		send(each)
		st := w.Server.Stats()
		to = transferred{ways[0].Full, st.TCPRetransmits - before.TCPRetransmits,
			st.TCPPacingWaits + st.TCPPacingStalls, ways[0].Frames + ways[1].Frames,
			w.Now() - began, spent(t) - used}
	})
	return to
}

// notMeasured serves as spent where nobody looks at it.
func notMeasured(testing.TB) time.Duration { return 0 }
