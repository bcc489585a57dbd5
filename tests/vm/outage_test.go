//go:build linux

package vm

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/vm/pcie"
	"github.com/rdma-netstack/rdma-netstack/tests/vm/rig"
)

// Clients of one transfer without end, and clients with requests, during the outages.
const bodies, requesters = 8, 64

// outage is a departure that no connection is to notice.
type outage struct {
	name string
	departure
	// brief: the kernel restores the device by itself, at once. The netdev that takes over passes
	// frames on from when its pair's carrier is gone until it is back, which may be for less than
	// TCP waits before it repeats a segment: then none of ours came by it.
	brief bool
}

var outages = []outage{{"PCI removal", pciRemoval, false},
	{"driver unbound", driverUnbound, false}, {"devlink reload", devlinkReload, true},
	{"device failure", deviceFailure, true}}

func (o outage) row() string { return "no loss: " + o.name }

// outageRows are the rows of the table.
func outageRows() (rows []check) {
	for _, o := range outages {
		rows = append(rows, check{name: o.row()})
	}
	return append(rows, check{name: removalsRow})
}

// removalsRow is the row of removals one after the other.
const removalsRow = "no loss: removals"

// outageKernel is the one kernel whose outages make test has time for.
const outageKernel = "7.2"

// testOutages has the device leave in every way under a server with clients, on a machine whose
// kernel pairs the NIC's netdev with a virtio one: no connection is lost, the clients are served
// over the virtio netdev for as long as the device is away, and from the rings again once it is
// back.
func testOutages(t *testing.T, ctx context.Context, p *machineParts, version string, tab *table) {
	if rowsOf[version] != nil {
		return // this kernel has other rows only
	}
	t.Run("outages", func(t *testing.T) {
		if os.Getenv("VM") == "" && version != outageKernel {
			need.That(t, "time", errors.New("make test-vm has the device leave under "+version))
		}
		need.That(t, "time", timeFor(t, kernelTime))
		parts := *p
		parts.second = (*world).addStandby
		w := boot(t, ctx, &parts, version, simnic.Config{Seed: uint64(len(version)),
			Card: cardUnder(version)}, pcie.Config{})
		testProbe(t, w)
		w.pairStandby(t)
		s := w.serve(t, "http", "--debug-endpoints", "--min-rate", minRate, "--log-level", "debug")
		l := w.clientsOf(t, slice4.Addr().String()+":80", bodies, requesters)
		l.progress(t, "before all outages")
		for _, o := range outages {
			tab.run(t, version, o.row(), checkTime, func(t *testing.T) {
				o.underLoad(t, w, s, l)
				w.noComplaints(t)
			})
		}
		tab.run(t, version, removalsRow, checkTime, func(t *testing.T) {
			w.removals(t, s, l, fewRemovals*removalPeriod)
		})
		l.stop()
		if err := l.losses(); err != nil {
			t.Errorf("connections lost: %v", err)
		}
		t.Logf("longest pause of a client %v", time.Duration(l.gap.Load()))
		s.stop(t)
	})
}

// underLoad has the device leave and come back.
func (o outage) underLoad(t *testing.T, w *world, s *server, l *clients) {
	clock, signals := w.guestClock(t), w.start(t, "/init", "signals")
	t.Cleanup(func() { w.logServer(t, s) })
	h := w.watchHandover(t)
	eventually(t, func() string { return "frames of ours from the rings" },
		func() bool { return h.ringsLast.Load() != 0 })
	switched := len(awayLine.FindAllString(w.output(t, s.job), -1))
	o.leave(t, w)
	if !o.brief {
		eventually(t, func() string { return "frames of ours from the virtio netdev" },
			func() bool { return h.standbyFirst.Load() != 0 })
		l.progress(t, "over the virtio netdev")
	}
	o.back(t, w)
	w.appeared(t)
	frames := w.nic.Counters().Slice.TxPackets
	eventually(t, func() string { return "frames of ours from the rings" },
		func() bool { return w.nic.Counters().Slice.TxPackets > frames })
	l.progress(t, "from the rings")
	w.forgiveDoorbells(t)
	log := w.output(t, s.job)
	if len(awayLine.FindAllString(log, -1)) <= switched {
		t.Errorf("the server has not gone on by packet sockets:\n%s", log)
	}
	if h.standbyFirst.Load() == 0 {
		t.Log("no frame of ours came by the virtio netdev: the device was back before")
		return
	}
	t.Log(h.account(t, clock, log, w.output(t, signals)))
}

// logServer logs what the server says and what its connections wait for, on both sides, if the
// test has failed.
func (w *world) logServer(t *testing.T, s *server) {
	t.Helper()
	if !t.Failed() {
		return
	}
	logProgram(t, []string{"the server"}, w.output(t, s.job))
	r, err := w.vm.Do(rig.Request{Op: "run", Argv: []string{"rdma-netstack", "ss", "-tni"}})
	t.Logf("--- the server's connections (%v) ---\n%s", err, r.Output)
	var theirs bytes.Buffer
	ss := exec.Command("ss", "-tnoi")
	ss.Stdout, ss.Stderr = &theirs, &theirs
	if err = w.outside.Start(ss); err == nil {
		err = ss.Wait()
	}
	t.Logf("--- the clients' connections (%v) ---\n%s", err, theirs.String())
}
