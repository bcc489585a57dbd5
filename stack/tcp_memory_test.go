package stack_test

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/stack/stacktest"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/netpair"
)

// logLines collects log lines. Any goroutine may use it.
type logLines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// count returns how many lines contain all of these words.
func (l *logLines) count(words ...string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
next:
	for line := range strings.Lines(l.text.String()) {
		for _, word := range words {
			if !strings.Contains(line, word) {
				continue next
			}
		}
		n++
	}
	return n
}

// memoryHealth returns what the reporter memory says.
func memoryHealth(t *testing.T, s *stack.Stack) stack.Health {
	t.Helper()
	for _, h := range s.Health() {
		if h.Reporter == "memory" {
			return h
		}
	}
	t.Fatal("there is no reporter memory")
	return stack.Health{}
}

// TestMaxTimeWait: as with Linux's tcp_max_tw_buckets, connections beyond the limit do not stay in
// TIME-WAIT, their peers get no reset, and it is said once.
func TestMaxTimeWait(t *testing.T) {
	const limit, all = 8, 30
	now := clocktest.New()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() { // about as fast as real time: TIME-WAIT does not end while there is nothing else
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				now.Advance(time.Millisecond)
				time.Sleep(time.Millisecond)
			}
		}
	}()
	defer func() { close(stop); <-stopped }()
	var log logLines
	server, client := netpair.New(t, netpair.Faults{}, func(isServer bool, cfg *stack.Config) {
		cfg.Clock = now.Clock()
		if isServer {
			cfg.TCP.MaxTimeWait = limit
			cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		}
	})
	closeFirst := func() {
		s, c := pair(t, server, client)
		must(t, s.Close())
		if _, err := c.Read(make([]byte, 1)); err != io.EOF {
			t.Fatal(err)
		}
		must(t, c.Close())
	}
	for range all {
		closeFirst()
	}
	eventually(t, "all others gone", func() bool {
		m := server.MemoryStats()
		return m.TimeWait == limit && m.TimeWaitEnded == all-limit
	})
	waiting := 0
	for _, so := range server.Sockets() {
		if so.State == "TIME-WAIT" {
			waiting++
		}
	}
	if waiting != limit {
		t.Errorf("%d sockets in TIME-WAIT, want %d", waiting, limit)
	}
	if n := server.Stats().TCPResetsSent; n != 0 {
		t.Errorf("%d resets were sent", n)
	}
	eventually(t, "health in error", func() bool {
		return memoryHealth(t, server).State == stack.InError
	})
	if h := memoryHealth(t, server); !strings.Contains(h.Reason.Error(), "MaxTimeWait") {
		t.Error(h.Reason)
	}
	if err := server.Unhealthy(); err != nil {
		t.Errorf("the stack can serve: %v", err)
	}
	eventually(t, "a log line", func() bool { return log.count("TIME-WAIT") > 0 })
	now.Advance(61 * time.Second)
	eventually(t, "none in TIME-WAIT and health recovered", func() bool {
		return server.MemoryStats().TimeWait == 0 &&
			memoryHealth(t, server).State == stack.Healthy
	})
	if over, below := log.count("TIME-WAIT", "WARN"), log.count("TIME-WAIT", "INFO"); over != 1 ||
		below != 1 {
		t.Errorf("%d lines at the limit and %d below it, want 1 and 1", over, below)
	}
	closeFirst()
	eventually(t, "one in TIME-WAIT", func() bool { return server.MemoryStats().TimeWait == 1 })
	now.Advance(30 * time.Second)
	if n := server.MemoryStats().TimeWait; n != 1 {
		t.Errorf("after half of the time %d are in TIME-WAIT, want 1", n)
	}
}

// TestNoTimeWait: a negative limit keeps none.
func TestNoTimeWait(t *testing.T) {
	server, client := netpair.New(t, netpair.Faults{}, netpair.Both(func(cfg *stack.Config) {
		cfg.TCP.MaxTimeWait = -1
	}))
	s, c := pair(t, server, client)
	must(t, s.Close())
	must(t, c.Close())
	eventually(t, "no socket left", func() bool { return len(server.Sockets()) == 0 })
}

