package stack_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/failover"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/netpair"
)

// holdings is what a process and the software NIC under it hold. The heap is apart, as it varies.
type holdings struct {
	nic        simnic.Objects
	pinned     int64 // bytes of memory regions
	mapped     int   // KiB kept from forked children, as is what a device may see
	fds        int
	goroutines int
}

// heap is what is reachable: objects, and their bytes.
type heap struct{ objects, size uint64 }

// least makes h the least of itself and what there is now. What pools keep is gone after two
// collections.
func (h *heap) least() {
	for range 3 {
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	if h.objects == 0 || m.HeapObjects < h.objects {
		*h = heap{m.HeapObjects, m.HeapAlloc}
	}
}

// holdingsOf counts.
func holdingsOf(t *testing.T, nic *simnic.NIC, linux *kernel.Linux) (h holdings) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	maps, err := os.ReadFile("/proc/self/smaps")
	must(t, err)
	h = holdings{nic: nic.Objects(), pinned: linux.Pinned(), fds: len(fds),
		goroutines: runtime.NumGoroutine()}
	size := 0 // of the mapping that the line is about; neighbours may be one mapping or two
	for line := range strings.Lines(string(maps)) {
		fmt.Sscanf(line, "Size: %d kB", &size)
		if strings.HasPrefix(line, "VmFlags:") && strings.Contains(line, " dc") {
			h.mapped += size
		}
	}
	return h
}

// TestNothingLeftBehind removes the device 200 times and returns it, under a connection, which
// stays: at the end there are no more queues, memory regions, descriptors and goroutines than
// after the first few times, and of objects on the heap less than one more for each removal of the
// second half. A leak has one at least; the runtime and netstack keep some for use again, about 100
// in the first 300 removals and none afterwards. LONG=1 removes it 1,000 times. The resident set is
// printed only: in the first few hundred removals it grows by pages of the program and stacks.
func TestNothingLeftBehind(t *testing.T) {
	netpair.CheckLeaks(t)
	nic, other := card(t, "sim_a", 1), card(t, "sim_b", 2)
	near, far := wire.Pair()
	must(t, nic.ConnectWire(near))
	must(t, other.ConnectWire(far))
	linux := kernel.New(nic, kernel.Config{})
	cfg := onCard(nic, 1, "192.0.2.1/24")
	cfg.NIC.Model.Kernel = linux.OpenNode
	cfg.NIC.Rings = dv.Rings{RxQueueSize: 64, TxQueueSize: 64} // quick to register
	cfg.Driver = func(d *dv.Config) { d.Tuning.SpareFrames, d.Tuning.TxBufferSize = 64, 128<<10 }
	quick(&cfg)
	server, err := stack.Open(context.Background(), cfg)
	need.That(t, "simnic", onlyUnsupported(err))
	must(t, err)
	defer server.Close()
	c := cable{queues: 1}
	client := c.open(t, other, "192.0.2.2/24")
	serveEcho(t, server, 7)
	conn, err := client.Dial("tcp", "192.0.2.1:7")
	must(t, err)
	defer conn.Close()

	const warm = 20
	removals := uint64(200)
	if os.Getenv("LONG") != "" {
		removals = 1000
	}
	var before holdings
	var middle, end heap   // the least of the last few removals until then
	var resident []float64 // KiB, every warm removals
	began := time.Now()
	for i := range removals {
		nic.FailDevice()
		awaitLink(t, server, func(s failover.Status) bool { return s.Losses == i+1 })
		nic.RestoreDevice()
		for n := uint64(0); server.LinkStatus().Returns <= i; n++ {
			if n%1000 == 0 {
				server.Recover()
			}
			time.Sleep(100 * time.Microsecond)
		}
		echoed(t, conn)
		if i == warm {
			before = holdingsOf(t, nic, linux)
		}
		if i < removals/2 && i+10 >= removals/2 {
			middle.least()
		}
		if i+10 >= removals {
			end.least()
		}
		if i >= warm && i%warm == 0 {
			resident = append(resident, residentSet(t))
		}
	}
	took := time.Since(began)
	after := holdingsOf(t, nic, linux)
	for deadline := time.Now().Add(hangs); after.goroutines > before.goroutines &&
		time.Now().Before(deadline); time.Sleep(time.Millisecond) { // some are about to end
		after = holdingsOf(t, nic, linux)
	}
	// Some of a test that ran before may have ended since.
	after.goroutines = max(after.goroutines, before.goroutines)
	after.fds = max(after.fds, before.fds)
	if after != before {
		t.Errorf("after %d removals %+v\nafter %d %+v", removals, after, warm, before)
	}
	if half := removals / 2; end.objects >= middle.objects+half ||
		end.size > middle.size+half*heapEach {
		t.Errorf("after %d removals a heap of %+v, after %d of %+v", removals, end, half, middle)
	}
	second := resident[len(resident)/2:]
	t.Logf("%d removals in %v: %+v, heap %+v -> %+v; resident %v KiB, in the second half "+
		"%+.2f KiB each; %v", removals, took, after, middle, end, resident, slope(second)/warm,
		server.FailoverStats())
	if got := server.BackendSwitches(); len(got) != 2 || got[0].Count != removals ||
		got[0].Cause != "device_returned" || got[1].Count != removals {
		t.Errorf("%+v", got)
	}
}

// heapEach is by how much the live heap may grow with a removal, in bytes: a connection's buffers
// differ by so much over half the removals.
const heapEach = 8 << 10

// residentSet is what the process has in memory, in KiB, without what it does not use.
func residentSet(t *testing.T) (kib float64) {
	t.Helper()
	debug.FreeOSMemory()
	status, err := os.ReadFile("/proc/self/status")
	must(t, err)
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	_, err = fmt.Sscan(rest, &kib)
	must(t, err)
	return kib
}

// slope is that of the straight line closest to values (least squares).
func slope(values []float64) float64 {
	n := float64(len(values))
	var x, y, xx, xy float64
	for i, v := range values {
		x, y, xx, xy = x+float64(i), y+v, xx+float64(i*i), xy+float64(i)*v
	}
	return (n*xy - x*y) / (n*xx - x*x)
}

// awaitLink waits until the link of a stack is as wanted.
func awaitLink(t *testing.T, s *stack.Stack, ok func(failover.Status) bool) {
	t.Helper()
	for deadline := time.Now().Add(hangs); !ok(s.LinkStatus()); {
		if time.Now().After(deadline) {
			t.Fatalf("%+v", s.LinkStatus())
		}
		time.Sleep(100 * time.Microsecond)
	}
}

// echoed sends a byte and waits for it.
func echoed(t *testing.T, c net.Conn) {
	t.Helper()
	must(t, c.SetDeadline(time.Now().Add(hangs)))
	_, err := c.Write([]byte{7})
	must(t, err)
	_, err = io.ReadFull(c, make([]byte, 1))
	must(t, err)
}
