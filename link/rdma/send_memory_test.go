package rdma

import (
	"bytes"
	"io"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/moving"
)

// accepts takes a connection and compares what comes.
func accepts(t *testing.T, ln net.Listener, want []byte, meter *moving.Meter) {
	conn, err := ln.Accept()
	if err != nil {
		t.Error(err)
		return
	}
	got := make([]byte, len(want))
	n, err := io.ReadFull(moving.Conn(conn, meter, moving.Limit), got)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d of %d bytes came, or others: %v", n, len(want), err)
	}
}

// TestSendMemory sends data both ways, of two stacks of one process, from where netstack keeps it,
// on wires that lose, repeat and break frames and by queues that are reset: it arrives as it was
// written, and all references and all memory come back.
func TestSendMemory(t *testing.T) {
	for _, tc := range []struct {
		name   string
		faults wire.FaultConfig
		resets int
		size   int
		ended  bool // the devices are closed with data under way
	}{
		{name: "perfect", size: 8 << 20},
		{name: "loss", faults: wire.FaultConfig{Drop: 0.01, Reorder: 0.01, Duplicate: 0.01},
			size: 1 << 20},
		{name: "corrupt", faults: wire.FaultConfig{Corrupt: 0.01}, size: 1 << 20},
		{name: "resets", resets: 5, size: 4 << 20},
		{name: "closed", size: 32 << 20, ended: true},
	} {
		var devs [2]*dv.Device
		t.Run(tc.name, func(t *testing.T) {
			if tc.faults != (wire.FaultConfig{}) {
				tc.faults.Seed = seed(t).Uint64()
			}
			var cfg dv.Config
			cfg.Rings.DelayDrop = true
			a, b := pair(t, setup{faults: tc.faults, dv: cfg.WithSendMemory(SendMemory)})
			devs = [2]*dv.Device{a.dev, b.dev}
			if tc.resets > 0 {
				a.nic.Inject(sendErrors(tc.resets, 0.02, 1))
			}
			var wg sync.WaitGroup
			meter := new(moving.Meter)
			for i, f := range []struct {
				from, to *host
				address  netip.Addr
			}{{a, b, b.v4}, {b, a, a.v4}, {a, b, b.v6}, {b, a, a.v6}} {
				ln := f.to.listen(t, f.address, 80)
				conn := f.from.dial(t, f.address, 80)
				sent := data(tc.size, uint64(i))
				go func() { _, _ = conn.Write(sent) }()
				if !tc.ended {
					wg.Go(func() { accepts(t, ln, sent, meter) })
				}
			}
			for tc.ended && b.dev.Tx(0).Stats().InPlace < 20 {
				runtime.Gosched()
			}
			wg.Wait()
			b.dev.Tx(0).Lock()
			b.dev.Tx(0).Check() // shows the counters
			b.dev.Tx(0).Unlock()
			st := b.dev.Tx(0).Stats()
			t.Logf("%d of %d segmented packets in place, %d held; %+v", st.InPlace, st.LSO, st.Held,
				SendMemoryUsed())
			if st.InPlace < st.LSO/2 {
				t.Errorf("%d of %d packets were not copied", st.InPlace, st.LSO)
			}
		})
		for i, d := range devs {
			if d == nil {
				t.Fatalf("device %d was not opened", i)
			}
			if st := d.Tx(0).Stats(); st.Held != 0 {
				t.Errorf("%s: device %d holds %d of %d packets", tc.name, i, st.Held, st.InPlace)
			}
		}
	}
	for range 1000 { // chunks stay in netstack's pool for two collections
		runtime.GC()
		runtime.Gosched()
		if SendMemoryUsed().Used == 0 {
			return
		}
	}
	t.Errorf("memory does not come back: %+v", SendMemoryUsed())
}
