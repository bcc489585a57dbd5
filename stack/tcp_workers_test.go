package stack

import (
	"bytes"
	"runtime"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/stack/internal/addrconf"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/env"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/neighbours"
)

// tcpWorkers counts the goroutines of this process that handle received segments.
func tcpWorkers() int {
	var b bytes.Buffer
	pprof.Lookup("goroutine").WriteTo(&b, 2)
	return strings.Count(b.String(), "tcp.(*processor).start(")
}

// TestTCPWorkers makes netstacks with numbers of TCP goroutines: as many run, never more than there
// are processors, all end with the stack, and neither GOMAXPROCS nor what Go makes of it changes.
func TestTCPWorkers(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	for _, tt := range []struct{ workers, want int }{{0, defaultWorkers(4)}, {1, 1}, {2, 2},
		{4, 4}, {9, 4}} {
		cfg := Config{TCP: TCPOptions{Workers: tt.workers}}.withDefaults()
		before := tcpWorkers()
		g, err := newNetstack(cfg, addrconf.New(&env.Env{Clock: cfg.Clock}, nil, addrconf.Config{}),
			neighbours.NewTable(cfg.Clock, cfg.Logger, cfg.Name), new(linkMTU), newICMPErrors(nil))
		must(t, err)
		for end := time.Now().Add(time.Minute); tcpWorkers() != before+tt.want; runtime.Gosched() {
			if time.Now().After(end) {
				t.Fatalf("%d workers: %d run", tt.workers, tcpWorkers()-before)
			}
		}
		if n := runtime.GOMAXPROCS(0); n != 4 {
			t.Fatalf("GOMAXPROCS is %d, was 4", n)
		}
		g.Destroy()
		for end := time.Now().Add(time.Minute); tcpWorkers() != before; runtime.Gosched() {
			if time.Now().After(end) {
				t.Fatalf("%d workers: %d outlive their stack", tt.workers, tcpWorkers()-before)
			}
		}
	}
	if err := (Config{TCP: TCPOptions{Workers: -1}}).Validate(); err == nil {
		t.Error("-1 workers: no error")
	}
}

// TestMissingTCPWorkers is of versions of gVisor that keep their goroutines elsewhere: none ends,
// and the error says what is missing.
func TestMissingTCPWorkers(t *testing.T) {
	type noWaker struct{ closeWaker int }
	for want, protocol := range map[string]any{
		"no dispatcher":  &struct{ other int }{},
		"no dispatcher.": struct{}{},
		"dispatcher.pro": &struct{ dispatcher int }{},
		"no closeWaker": &struct {
			dispatcher struct{ processors []noWaker }
		}{
			struct{ processors []noWaker }{[]noWaker{{closeWaker: 1}, {}}}},
		"has no closeWaker": &struct{ dispatcher struct{ processors []int } }{
			struct{ processors []int }{make([]int, 2)}},
		"no dispatcher.processors": nil,
	} {
		if err := keepTCPWorkers(protocol, 1); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%T: %v, want %q", protocol, err, want)
		}
	}
}
