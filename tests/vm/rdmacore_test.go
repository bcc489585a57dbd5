package vm

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"
)

// firmware is the version the model shows.
const firmware = "22.43.2026"

// testDevinfo asks rdma-core what it sees.
func testDevinfo(t *testing.T, w *world) {
	contains(t, w.run(t, "ibv_devinfo"),
		"hca_id: mlx5_0", "fw_ver: "+firmware, "vendor_id: 0x02c9", "state: PORT_ACTIVE (4)", "link_layer: Ethernet")
	contains(t, w.run(t, "ibv_devinfo", "-v"),
		"max_tso: 262144", "SUPPORT_RAW_PACKET", "C-VLAN stripping offload", "IP csum offload", "MANAGED_FLOW_STEERING")
}

// perftestMACs are the two ends of perftest's raw Ethernet tests, both in the guest.
const perftestA, perftestB = "02:aa:00:00:00:0a", "02:aa:00:00:00:0b"

// perftestArgs are of one end of a raw Ethernet test.
func perftestArgs(program, end, from, to string, more ...string) []string {
	return append([]string{program, "-d", "mlx5_0", end, "-B", from, "-E", to}, more...)
}

// resultRow is the line of figures below perftest's header line that starts with #bytes.
func resultRow(t *testing.T, out string) (row []float64) {
	t.Helper()
	_, rest, ok := strings.Cut(out, "#bytes")
	if ok {
		_, rest, _ = strings.Cut(rest, "\n")
		rest, _, _ = strings.Cut(rest, "\n")
	}
	for _, word := range strings.Fields(rest) {
		v, err := strconv.ParseFloat(strings.TrimPrefix(word, "-"), 64) // a deviation may be "-nan"
		if err != nil {
			t.Fatalf("%v in the figures of:\n%s", err, out)
		}
		row = append(row, v)
	}
	return row
}

// testPerftest has rdma-core's own raw Ethernet programs send and receive through libmlx5's rings, two processes on the
// one port: the frames are switched inside the NIC.
func testPerftest(t *testing.T, w *world) {
	t.Run("bandwidth", func(t *testing.T) { testBandwidth(t, w) })
	t.Run("latency", func(t *testing.T) { testLatency(t, w) })
}

// frames and their size in the bandwidth test, round trips in the latency test.
const perftestFrames, perftestSize, perftestTrips = 5000, 1024, 100

// testBandwidth floods: what the receiver has no room for is dropped, and counted.
func testBandwidth(t *testing.T, w *world) {
	size := fmt.Sprint(perftestSize)
	w.receiver(t, perftestArgs("raw_ethernet_bw", "--server", perftestA, perftestB, "-s", size, "-D", "20")...)
	before := w.nic.Counters()
	out := w.run(t, perftestArgs("raw_ethernet_bw", "--client", perftestB, perftestA, "-s", size, "-n", fmt.Sprint(perftestFrames))...)
	after := w.nic.Counters()
	row := resultRow(t, out)
	if len(row) != 5 || row[0] != perftestSize || row[1] != perftestFrames {
		t.Fatalf("figures %v of:\n%s", row, out)
	}
	// peak and average in MiB/s, the rate in million frames per second
	if peak, average, rate := row[2], row[3], row[4]; average <= 0 || peak < average || math.Abs(rate*1e6*perftestSize/(1<<20)-average) > average/100 {
		t.Errorf("bandwidth %v, average %v and rate %v do not go together", peak, average, rate)
	}
	received := after.Slice.RxPackets - before.Slice.RxPackets
	if sent, lost := after.Slice.TxPackets-before.Slice.TxPackets, after.Drops.OutOfBuffer-before.Drops.OutOfBuffer; sent != perftestFrames || received+lost != sent || received < 100 {
		t.Errorf("%d frames sent, %d received, %d without a buffer", sent, received, lost)
	}
}

// testLatency passes one frame to and fro.
func testLatency(t *testing.T, w *world) {
	trips := []string{"-s", "256", "-n", fmt.Sprint(perftestTrips)}
	w.receiver(t, perftestArgs("raw_ethernet_lat", "--server", perftestA, perftestB, trips...)...)
	before := w.nic.Counters()
	out := w.run(t, perftestArgs("raw_ethernet_lat", "--client", perftestB, perftestA, trips...)...)
	after := w.nic.Counters()
	row := resultRow(t, out)
	if len(row) != 9 || row[0] != 256 || row[1] != perftestTrips || row[2] <= 0 || row[4] < row[2] || row[3] < row[4] {
		t.Errorf("figures %v of:\n%s", row, out)
	}
	if sent, got := after.Slice.TxPackets-before.Slice.TxPackets, after.Slice.RxPackets-before.Slice.RxPackets; sent != 2*perftestTrips || got != sent {
		t.Errorf("%d frames sent and %d received in %d round trips", sent, got, perftestTrips)
	}
}

// receiver starts the receiving end of a test and waits until its flow rule is in the NIC.
func (w *world) receiver(t *testing.T, argv ...string) {
	t.Helper()
	rules := func() uint64 { return w.fn.Commands()["SET_FLOW_TABLE_ENTRY"].Done }
	before := rules()
	job := w.start(t, argv...)
	eventually(t, 10*time.Second, func() string { return "a flow rule; the receiver says:\n" + w.output(t, job) }, func() bool { return rules() > before })
}
