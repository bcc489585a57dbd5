package rdma

import (
	"bytes"
	"runtime"
	"runtime/pprof"
	"runtime/trace"
	"strings"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
)

// TestTraceRegions takes an execution trace of a transfer, which names the regions in its strings.
func TestTraceRegions(t *testing.T) {
	server, client := pair(t, setup{dv: dv.Config{NIC: dv.NIC{Rings: dv.Rings{DelayDrop: true}}}})
	var out bytes.Buffer
	if err := trace.Start(&out); err != nil {
		t.Fatal(err)
	}
	transfer(t, server, client, make([]byte, 1<<20))
	trace.Stop()
	for _, name := range []string{regionPoll, regionDeliver, regionTransmit} {
		if !bytes.Contains(out.Bytes(), []byte(name)) {
			t.Errorf("no region %s in %d bytes", name, out.Len())
		}
	}
	if r := region(regionPoll); r != nil {
		t.Error("there are regions without a trace")
	}
}

// TestGoroutineLabels: a list of goroutines tells the workers of the queues apart.
func TestGoroutineLabels(t *testing.T) {
	pair(t, setup{dv: dv.Config{NIC: dv.NIC{RxQueues: 2, TxQueues: 2}}})
	for _, want := range []string{`"device":"sim1", "queue":"rx0"`, `"device":"sim1", "queue":"rx1"`,
		`"device":"sim2", "queue":"rx1"`} {
		for began := time.Now(); !strings.Contains(goroutines(t), want); runtime.Gosched() {
			if time.Since(began) > 30*time.Second { // a worker labels itself once it runs
				t.Fatalf("no goroutine with %s", want)
			}
		}
	}
}

// goroutines lists them, with their labels.
func goroutines(t *testing.T) string {
	var out bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&out, 1); err != nil {
		t.Fatal(err)
	}
	return out.String()
}
