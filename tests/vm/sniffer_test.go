//go:build linux

package vm

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/tests/vm/rig"
)

// Frames that a sniffing perftest is to get, and how many are sent at a time until it has them.
const snifferFrames, snifferBatch = 300, 100

// testSniffer lets perftest's receiver sniff, by a flow rule of verbs. Nobody sends to its own
// address: it ends once it has so many frames from the wire that are for nobody, and in a second
// run so many that the netdev sends and nobody answers.
func testSniffer(t *testing.T, w *world) {
	const silent = "10.77.0.200"
	nobody := net.HardwareAddr{2, 0xaa, 0, 0, 0, 0x55}
	w.run(t, "ip", "neigh", "replace", silent, "lladdr", nobody.String(), "dev", "eth0")
	for _, c := range []struct {
		name string
		send func()
	}{
		{"received", func() { w.frames(t, nobody, snifferBatch) }},
		{"sent", func() {
			w.try(t, "ping", "-c", fmt.Sprint(snifferBatch), "-i", "0.01", "-W", "1", silent)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := w.fn.Resources()
			row := w.sniffed(t, c.send)
			if row != nil && (len(row) < 2 || row[1] != snifferFrames) {
				t.Errorf("figures %v, want %d frames", row, snifferFrames)
			}
			for _, kind := range []string{"tables", "entries"} {
				eventually(t, func() string {
					return fmt.Sprintf("as many %s as before: %d, %d", kind, before[kind],
						w.fn.Resources()[kind])
				}, func() bool { return w.fn.Resources()[kind] <= before[kind] })
			}
		})
	}
}

// sniffed returns the figures of a receiver that sniffs and ends by what send sends again and
// again, which may come before its buffers do. It returns none, and logs that, if every run found
// the guest's clock unsteady, which a receiver says when it has got its frames.
func (w *world) sniffed(t *testing.T, send func()) (row []float64) {
	t.Helper()
	for range perftestTries {
		job := w.receiver(t, perftestArgs("raw_ethernet_bw", "--server", perftestA, perftestB,
			"--sniffer", "-s", fmt.Sprint(perftestSize), "-n", fmt.Sprint(snifferFrames))...)
		var r rig.Reply
		w.eventually(t, func() string { return "the end of a sniffer: " + w.output(t, job) },
			func() bool {
				send()
				var err error
				r, err = w.vm.Do(rig.Request{Op: "wait", Job: job, Timeout: time.Second})
				return err == nil
			})
		if r.Code == 0 {
			return resultRow(t, r.Output, "#bytes")
		}
		if !strings.Contains(r.Output, clockComplaint) {
			t.Fatalf("exit %d\n%s", r.Code, r.Output)
		}
	}
	t.Logf("the guest's clock was unsteady %d times: the figures are not looked at", perftestTries)
	return nil
}
