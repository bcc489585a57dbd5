package stack_test

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/moving"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/netpair"
)

// TestOpen serves HTTP through all layers: net/http, this package, netstack, the link endpoint, the
// rings, and the software NIC.
func TestOpen(t *testing.T) {
	body := strings.Repeat("through the rings ", 20000)
	for _, c := range []struct {
		name   string
		queues int
		faults wire.FaultConfig
	}{
		{"one queue", 1, wire.FaultConfig{}},
		{"four queues", 4, wire.FaultConfig{}},
		{"a bad wire", 2, wire.FaultConfig{Drop: 0.02, Reorder: 0.02, Duplicate: 0.02,
			Corrupt: 0.005, Seed: netpair.Seed(t)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := join(t, cable{queues: c.queues, faults: c.faults})
			server, client, nic := j.server, j.client, j.nic
			j.mustMove(t, moving.Limit)
			site := website(t, server,
				http.HandlerFunc(func(w http.ResponseWriter,
					r *http.Request) {
					io.WriteString(w, body)
				}), (*httptest.Server).Start)
			web := browser(client)
			defer web.CloseIdleConnections()
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					for range stack.Rounds(5) {
						resp, err := web.Get(site.URL)
						if err != nil {
							t.Error(err)
							return
						}
						got, err := io.ReadAll(resp.Body)
						resp.Body.Close()
						if err != nil || string(got) != body {
							t.Errorf("%d bytes of %d, %v", len(got), len(body), err)
						}
					}
				})
			}
			wg.Wait()
			if v := nic.Violations(); len(v) != 0 {
				t.Errorf("what no driver should do: %q", v)
			}
			if server.Device() == nil || client.Stats().TCPDialed == 0 {
				t.Error("no device, or nothing counted")
			}
		})
	}
}

// TestOpenTwice: the device is free again after Close.
func TestOpenTwice(t *testing.T) {
	netpair.CheckLeaks(t)
	n := card(t, "sim_a", 1)
	for range 3 {
		s, err := stack.Open(context.Background(), onCard(n, 1, "192.0.2.1/24"))
		must(t, err)
		must(t, s.Close())
		must(t, s.Close())
	}
}

// TestOpenFails leaves nothing behind.
func TestOpenFails(t *testing.T) {
	netpair.CheckLeaks(t)
	n := card(t, "sim_a", 1)
	if _, err := stack.Open(context.Background(), onCard(n, 1, "192.0.2.0/24")); err == nil ||
		!strings.Contains(err.Error(), "subnet itself") {
		t.Errorf("bad address: %v", err)
	}
	none := stack.Config{NIC: dv.NIC{Device: "no_such_device"}}
	if _, err := stack.Open(context.Background(), none); err == nil {
		t.Error("no device: no error")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := stack.Open(ctx, onCard(n, 1, "192.0.2.1/24")); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	slow := onCard(n, 1, "192.0.2.1/24")
	slow.Addressing.DuplicateDetection = time.Hour
	ctx, cancel = context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	errs := background(func() error { _, err := stack.Open(ctx, slow); return err })
	if err := result(t, "Open", errs); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("too slow: %v", err)
	}
}

// TestDeviceFails: every pending call returns the reason.
func TestDeviceFails(t *testing.T) {
	j := join(t, cable{queues: 1, change: func(c *stack.Config) { c.Uplink.MaxOutage = -1 }})
	server, client, nic := j.server, j.client, j.nic
	s, _ := pair(t, server, client)
	l, err := server.Listen("tcp", ":0")
	must(t, err)
	read := background(func() error { _, err := s.Read(make([]byte, 1)); return err })
	accept := background(func() error { _, err := l.Accept(); return err })
	nic.FailDevice()
	for name, errs := range map[string]<-chan error{"Read": read, "Accept": accept} {
		if err := result(t, name, errs); !errors.Is(err, net.ErrClosed) ||
			!errors.Is(err, dv.ErrFailed) {
			t.Errorf("%s: %v, want net.ErrClosed and dv.ErrFailed", name, err)
		}
	}
	if err := server.Err(); !errors.Is(err, dv.ErrFailed) {
		t.Errorf("Err: %v", err)
	}
	if _, err := server.Dial("tcp", "192.0.2.2:1"); !errors.Is(err, dv.ErrFailed) {
		t.Errorf("Dial: %v", err)
	}
}

// TestOpenTooLate checks that the error says what Open waited for.
func TestOpenTooLate(t *testing.T) {
	netpair.CheckLeaks(t)
	n := card(t, "sim_a", 1)
	late, cancel := context.WithTimeout(context.Background(), 0)
	defer cancel()
	_, err := stack.Open(late, onCard(n, 1, "192.0.2.1/24"))
	need.That(t, "simnic", onlyUnsupported(err))
	if !errors.Is(err, context.DeadlineExceeded) ||
		!strings.Contains(err.Error(), "open sim_a: before mapping memory") {
		t.Errorf("%v, want what Open was about to do", err)
	}
	mac := onCard(n, 1, "192.0.2.1/24")
	mac.NIC.MAC, mac.NIC.Model.Facts.Netdev = n.MAC(), ""
	if _, err := stack.Open(context.Background(), mac); err == nil ||
		!strings.Contains(err.Error(), "the address of the Linux interface of sim_a itself") {
		t.Errorf("%v, want the name of the interface", err)
	}
}

func TestSendQueues(t *testing.T) {
	for _, c := range []struct{ receive, processors, want int }{
		{0, 1, 1}, {4, 1, 1}, {0, 2, 4}, {1, 2, 4}, {6, 2, 6}, {1, 64, 8}, {16, 64, 16},
	} {
		if got := stack.SendQueues(c.receive, c.processors); got != c.want {
			t.Errorf("%d send queues for %d receive queues on %d processors, want %d", got,
				c.receive, c.processors, c.want)
		}
	}
	for name, asked := range map[string]int{"default": 0, "asked for": 3} {
		cfg := onCard(card(t, "sim", 1), 1, "192.0.2.1/24")
		cfg.NIC.TxQueues = asked
		s, err := stack.Open(t.Context(), cfg)
		need.That(t, "simnic", onlyUnsupported(err))
		must(t, err)
		want := cmp.Or(asked, stack.SendQueues(1, runtime.GOMAXPROCS(0)))
		if got := s.Device().NumTx(); got != want {
			t.Errorf("%s: %d send queues, want %d", name, got, want)
		}
		must(t, s.Close())
	}
}
