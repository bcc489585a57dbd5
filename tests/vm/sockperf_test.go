//go:build linux

package vm

import (
	"bytes"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// sockperfCounts matches what sockperf says of messages in the part of its run that counts.
var sockperfCounts = regexp.MustCompile(
	`\[Valid Duration\].* SentMessages=(\d+); ReceivedMessages=(\d+)`)

// testSockperf lets sockperf send messages back and forth between outside and the netdev, by UDP
// and by TCP: none is lost, comes twice or out of order.
func testSockperf(t *testing.T, w *world) {
	argv, err := w.tools.Command("sockperf")
	need.That(t, "packages", err)
	for _, kind := range []string{"udp", "tcp"} {
		t.Run(kind, func(t *testing.T) {
			at := []string{"-i", netdev4.Addr().String(), "-p", "11111"}
			if kind == "tcp" {
				at = append(at, "--tcp")
			}
			server := w.start(t, append([]string{"sockperf", "server"}, at...)...)
			eventually(t, func() string { return "sockperf listening: " + w.output(t, server) },
				func() bool { return strings.Contains(w.output(t, server), "to block on socket") })
			before := w.nic.Counters().Netdev
			client := exec.Command(argv[0], append(append(argv[1:len(argv):len(argv)], "ping-pong",
				"-t", "3", "--timeout", "1000"), at...)...)
			var out bytes.Buffer
			client.Stdout, client.Stderr = &out, &out
			if err := w.outside.Start(client); err != nil {
				t.Fatal(err)
			}
			if err := client.Wait(); err != nil {
				t.Fatalf("%v\n%s", err, &out)
			}
			after := w.nic.Counters().Netdev
			contains(t, out.String(), "# dropped messages = 0; # duplicated messages = 0; "+
				"# out-of-order messages = 0")
			m := sockperfCounts.FindStringSubmatch(out.String())
			if m == nil || m[1] != m[2] || m[1] == "0" {
				t.Errorf("messages %q:\n%s", m, &out)
			}
			if after.RxPackets == before.RxPackets {
				t.Error("the NIC has received nothing")
			}
			t.Logf("%q", m)
		})
	}
}
