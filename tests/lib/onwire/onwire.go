// Package onwire has interfaces in memory carry frames as a wire does: within the MTU, with their
// checksums, and with tags where a program in the driver sees them.
package onwire

import (
	"os/exec"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// Make switches the offloads of an interface off in each namespace: of both ends of a cable.
func Make(t testing.TB, ifname string, nets ...*lab.Net) {
	t.Helper()
	ethtool := need.Tool(t, "ethtool")
	for _, n := range nets {
		if err := n.Do(func() error {
			out, err := exec.Command(ethtool, "-K", ifname, "tx", "off", "tso", "off", "gso", "off",
				"rxvlan", "off", "txvlan", "off").CombinedOutput()
			if err != nil {
				t.Logf("%s", out)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
}
