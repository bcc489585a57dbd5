//go:build linux

package vm

import (
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/tests/vm/rig"
)

// The device leaves under its users, and comes back.

// pciAddress is where the guest finds the device.
const pciAddress = "0000:01:00.0"

// departure is one way to leave. The device is back when back has returned and the kernel has
// created netdev and RDMA device.
type departure struct{ leave, back func(t *testing.T, w *world) }

var pciRemoval = departure{
	func(t *testing.T, w *world) {
		w.write(t, "/sys/bus/pci/devices/"+pciAddress+"/remove", "1")
	},
	func(t *testing.T, w *world) { w.write(t, "/sys/bus/pci/rescan", "1") },
}

var driverUnbound = departure{
	func(t *testing.T, w *world) {
		w.write(t, "/sys/bus/pci/drivers/mlx5_core/unbind", pciAddress)
	},
	func(t *testing.T, w *world) {
		w.write(t, "/sys/bus/pci/drivers/mlx5_core/bind", pciAddress)
	},
}

var devlinkReload = departure{
	func(t *testing.T, w *world) { w.run(t, "devlink", "dev", "reload", "pci/"+pciAddress) },
	func(*testing.T, *world) {},
}

// deviceFailure: the firmware reports it, the kernel notices, notifies the driver, resets the
// device and restores it by itself.
var deviceFailure = departure{
	func(_ *testing.T, w *world) { w.nic.FailDevice() },
	func(t *testing.T, w *world) {
		eventually(t, func() string { return "the kernel recovering the device" }, func() bool {
			return strings.Contains(w.must(t, rig.Request{Op: "dmesg"}).Output,
				"health recovery succeeded")
		})
	},
}

// write writes a text to a file of the guest.
func (w *world) write(t *testing.T, path, text string) {
	t.Helper()
	w.must(t, rig.Request{Op: "write", Path: path, Argv: []string{text}, Timeout: patience})
}

// goneMAC is the address of the queues of TestGoneOnDevice (package dv).
const goneMAC = "02:aa:00:00:00:77"

// departs has the device leave under two processes with traffic: our driver, which reports it, and
// bare rings, whose memory and doorbell pages are watched. Then all works again, for a process that
// starts anew, and the kernel has warned of nothing.
func departs(d departure) func(t *testing.T, w *world) {
	return func(t *testing.T, w *world) {
		warned := len(w.warnings(t))
		s, bare := w.slice(t), w.bareRings(t)
		stop, stopBare := w.flooding(t), w.floodingTo(t, goneMAC)
		before := w.nic.Counters().Slice.RxPackets
		eventually(t, func() string { return "frames in the slice" },
			func() bool { return w.nic.Counters().Slice.RxPackets > before+100 })
		d.leave(t, w)
		checkGone(t, s.ended(t))
		r, err := w.vm.Do(rig.Request{Op: "wait", Job: bare, Timeout: patience})
		if err != nil || r.Code != 0 {
			t.Errorf("bare rings: exit %d, %v", r.Code, err)
		}
		t.Log(r.Output)
		stop()
		stopBare()
		d.back(t, w)
		w.appeared(t)
		w.works(t)
		w.forgiveDoorbells(t)
		if now := w.warnings(t); len(now) > warned {
			t.Errorf("the guest's kernel says: %q", now)
		}
	}
}

// bareRings starts TestGoneOnDevice and waits until its queues are at work.
func (w *world) bareRings(t *testing.T) (job int) {
	t.Helper()
	job = w.must(t, rig.Request{Op: "start", Argv: []string{"/bin/dv.test", "-test.v", "-test.run",
		"^TestGoneOnDevice$"}, Env: []string{"RDMA_DEVICE=mlx5_0", "NEED=all",
		"DEVICE_LEAVES=1"}}).ID
	eventually(t, func() string { return "bare rings at work: " + w.output(t, job) },
		func() bool { return strings.Contains(w.output(t, job), "removable") })
	return job
}

// forgiveDoorbells accepts that the model has complained of doorbells of queues that the kernel had
// destroyed before their process knew, and of nothing else.
func (w *world) forgiveDoorbells(t *testing.T) {
	t.Helper()
	all := w.nic.Violations()
	for _, v := range all[w.complaints:] {
		if !strings.Contains(v, "names no send queue of it") {
			t.Errorf("the model complains: %s", v)
		}
	}
	w.complaints = len(all)
}