// TestMaxMemory: whatever programs write to peers that do not read, and leave unread themselves, is
// bounded for all connections together. It is said, and once there is memory everything arrives.
func TestMaxMemory(t *testing.T) {
	const limit, conns, size = 1 << 20, 24, 1 << 20
	for name, bounded := range map[string]bool{"writer": true, "reader": false} {
		t.Run(name, func(t *testing.T) {
			var log logLines
			server, client := netpair.New(t, netpair.Faults{},
				func(isServer bool, cfg *stack.Config) {
					if isServer == bounded {
						cfg.TCP.MaxMemory = limit
						cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
					}
				})
			subject := client
			if bounded {
				subject = server
			}
			data := make([]byte, size)
			for i := range data {
				data[i] = byte(i * 7 >> 3)
			}
			var from, to [conns]*stack.TCPConn
			var writers sync.WaitGroup
			for i := range conns {
				from[i], to[i] = pair(t, server, client)
				writers.Go(func() {
					if n, err := from[i].Write(data); n != size || err != nil {
						t.Errorf("write: %d, %v", n, err)
					}
				})
			}
			most := uint64(0)
			eventually(t, "pressure", func() bool {
				most = max(most, subject.MemoryStats().Used)
				return memoryHealth(t, subject).State == stack.InError
			})
			for range 50 {
				most = max(most, subject.MemoryStats().Used)
				time.Sleep(time.Millisecond) // a bound holds at all times: some are looked at
			}
			if most > limit+conns*16<<10 {
				t.Errorf("%d bytes were held, the limit is %d", most, limit)
			}
			if err := subject.Unhealthy(); err != nil {
				t.Errorf("the stack can serve: %v", err)
			}
			if h := memoryHealth(t, subject); !strings.Contains(h.Reason.Error(), "MaxMemory") {
				t.Error(h.Reason)
			}
			lines := log.count("TCP memory", "WARN")
			if most := subject.MemoryStats().Pressures; lines < 1 || uint64(lines) > most {
				t.Errorf("%d lines of %d times under pressure", lines, most)
			}
			var readers sync.WaitGroup
			for i := range conns {
				readers.Go(func() {
					got := make([]byte, size)
					if _, err := io.ReadFull(to[i], got); err != nil || !bytes.Equal(got, data) {
						t.Errorf("read: %v, right %v", err, bytes.Equal(got, data))
					}
				})
			}
			writers.Wait()
			readers.Wait()
			eventually(t, "recovered", func() bool {
				return memoryHealth(t, subject).State == stack.Healthy
			})
			// the look that ends the pressure may find a last segment unacknowledged
			eventually(t, "a look finds nothing held", func() bool {
				return subject.MemoryStats().Used == 0
			})
			if m := subject.MemoryStats(); m.Limit != limit || m.Pressures == 0 {
				t.Errorf("%+v", m)
			}
		})
	}
}

// TestMaxMemoryWriteDeadline: a write that waits for memory ends at its deadline, and with its
// connection.
func TestMaxMemoryWriteDeadline(t *testing.T) {
	server, client := netpair.New(t, netpair.Faults{}, netpair.Both(func(cfg *stack.Config) {
		cfg.TCP.MaxMemory = 64 << 10
	}))
	s, _ := pair(t, server, client)
	must(t, s.SetWriteDeadline(time.Now().Add(50*time.Millisecond)))
	if _, err := s.Write(make([]byte, 4<<20)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
	must(t, s.SetWriteDeadline(time.Time{}))
	done := make(chan error)
	go func() {
		_, err := s.Write(make([]byte, 4<<20))
		done <- err
	}()
	must(t, s.Close())
	if err := <-done; err == nil {
		t.Error("the write was not ended")
	}
}

// TestMaxMemoryOrphans: closed connections that hold what their peers do not read are reset when
// the memory is full.
func TestMaxMemoryOrphans(t *testing.T) {
	const limit = 512 << 10
	server, client := netpair.New(t, netpair.Faults{}, func(isServer bool, cfg *stack.Config) {
		if isServer {
			cfg.TCP.MaxMemory = limit
		}
		cfg.TCP.ReceiveBuffer = stack.BufferRange{Default: 16 << 10, Max: 16 << 10}
	})
	var conns []*stack.TCPConn
	for range 8 {
		s, _ := pair(t, server, client)
		conns = append(conns, s)
		go func() { _, _ = s.Write(make([]byte, limit/4)) }() // Close ends it
	}
	eventually(t, "full memory", func() bool { return server.MemoryStats().Overflows > 0 })
	for _, s := range conns {
		must(t, s.Close())
	}
	eventually(t, "orphans reset", func() bool { return server.MemoryStats().OrphansReset > 0 })
	eventually(t, "memory", func() bool { return server.MemoryStats().Used < limit })
}

// TestIdleConnectionsNotLookedAt: connections are looked at while something is sent or received,
// not four times a second for as long as they are open.
func TestIdleConnectionsNotLookedAt(t *testing.T) {
	const conns, idle = 200, 5 * time.Second // before keep-alive
	now := clocktest.New()
	server, client := stacktest.Pair(t, func(server, client *stack.Config) {
		server.Clock, client.Clock = now.Clock(), now.Clock()
		server.TCP.MaxMemory = 1 << 20
	})
	for range conns {
		pair(t, server, client)
	}
	now.Advance(2 * time.Second)
	n := testing.AllocsPerRun(1, func() { now.Advance(idle) })
	if n > 2*conns {
		t.Errorf("%v objects in %v in which nothing happens to %d connections, want %d at most", n,
			idle, conns, 2*conns)
	}
}
