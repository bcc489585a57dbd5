package vm

import (
	"context"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/tests/need"
	"github.com/rdma-netstack/rdma-netstack/tests/vm/rig"
)

// check is one row of the table: what is tried in every guest, in this order.
type check struct {
	name string
	run  func(t *testing.T, w *world)
}

var checks = []check{
	{"probe", testProbe},
	{"netdev ping", testNetdevPing},
	{"netdev TCP", testNetdevTCP},
	{"ibv_devinfo", testDevinfo},
	{"perftest", testPerftest},
	{"our open", testOpen},
	{"our HTTP", testHTTP},
	{"our DNS", testDNS},
	{"netdev beside us", testBeside},
	{"isolation", testIsolation},
	{"error cases", testErrors},
	{"recovery", testRecovery},
	{"link", testLink},
	{"driver removed", testRemoved},
	{"device failure", testFailure},
	{"clean teardown", testTeardown},
	{"re-probe", testReprobe},
}

// kernels are those to run: all, or the one named by KERNEL.
func kernels() []string {
	if v := os.Getenv("KERNEL"); v != "" {
		return []string{v}
	}
	return rig.KernelVersions()
}

func TestStockKernels(t *testing.T) {
	need.TUN(t)
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	p := gather(t, ctx)
	tab := newTable(checks)
	for _, v := range kernels() {
		t.Run("linux-"+v, func(t *testing.T) {
			w := boot(t, ctx, p, v)
			for _, c := range checks {
				ok := t.Run(strings.ReplaceAll(c.name, " ", "-"), func(t *testing.T) {
					c.run(t, w)
					w.noComplaints(t)
				})
				tab.set(v, c.name, ok)
			}
		})
	}
	t.Logf("what stock kernels say:\n%s", tab)
}

// testProbe loads the kernel's own modules: they must make a netdev and an RDMA device out of the model.
func testProbe(t *testing.T, w *world) {
	w.must(t, rig.Request{Op: "load"})
	w.appeared(t)
}

// appeared waits until the kernel shows netdev and RDMA device, and gives the netdev its addresses.
func (w *world) appeared(t *testing.T) {
	t.Helper()
	eventually(t, func() string { return "uverbs0 and eth0" }, func() bool {
		r, err := w.vm.Do(rig.Request{Op: "glob", Path: "/sys/class/infiniband/mlx5_0/device/net/*"})
		dev, derr := w.vm.Do(rig.Request{Op: "glob", Path: "/dev/infiniband/uverbs0"})
		return err == nil && derr == nil && strings.HasSuffix(r.Output, "eth0") && dev.Output != ""
	})
	w.run(t, "ip", "link", "set", "lo", "up")
	w.run(t, "ip", "link", "set", "eth0", "up")
	w.run(t, "ip", "addr", "replace", netdev4.String(), "dev", "eth0")
	w.run(t, "ip", "addr", "replace", netdev6.String(), "dev", "eth0", "nodad")
}

// testNetdevPing pings the guest kernel's netdev from outside, and outside from the guest.
func testNetdevPing(t *testing.T, w *world) {
	for _, a := range []struct{ guest, outside netip.Prefix }{{netdev4, outside4}, {netdev6, outside6}} {
		w.pingsOutside(t, a.outside.Addr())
		w.pinged(t, a.guest.Addr())
	}
}
