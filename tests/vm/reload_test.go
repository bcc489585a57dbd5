//go:build linux

package vm

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/tests/vm/rig"
)

// The driver removed and started again, while a program uses the netdev.

// reloads is how often.
const reloads = 10

// reloadWays are the ways to do it, in turn; absent says that there is a time without driver.
var reloadWays = []struct {
	name string
	departure
	absent bool
}{
	{"modules", modulesRemoved, true},
	{"bind", driverUnbound, true},
	{"devlink", devlinkReload, false},
	{"PCI removal", pciRemoval, true},
}

var modulesRemoved = departure{
	testUnload,
	func(t *testing.T, w *world) { w.must(t, rig.Request{Op: "load", Timeout: patience}) },
}

// testReloads restarts the driver again and again while a ping runs, which gets answers after each.
// The driver destroys what it has created each time, and the model keeps nothing of it.
func testReloads(t *testing.T, w *world) {
	ping := w.start(t, "ping", "-i", "0.2", outside4.Addr().String())
	answers := func() int { return strings.Count(w.output(t, ping), "bytes from") }
	eventually(t, func() string { return "an answer: " + w.output(t, ping) },
		func() bool { return answers() > 0 })
	var first map[string]int
	for i := range reloads {
		way := reloadWays[i%len(reloadWays)]
		way.leave(t, w)
		if way.absent {
			w.nothingLeft(t)
		}
		way.back(t, w)
		if left := w.fn.Abandoned(); len(left) > 0 {
			t.Errorf("%s: the driver did not destroy %v", way.name, left)
		}
		w.appeared(t)
		before := answers()
		eventually(t, func() string {
			return fmt.Sprintf("an answer after reload %d, by %s: %s", i, way.name,
				w.output(t, ping))
		}, func() bool { return answers() > before })
		w.pinged(t, netdev4.Addr())
		w.noComplaints(t)
		w.cleanLog(t)
		if first == nil {
			first = w.fn.Resources()
		}
	}
	if now := w.fn.Resources(); !maps.Equal(now, first) {
		t.Errorf("resources after %d reloads: %v, after the first: %v", reloads, now, first)
	}
	r := w.must(t, rig.Request{Op: "stop", Job: ping, Signal: 2, Timeout: patience})
	t.Logf("ping: %s", r.Output[max(0, len(r.Output)-200):])
}

// nothingLeft checks that the model has nothing of the driver's after its removal.
func (w *world) nothingLeft(t *testing.T) {
	t.Helper()
	if left := w.fn.Resources(); len(left) > 0 {
		t.Errorf("after the driver's removal the model has %v", left)
	}
	if o := w.nic.Objects(); o.Numbers+o.Flows != 0 || o.Subscribers != 1 {
		t.Errorf("after the driver's removal the NIC has %+v", o)
	}
}
