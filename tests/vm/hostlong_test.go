//go:build linux

package vm

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/vm/pcie"
	"github.com/rdma-netstack/rdma-netstack/tests/vm/rig"
)

// The tests of tests/e2e/hostmode on the model under a stock kernel: servers on the address of its
// netdev, on rings, with rules. All of it is in the guest; clients outside use a second netdev, on
// the same network as the port.
//
//	guest                                               host
//	container ─ bridge ─ eth0 (mlx5e), rings ── simnic ── TAP wire0 ─┐
//	namespace outside ── virtio netdev ──────── QEMU ──── TAP wire1 ─┴─ bridge

// hostSet are the guest's modules.
const hostSet = "host"

// hostTests names those of tests/e2e/hostmode that run here, and how long one may take.
var hostTests = []string{"TestManyLong", "TestPathMTU", "TestBesideKernel"}

const hostTime = 40 * time.Minute

// connectionsEnv names the variable that says how many connections there are from outside, also for
// tests/e2e/hostmode.
const connectionsEnv = "HOST_CONNECTIONS"

// TestHostMode is not a part of make test: make test-vm-host says how many connections there are
// from outside.
func TestHostMode(t *testing.T) {
	connections := os.Getenv(connectionsEnv)
	if connections == "" {
		need.That(t, "host mode", errors.New("make test-vm-host runs it, in minutes a kernel"))
	}
	need.TUN(t)
	p := gather(t, t.Context())
	var err error
	p.tools, err = p.cache.HostTools(t.Context())
	need.That(t, "packages", err)
	program := filepath.Join(p.dir, "hostmode.test")
	build(t, "test", program, "../e2e/hostmode")
	p.files = map[string]string{"/bin/hostmode.test": program,
		"/etc/passwd": "testdata/passwd", "/etc/group": "testdata/group"}
	p.memory = 1024
	p.second = (*world).addOutside
	for _, v := range strings.Fields(cmp.Or(os.Getenv("KERNEL"), "6.1 6.12 7.2")) {
		t.Run("linux-"+v, func(t *testing.T) {
			w := boot(t, t.Context(), p, v, simnic.Config{Card: cardUnder(v)}, pcie.Config{})
			testProbe(t, w)
			far := w.secondNetdev(t)
			for _, name := range hostTests {
				t.Run(name, func(t *testing.T) {
					w.run(t, "ip", "addr", "flush", "dev", "eth0")
					w.runHostTest(t, name, "HOSTMODE_GIVEN="+far, connectionsEnv+"="+connections)
					w.noComplaints(t)
					if left := w.leftovers(t); left != "" {
						t.Errorf("left behind: %s", left)
					}
				})
			}
		})
	}
}

// addOutside gives the machine the netdev of the clients outside.
func (w *world) addOutside(p *machineParts, m *rig.Machine) {
	w.Helper()
	need.That(w, "packages", p.cache.AddModules(w.ctx, w.kernel, hostSet, "virtio_pci",
		"virtio_net", "veth", "bridge"))
	w.addSecond(m)
}

// secondNetdev has the guest's kernel find the virtio netdev.
func (w *world) secondNetdev(t *testing.T) (name string) {
	t.Helper()
	w.must(t, rig.Request{Op: "load", Path: hostSet, Timeout: patience})
	eventually(t, func() string { return "a virtio netdev" }, func() bool {
		path := w.must(t, rig.Request{Op: "glob",
			Path: "/sys/bus/virtio/drivers/virtio_net/virtio*/net/*"}).Output
		name = filepath.Base(path)
		return path != ""
	})
	return name
}

// runHostTest runs a test of tests/e2e/hostmode in the guest.
func (w *world) runHostTest(t *testing.T, name string, env ...string) {
	t.Helper()
	before := w.nic.Counters().Slice
	r, err := w.vm.Do(rig.Request{Op: "run", Argv: []string{"/bin/hostmode.test", "-test.v",
		"-test.run", "^" + name + "$"}, Env: append(env, "NEED=all"), Timeout: hostTime})
	t.Log(r.Output)
	if err != nil || r.Code != 0 {
		t.Fatalf("exit %d, %v", r.Code, err)
	}
	after := w.nic.Counters().Slice
	t.Logf("the rings received %d frames and sent %d", after.RxPackets-before.RxPackets,
		after.TxPackets-before.TxPackets)
}
