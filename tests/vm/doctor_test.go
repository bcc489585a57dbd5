//go:build linux

package vm

import (
	"strings"
	"testing"
)

// testDoctor has our doctor test the NIC on a stock kernel, where its frames come from the kernel's
// own netdev by loopback, and check the machine's configuration.
func testDoctor(t *testing.T, w *world) {
	out, code := w.try(t, "rdma-netstack", "doctor", "--device", "mlx5_0", "--first-contact",
		"--mac", sliceMAC)
	if code != 0 {
		t.Errorf("exit %d", code)
	}
	contains(t, out, "ok first send completed", "ok receive start the first frame came in",
		"ok completion counters", "ok doorbell record", "Linux answered ARP for 10.77.0.2",
		"compression", "ok send error recovery", "e-switch registration",
		"ok nothing left behind", " 0 failed, ")
	if held := w.leftovers(t); held != "" {
		t.Errorf("after the doctor the kernel has:\n%s", held)
	}
	t.Log(out)
	found, _ := w.try(t, "rdma-netstack", "doctor", "--device", "mlx5_0")
	t.Log(found)
	for line := range strings.Lines(found) {
		if strings.HasPrefix(line, "failed") {
			t.Errorf("wrong with the guest: %s", line)
		}
	}
}
