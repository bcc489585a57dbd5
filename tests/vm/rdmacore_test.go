//go:build linux

package vm

import (
	"encoding/json"
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/tests/vm/rig"
)

// testDevinfo runs rdma-core's tools that describe the device.
func testDevinfo(t *testing.T, w *world) {
	contains(t, w.run(t, "ibv_devinfo"),
		"hca_id: mlx5_0", "fw_ver: "+w.nic.Card().FirmwareVersion(), "vendor_id: 0x02c9",
		fmt.Sprintf("vendor_part_id: %d", w.nic.DeviceID()),
		"state: PORT_ACTIVE (4)", "link_layer: Ethernet")
	contains(t, w.run(t, "ibv_devinfo", "-v"),
		"max_tso: 262144", fmt.Sprintf("hca_core_clock: %dkHZ", w.nic.Caps().FrequencyKHz),
		"SUPPORT_RAW_PACKET", "C-VLAN stripping offload",
		"IP csum offload", "MANAGED_FLOW_STEERING")
	testDevices(t, w)
}

// testDevices has our own binary describe the device: with the names and values of ibv_devinfo.
func testDevices(t *testing.T, w *world) {
	values := map[string]string{}
	for line := range strings.Lines(w.run(t, "ibv_devinfo")) {
		if key, value, ok := strings.Cut(line, ":"); ok {
			values[strings.TrimSpace(key)] = strings.TrimSpace(value)
		}
	}
	state, _, _ := strings.Cut(strings.TrimPrefix(values["state"], "PORT_"), " ")
	contains(t, w.run(t, "rdma-netstack", "devices", "--verbose"), values["hca_id"], "netdev eth0",
		"node /dev/infiniband/uverbs0",
		"fw_ver "+values["fw_ver"], "node_guid "+values["node_guid"],
		"link_layer "+values["link_layer"], "state "+state, "mtu 1500", "usable yes")
	var devices []struct {
		Name, Netdev, Firmware, State string
		LinkLayer                     string `json:"link_layer"`
		Usable                        bool
	}
	out := w.run(t, "rdma-netstack", "devices", "--json")
	if err := json.Unmarshal([]byte(out), &devices); err != nil || len(devices) != 1 {
		t.Fatalf("%v: %s", err, out)
	}
	if d := devices[0]; d.Name != values["hca_id"] || d.Netdev != "eth0" ||
		d.Firmware != values["fw_ver"] || d.LinkLayer != values["link_layer"] ||
		d.State != state || !d.Usable {
		t.Errorf("%+v, ibv_devinfo says %v", d, values)
	}
}

// perftestA and perftestB are the two ends of perftest's raw Ethernet tests, both in the guest.
const perftestA, perftestB = "02:aa:00:00:00:0a", "02:aa:00:00:00:0b"

// perftestArgs are the arguments of one end of a raw Ethernet test.
func perftestArgs(program, end, from, to string, more ...string) []string {
	return append([]string{program, "-d", "mlx5_0", end, "-B", from, "-E", to}, more...)
}

// clockComplaint is the error with which perftest ends, after all its traffic, when the sleeps by
// which it measures the processor's frequency took longer than requested, as on a busy machine
// (perftest src/get_clock.c).
const clockComplaint = "Can't produce a report"

// perftestTries is the number of runs of a test that ends with the clock's complaint.
const perftestTries = 5

// perftest runs both ends of a test, the sender in the foreground, and passes the NIC's counters
// from before and after to check. It returns the sender's figures: those below the header line that
// starts with #bytes. It returns none, and logs that, if every run found the guest's clock
// unsteady.
func (w *world) perftest(t *testing.T, receiver, sender []string,
	check func(before, after simnic.Counters)) (row []float64) {
	t.Helper()
	for range perftestTries {
		job := w.receiver(t, receiver...)
		before := w.nic.Counters()
		out, code := w.try(t, sender...)
		check(before, w.nic.Counters())
		w.vm.Do(rig.Request{Op: "stop", Job: job, Signal: 9, Timeout: patience})
		if code == 0 {
			return resultRow(t, out, "#bytes")
		}
		if !strings.Contains(out, clockComplaint) {
			t.Fatalf("%s: exit %d\n%s", strings.Join(sender, " "), code, out)
		}
	}
	t.Logf("%s found the guest's clock unsteady %d times: its figures are not looked at", sender[0],
		perftestTries)
	return nil
}

// resultRow returns the line of figures in perftest's output, below one that starts with header. A
// deviation may be "-nan".
func resultRow(t *testing.T, out, header string) (row []float64) {
	t.Helper()
	_, rest, _ := strings.Cut(out, header)
	_, rest, _ = strings.Cut(rest, "\n")
	rest, _, _ = strings.Cut(rest, "\n")
	for _, word := range strings.Fields(rest) {
		v, err := strconv.ParseFloat(strings.TrimPrefix(word, "-"), 64)
		if err != nil {
			t.Fatalf("%v in the figures of:\n%s", err, out)
		}
		row = append(row, v)
	}
	return row
}

// testPerftest has rdma-core's own raw Ethernet programs send and receive through libmlx5's rings,
// two processes on the one port: the frames are switched inside the NIC.
func testPerftest(t *testing.T, w *world) {
	t.Run("bandwidth", func(t *testing.T) { testBandwidth(t, w) })
	t.Run("latency", func(t *testing.T) { testLatency(t, w) })
}

