package vm

import (
	"regexp"
	"strconv"
	"testing"
)

// firmware is the version the model shows.
const firmware = "16.35.2000"

// testDevinfo asks rdma-core what it sees.
func testDevinfo(t *testing.T, w *world) {
	contains(t, w.run(t, "ibv_devinfo"),
		"hca_id: mlx5_0", "fw_ver: "+firmware, "vendor_id: 0x02c9", "state: PORT_ACTIVE (4)", "link_layer: Ethernet")
	contains(t, w.run(t, "ibv_devinfo", "-v"),
		"max_tso: 262144", "SUPPORT_RAW_PACKET", "C-VLAN stripping offload", "IP csum offload", "MANAGED_FLOW_STEERING")
}

// perftestMACs are the two ends of perftest's raw Ethernet tests, both in the guest.
const perftestA, perftestB = "02:aa:00:00:00:0a", "02:aa:00:00:00:0b"

// bandwidthRow is a result line of raw_ethernet_bw: bytes, iterations, peak, average, message rate.
var bandwidthRow = regexp.MustCompile(`(?m)^\s*(\d+)\s+(\d+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)`)

// testPerftest has rdma-core's own raw Ethernet programs send and receive through libmlx5's rings, two processes on the
// one port: the frames are switched inside the NIC.
func testPerftest(t *testing.T, w *world) {
	server := w.start(t, "raw_ethernet_bw", "-d", "mlx5_0", "--server", "-s", "1024", "-D", "20", "-E", perftestB, "-B", perftestA)
	_ = server
	out := w.run(t, "raw_ethernet_bw", "-d", "mlx5_0", "--client", "-s", "1024", "-n", "5000", "-E", perftestA, "-B", perftestB)
	m := bandwidthRow.FindStringSubmatch(out)
	if m == nil {
		t.Fatalf("no result line in:\n%s", out)
	}
	if n, _ := strconv.Atoi(m[2]); n != 5000 {
		t.Errorf("%d iterations, want 5000:\n%s", n, out)
	}
}
