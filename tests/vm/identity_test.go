//go:build linux

package vm

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/vm/pcie"
)

// What administrators, and network plugins of containers, do to the netdev of a port while a server
// with transfers is on its rings: none of them ends or stalls.

// identityChecks are the rows, each with a server of its own.
var identityChecks = []check{
	{"netdev's MAC, host mode", testMACUnderHost},
	{"netdev's MAC, taken whole", testMACTaken},
	{"netdev renamed", testRenamed},
	{"alternative name", testAlternativeName},
	{"netdev in a container", testNetdevElsewhere},
	{"back with another MAC", testBackWithAnotherMAC},
}

// otherMACs are what the netdev's is changed to.
var otherMACs = []string{"02:aa:00:00:00:91", "02:aa:00:00:00:92"}

// testIdentity runs these rows on a machine of their own.
func testIdentity(t *testing.T, ctx context.Context, p *machineParts, version string, tab *table) {
	if rowsOf[version] != nil {
		return // this kernel has other rows only
	}
	t.Run("identity", func(t *testing.T) {
		need.Long(t, "boots a virtual machine")
		need.That(t, "time", timeFor(t, kernelTime))
		w := boot(t, ctx, p, version, simnic.Config{Seed: uint64(len(version)),
			Card: cardUnder(version)}, pcie.Config{})
		testProbe(t, w)
		for _, c := range identityChecks {
			tab.run(t, version, c.name, checkTime, func(t *testing.T) {
				c.run(t, w)
				w.noComplaints(t)
			})
		}
	})
}

// serveOn starts our web server on the device with more options.
func (w *world) serveOn(t *testing.T, device string, args ...string) *server {
	t.Helper()
	s := &server{w, w.start(t, append([]string{"rdma-netstack", "serve", "http",
		"--debug-endpoints", "--device", device, "--queues", "2", "--min-rate", minRate},
		args...)...)}
	eventually(t, func() string { return "rdma-netstack says: " + w.output(t, s.job) },
		func() bool { return strings.Contains(w.output(t, s.job), "serving HTTP") })
	return s
}

// transfers starts clients of a server, some with a body without end.
func (w *world) transfers(t *testing.T, s *server, to netip.Prefix) *clients {
	t.Helper()
	l := w.clientsOf(t, to.Addr().String()+":80", 2, 4)
	l.progress(t, "at first")
	return l
}

// goesOn wants the transfers to go on, from the rings, and a new connection to be served.
func (w *world) goesOn(t *testing.T, s *server, l *clients, to netip.Prefix, what string) {
	t.Helper()
	before := w.nic.Counters().Slice.TxPackets
	l.progress(t, what)
	if err := w.client.Download(w.ctx, url(to, 80), bulk/32); err != nil {
		t.Errorf("%s: %v\n%s", what, err, w.output(t, s.job))
	}
	if got := w.nic.Counters().Slice.TxPackets - before; got < bulk/32/1500 {
		t.Errorf("%s: the rings sent %d packets", what, got)
	}
}

// ended stops the clients, of which none has lost its connection, and the server.
func (w *world) ended(t *testing.T, s *server, l *clients) {
	t.Helper()
	l.stop()
	if err := l.losses(); err != nil {
		t.Errorf("connections lost: %v\n%s", err, w.output(t, s.job))
	}
	s.stop(t)
}

// setMAC gives the netdev another MAC.
func (w *world) setMAC(t *testing.T, mac string) {
	t.Helper()
	w.run(t, "ip", "link", "set", "eth0", "address", mac)
}

func testMACUnderHost(t *testing.T, w *world) {
	s := w.serveOn(t, "mlx5_0", "--address", "host")
	l := w.transfers(t, s, netdev4)
	for _, mac := range append(otherMACs, w.nic.MAC().String()) {
		w.setMAC(t, mac)
		w.goesOn(t, s, l, netdev4, "with MAC "+mac)
		if err := w.client.Download(w.ctx, url(netdev6, 80), bulk/32); err != nil {
			t.Errorf("IPv6 with MAC %s: %v", mac, err)
		}
	}
	w.ended(t, s, l)
}

