//go:build linux

package vm

import "testing"

// testMerging receives bulk TCP with LRO, which the driver has with striding receive queues only:
// the NIC merges segments, and all bytes arrive; with frames of 1500 bytes and of 9000.
func testMerging(t *testing.T, w *world) {
	w.served(t)
	w.run(t, "ethtool", "--set-priv-flags", "eth0", "rx_striding_rq", "on")
	w.run(t, "ethtool", "-K", "eth0", "lro", "on")
	defer w.run(t, "ethtool", "-K", "eth0", "lro", "off")
	contains(t, w.run(t, "ethtool", "-k", "eth0"), "large-receive-offload: on")
	for _, mtu := range []int{1500, jumbo} {
		w.mtu(t, mtu)
		defer w.mtu(t, 1500)
		before := w.nic.Counters()
		testNetdevClient(t, w)
		for _, at := range []string{url(netdev4, netdevPort), url(netdev6, netdevPort)} {
			if err := w.client.Echo(w.ctx, at, bulk); err != nil {
				t.Errorf("MTU %d: %v", mtu, err)
			}
		}
		after := w.nic.Counters()
		packets := after.Netdev.RxPackets - before.Netdev.RxPackets
		n := after.LROPackets - before.LROPackets
		t.Logf("MTU %d: %d of %d packets merged into others", mtu, n, packets)
		if n < packets/4 {
			t.Errorf("MTU %d: the NIC merged %d of %d packets", mtu, n, packets)
		}
	}
}
