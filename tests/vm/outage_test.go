//go:build linux

package vm

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/dv/simnic"
	"github.com/rdma-netstack/rdma-netstack/dv/simnic/pcie"
	"github.com/rdma-netstack/rdma-netstack/tests/need"
)

// Clients of one transfer without end, and clients with requests, during the outages.
const bodies, requesters = 8, 64

// outage is a departure that no connection is to notice.
type outage struct {
	name string
	departure
}

var outages = []outage{{"PCI removal", pciRemoval}, {"driver unbound", driverUnbound},
	{"devlink reload", devlinkReload}, {"device failure", deviceFailure}}

func (o outage) row() string { return "no loss: " + o.name }

// outageRows are the rows of the table.
func outageRows() (rows []check) {
	for _, o := range outages {
		rows = append(rows, check{name: o.row()})
	}
	return rows
}

// outageKernel is the one kernel whose outages make test has time for.
const outageKernel = "7.2"

// testOutages has the device leave in every way under a server with clients, on a machine whose
// kernel pairs the NIC's netdev with a virtio one: no connection is lost, the clients are served
// over the virtio netdev meanwhile, and from the rings again once the device is back.
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
		parts.standby = true
		w := boot(t, ctx, &parts, version, simnic.Config{Seed: uint64(len(version)),
			Card: cardUnder(version)}, pcie.Config{})
		testProbe(t, w)
		w.pairStandby(t)
		s := w.serve(t, "http", "--debug-endpoints")
		l := w.clientsOf(t, slice4.Addr().String()+":80", bodies, requesters)
		l.progress(t, "before all outages")
		for _, o := range outages {
			ok := t.Run(strings.ReplaceAll(o.name, " ", "-"), func(t *testing.T) {
				o.underLoad(t, w, l)
				w.noComplaints(t)
			})
			tab.set(version, o.row(), ok)
		}
		l.stop()
		if err := l.losses(); err != nil {
			t.Errorf("connections lost: %v", err)
		}
		t.Logf("longest pause of a client %v", time.Duration(l.gap.Load()))
		s.stop(t)
	})
}

// underLoad has the device leave and come back.
func (o outage) underLoad(t *testing.T, w *world, l *clients) {
	rings, standby := w.watch(t, "wire0"), w.watch(t, standbyName)
	o.leave(t, w)
	eventually(t, func() string { return "frames of ours from the virtio netdev" },
		func() bool { return standby.first.Load() != 0 })
	silence := "a time not seen"
	if last, d := rings.last.Load(), standby.first.Load()-rings.last.Load(); last != 0 && d > 0 {
		silence = time.Duration(d).String()
	}
	l.progress(t, "over the virtio netdev")
	o.back(t, w)
	w.appeared(t)
	returned, frames := time.Now(), w.nic.Counters().Slice.TxPackets
	eventually(t, func() string { return "frames of ours from the rings" },
		func() bool { return w.nic.Counters().Slice.TxPackets > frames })
	took := time.Since(returned)
	l.progress(t, "from the rings")
	w.forgiveDoorbells(t)
	t.Logf("%v from the last frame of the rings to the first of the virtio netdev; "+
		"from rings %v after the device was back", silence, took)
}

// sightings are when frames of the slice came by a port of the bridge, in ns of Unix time.
type sightings struct{ first, last atomic.Int64 }

// watch looks at a port of the bridge until the test ends.
func (w *world) watch(t *testing.T, ifname string) *sightings {
	t.Helper()
	mac, err := net.ParseMAC(sliceMAC)
	if err != nil {
		t.Fatal(err)
	}
	var port *lab.Port
	if err := w.outside.Do(func() (err error) {
		port, err = lab.OpenPort(ifname)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	s, ended := new(sightings), make(chan struct{})
	go func() {
		defer close(ended)
		var header [14]byte
		for far := time.Now().Add(time.Hour); ; {
			f, err := port.Recv(header[:], far)
			if err != nil {
				return
			}
			if bytes.Equal(f[6:12], mac) {
				now := time.Now().UnixNano()
				s.first.CompareAndSwap(0, now)
				s.last.Store(now)
			}
		}
	}()
	t.Cleanup(func() {
		port.Close()
		<-ended
	})
	return s
}