// frames and their size in the bandwidth test, round trips in the latency test.
const perftestFrames, perftestSize, perftestTrips = 5000, 1024, 100

// testBandwidth sends as fast as possible: frames for which the receiver has no buffer are dropped,
// and counted.
func testBandwidth(t *testing.T, w *world) {
	size := fmt.Sprint(perftestSize)
	row := w.perftest(t,
		perftestArgs("raw_ethernet_bw", "--server", perftestA, perftestB, "-s", size, "-D", "60"),
		perftestArgs("raw_ethernet_bw", "--client", perftestB, perftestA, "-s", size, "-n",
			fmt.Sprint(perftestFrames)),
		func(before, after simnic.Counters) {
			received := after.Slice.RxPackets - before.Slice.RxPackets
			if sent, lost := after.Slice.TxPackets-before.Slice.TxPackets,
				after.Drops.OutOfBuffer-before.Drops.OutOfBuffer; sent != perftestFrames ||
				received+lost != sent || received == 0 {
				t.Errorf("%d frames sent, %d received, %d without a buffer", sent, received, lost)
			}
		})
	if row == nil {
		return
	}
	if len(row) != 5 || row[0] != perftestSize || row[1] != perftestFrames {
		t.Fatalf("figures %v", row)
	}
	// peak and average in MiB/s, the rate in million frames per second; the first two have two
	// decimals
	if peak, average, rate := row[2], row[3], row[4]; !(average >= 0) || peak < average ||
		math.Abs(rate*1e6*perftestSize/(1<<20)-average) > 0.01+average/100 {
		t.Errorf("bandwidth %v, average %v and rate %v do not go together", peak, average, rate)
	}
}

// testLatency sends one frame back and forth.
func testLatency(t *testing.T, w *world) {
	trips := []string{"-s", "256", "-n", fmt.Sprint(perftestTrips)}
	row := w.perftest(t,
		perftestArgs("raw_ethernet_lat", "--server", perftestA, perftestB, trips...),
		perftestArgs("raw_ethernet_lat", "--client", perftestB, perftestA, trips...),
		func(before, after simnic.Counters) {
			if sent, got := after.Slice.TxPackets-before.Slice.TxPackets,
				after.Slice.RxPackets-before.Slice.RxPackets; sent != 2*perftestTrips ||
				got != sent {
				t.Errorf("%d frames sent and %d received in %d round trips", sent, got,
					perftestTrips)
			}
		})
	if row == nil {
		return
	}
	if len(row) != 9 || row[0] != 256 || row[1] != perftestTrips {
		t.Fatalf("figures %v", row)
	}
	if least, most, typical := row[2], row[3], row[4]; !(least > 0) ||
		typical < least || most < typical {
		t.Errorf("latencies of least %v, most %v and typically %v do not go together", least, most,
			typical)
	}
}

// receiver starts the receiving end of a test and waits until its flow rule is installed. The rule
// has a flow table of its own; the netdev adds rules at any time, but no tables.
func (w *world) receiver(t *testing.T, argv ...string) (job int) {
	t.Helper()
	before := w.fn.Resources()
	job = w.start(t, argv...)
	eventually(t, func() string { return "a flow rule; the receiver says:\n" + w.output(t, job) },
		func() bool {
			now := w.fn.Resources()
			return now["tables"] > before["tables"] && now["entries"] > before["entries"]
		})
	return job
}

// perftestFlows says how many flow rules testRuleRate has made.
const perftestFlows = 300

// testRuleRate lets perftest make flow rules by verbs as fast as it can, each for another port, and
// take them away again. Linux tells the device once of rules that are alike (find_flow_rule in
// drivers/net/ethernet/mellanox/mlx5/core/fs_core.c), and those of perftest all differ with
// --local_port and --remote_port only: the first has no ports, the others count on from those of
// these options (set_up_fs_rules in perftest src/raw_ethernet_resources.c). With -K and -k, which
// set other variables, the second has no ports either, and the device is told of one less.
func testRuleRate(t *testing.T, w *world) {
	out, code := "", 0
	for range perftestTries {
		w.rules.begin()
		out, code = w.try(t, "raw_ethernet_fs_rate", "-d", "mlx5_0", "--server",
			"--local_mac", perftestA, "--remote_mac", perftestB,
			"--local_ip", slice4.Addr().String(), "--remote_ip", outside4.Addr().String(),
			"--local_port", "2000", "--remote_port", "1000", "-n", fmt.Sprint(perftestFlows))
		if code == 0 || !strings.Contains(out, clockComplaint) {
			break
		}
	}
	if code != 0 {
		t.Fatalf("exit %d\n%s", code, out)
	}
	row := resultRow(t, out, "#flows")
	if len(row) < 3 || row[0] != perftestFlows || !(row[len(row)-1] > 0) {
		t.Errorf("figures %v:\n%s", row, out)
	}
	mac, err := net.ParseMAC(perftestA)
	if err != nil {
		t.Fatal(err)
	}
	if told, left := w.rules.ofAddress([6]byte(mac)); told != perftestFlows || left != 0 {
		t.Errorf("the model was told of %d different rules, want %d, and %d are left", told,
			perftestFlows, left)
	}
}