func testMACTaken(t *testing.T, w *world) {
	s := w.serveOn(t, "mlx5_0", "--mac", "netdev", "--address", slice4.String())
	l := w.transfers(t, s, slice4)
	for _, mac := range append(otherMACs, w.nic.MAC().String()) {
		w.setMAC(t, mac)
		w.goesOn(t, s, l, slice4, "with MAC "+mac)
	}
	w.ended(t, s, l)
}

func testRenamed(t *testing.T, w *world) {
	s := w.serveOn(t, "mlx5_0", "--address", "host")
	l := w.transfers(t, s, netdev4)
	rename := func(from, to string) {
		// before linux 6.2 the netdev has to be down for it
		if _, code := w.try(t, "ip", "link", "set", from, "name", to); code != 0 {
			w.run(t, "ip", "link", "set", from, "down")
			w.run(t, "ip", "link", "set", from, "name", to)
			w.run(t, "ip", "link", "set", to, "up")
		}
	}
	rename("eth0", "port9")
	w.goesOn(t, s, l, netdev4, "renamed")
	later := netip.MustParsePrefix("10.77.0.9/24")
	w.run(t, "ip", "addr", "add", later.String(), "dev", "port9")
	eventually(t, func() string { return "served on an address of later: " + w.output(t, s.job) },
		func() bool {
			before := w.nic.Counters().Slice.TxPackets
			err := w.client.Download(w.ctx, url(later, 80), bulk/32)
			return err == nil && w.nic.Counters().Slice.TxPackets-before > bulk/32/1500
		})
	w.run(t, "ip", "addr", "del", later.String(), "dev", "port9")
	rename("port9", "eth0")
	w.appeared(t)
	w.goesOn(t, s, l, netdev4, "renamed back")
	w.ended(t, s, l)
}

func testAlternativeName(t *testing.T, w *world) {
	const name = "uplink-of-the-first-card" // longer than a name may be
	w.run(t, "ip", "link", "property", "add", "dev", "eth0", "altname", name)
	s := w.serveOn(t, name, "--address", "host")
	l := w.transfers(t, s, netdev4)
	w.goesOn(t, s, l, netdev4, "by an alternative name")
	w.ended(t, s, l)
	out, _ := w.try(t, "rdma-netstack", "doctor", "--device", name)
	if !strings.Contains(out, "mlx5_0") || strings.Contains(out, "is called "+name) {
		t.Errorf("doctor by an alternative name:\n%s", out)
	}
	w.run(t, "ip", "link", "property", "del", "dev", "eth0", "altname", name)
}

func testNetdevElsewhere(t *testing.T, w *world) {
	s := w.serveOn(t, "mlx5_0", "--mac", sliceMAC, "--address", slice4.String())
	l := w.transfers(t, s, slice4)
	w.run(t, "ip", "netns", "add", "pod")
	for i := range 2 {
		w.run(t, "ip", "link", "set", "eth0", "netns", "pod")
		w.run(t, "ip", "netns", "exec", "pod", "ip", "link", "set", "eth0", "up")
		w.goesOn(t, s, l, slice4, fmt.Sprintf("netdev in a container, %d", i))
		w.run(t, "ip", "netns", "exec", "pod", "ip", "link", "set", "eth0", "netns", "1")
		w.appeared(t)
		w.goesOn(t, s, l, slice4, fmt.Sprintf("netdev back, %d", i))
	}
	if out := w.output(t, s.job); !strings.Contains(out, "the rings go on") {
		t.Errorf("not said: %s", out)
	}
	w.ended(t, s, l)
	w.run(t, "ip", "netns", "del", "pod")
}

// testBackWithAnotherMAC: the netdev has a MAC that an administrator gave it, and when its driver
// is bound again the one that it was made with. The device is known by its node GUID.
func testBackWithAnotherMAC(t *testing.T, w *world) {
	w.setMAC(t, otherMACs[0])
	s := w.serveOn(t, "mlx5_0", "--mac", sliceMAC, "--address", slice4.String())
	l := w.transfers(t, s, slice4)
	driverUnbound.leave(t, w)
	driverUnbound.back(t, w)
	w.appeared(t)
	w.forgiveDoorbells(t)
	w.goesOn(t, s, l, slice4, "the device is back with another MAC")
	w.ended(t, s, l)
}
