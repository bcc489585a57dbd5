//go:build linux

package vm

import (
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/internal/probe"
	"github.com/rdma-netstack/rdma-netstack/tests/vm/rig"
)

// strays is the number of frames sent to an address that no user has.
const strays = 64

// testIsolation sends frames for a third MAC: neither netdev nor slice may receive one.
func testIsolation(t *testing.T, w *world) {
	s := w.serve(t, "http", "--debug-endpoints")
	missed := func() uint64 { return w.nic.Counters().Drops.SteerMissed }
	before := missed()
	err := w.outside.Do(func() error {
		port, err := lab.OpenPort("wire0")
		if err != nil {
			return err
		}
		defer port.Close()
		third := net.HardwareAddr{2, 0xaa, 0, 0, 0, 0x99}
		for range strays {
			if err := port.Send(probe.EtherFrame(third, port.MAC, probe.Experimental,
				[]byte("for nobody"))); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, func() string { return "all strays counted as nobody's" },
		func() bool { return missed() >= before+strays })
	s.stop(t)
}

// testLoopback pings a slice from the guest's own netdev: mlx5 switches frames between users of a
// port only while two processes use it.
func testLoopback(t *testing.T, w *world) {
	s := w.serve(t, "http")
	reaches := func() bool {
		out, _ := w.try(t, "ping", "-c", "2", "-i", "0.2", "-W", "1", slice4.Addr().String())
		return strings.Contains(out, " 2 received")
	}
	if reaches() {
		t.Error("the netdev reaches the only slice")
	}
	second := w.sliceBy(t, []string{"/init", "slice", "-mac", "02:aa:00:00:00:04"})
	eventually(t, func() string { return "the netdev to reach a slice, of two" }, reaches)
	second.stop(t)
	eventually(t, func() string { return "loopback to be off again" },
		func() bool { return !reaches() })
	w.pinged(t, slice4.Addr())
	s.stop(t)
}

// testTeardown ends our binary normally and by kill -9: either way the kernel holds none of its
// objects afterwards, and the next process can start.
func testTeardown(t *testing.T, w *world) {
	w.serve(t, "http", "--debug-endpoints").stop(t)
	if held := w.leftovers(t); held != "" {
		t.Errorf("after SIGTERM the kernel still holds:\n%s", held)
	}
	s := w.serve(t, "http", "--debug-endpoints")
	r, err := w.vm.Do(rig.Request{Op: "stop", Job: s.job, Signal: 9, Timeout: patience})
	if err != nil || r.Code != 128+9 {
		t.Fatalf("kill -9: exit %d, %v", r.Code, err)
	}
	eventually(t, func() string { return "nothing held after kill -9:\n" + w.leftovers(t) },
		func() bool { return w.leftovers(t) == "" })
	s = w.serve(t, "http", "--debug-endpoints")
	if err := w.client.Download(w.ctx, url(slice4, 80), bulk/8); err != nil {
		t.Error(err)
	}
	s.stop(t)
}

// testReprobe removes the driver and loads it again: the same device must reappear and serve.
func testReprobe(t *testing.T, w *world) {
	testUnload(t, w)
	testProbe(t, w)
	testNetdevPing(t, w)
	s := w.serve(t, "http", "--debug-endpoints")
	if err := w.client.Download(w.ctx, url(slice4, 80), bulk/8); err != nil {
		t.Error(err)
	}
	s.stop(t)
}

// testUnload removes the kernel's modules.
func testUnload(t *testing.T, w *world) {
	var names []string
	for _, m := range slices.Backward(w.kernel.Modules) {
		names = append(names, strings.TrimSuffix(filepath.Base(m), ".ko"))
	}
	w.must(t, rig.Request{Op: "unload", Argv: names, Timeout: patience})
}
