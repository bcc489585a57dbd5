//go:build linux

package vm

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/vm/pcie"
	"github.com/rdma-netstack/rdma-netstack/tests/vm/rig"
)

// Servers through AF_XDP on the netdev: mlx5e's zero copy, into memory of the process.

// testXDP serves through AF_XDP with a MAC of its own: bytes both ways over both IP versions,
// addresses resolved by broadcast and by a group, beside the kernel's own server, sent by packet
// sockets and by AF_XDP.
func testXDP(t *testing.T, w *world) {
	defer w.readyForXDP(t)()
	w.served(t)
	for _, by := range []struct{ send, counter string }{
		{"sockets", "tx_packets"}, {"rings", "tx_xsk_xmit"},
	} {
		s := w.serveXDP(t, sliceArgs("--xdp-send", by.send)...)
		w.forgetNeighbours(t)
		received, sent := w.statistic(t, xskReceived), w.statistic(t, by.counter)
		w.bytesByXDP(t, slice4, slice6)
		if n := w.statistic(t, xskReceived) - received; n < xdpBulk/1500 {
			t.Errorf("sent by %s: %d frames came by AF_XDP", by.send, n)
		}
		if n := w.statistic(t, by.counter) - sent; n < 4*xdpBulk/1500 {
			t.Errorf("sent by %s: %s rose by %d", by.send, by.counter, n)
		}
		s.stop(t)
	}
	w.pingsOutside(t, outside4.Addr())
}

// testXDPLife tries servers through AF_XDP on the host's address, a source that the XDP program
// drops, a server that is killed, a link that
// goes and comes, a second process, another program that was there first, and a device that is
// removed.
func testXDPLife(t *testing.T, w *world) {
	defer w.readyForXDP(t)()
	w.served(t)
	for _, c := range []check{
		{"host's address", testXDPHost},
		{"denied source", testXDPDenied},
		{"killed", testXDPKilled},
		{"link", testXDPLink},
		{"second process", testXDPSecond},
		{"another program", testXDPOther},
		{"removed", testXDPRemoved},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, w) })
	}
}

// xskReceived names mlx5e's counter of frames that its programs led to AF_XDP sockets in zero copy.
const xskReceived = "rx_xsk_xdp_redirect"

// xdpDropped names mlx5e's counter of frames that its programs dropped in zero copy.
const xdpDropped = "rx_xsk_xdp_drop"

// readyForXDP switches off what keeps the netdev from being served through AF_XDP. The kernel has
// warned of nothing when the returned function is called.
func (w *world) readyForXDP(t *testing.T) (done func()) {
	t.Helper()
	warned := len(w.warnings(t))
	w.run(t, "ethtool", "-K", "eth0", "rxvlan", "off")
	return func() {
		t.Helper()
		w.run(t, "ethtool", "-K", "eth0", "rxvlan", "on")
		if now := w.warnings(t); len(now) > warned {
			t.Errorf("the guest's kernel says: %q", now[warned:])
		}
	}
}

// sliceArgs are those of a server with a MAC and addresses of its own.
func sliceArgs(more ...string) []string {
	return append([]string{"--mac", sliceMAC, "--address", slice4.String(), "--address",
		slice6.String()}, more...)
}

func xdpArgs(args ...string) []string {
	return append([]string{"rdma-netstack", "serve", "http", "--debug-endpoints", "--device",
		"eth0", "--backend", "xdp", "--log-level", "info"}, args...)
}

// serveXDP starts our web server through AF_XDP, in zero copy.
func (w *world) serveXDP(t *testing.T, args ...string) *server {
	t.Helper()
	s := &server{w, w.start(t, xdpArgs(args...)...)}
	eventually(t, func() string { return "rdma-netstack says: " + w.output(t, s.job) },
		func() bool { return strings.Contains(w.output(t, s.job), "try: ") })
	contains(t, w.output(t, s.job), "eth0 is a mlx5_core: served through AF_XDP in zero copy")
	return s
}

// xdpBulk is what clients fetch and upload, much more than a window.
const xdpBulk = bulk / 8

// bytesByXDP has clients outside fetch and upload.
func (w *world) bytesByXDP(t *testing.T, at ...netip.Prefix) {
	t.Helper()
	for _, to := range at {
		w.pinged(t, to.Addr())
		if err := w.client.Download(w.ctx, url(to, 80), xdpBulk); err != nil {
			t.Error(err)
		}
		if err := w.client.Echo(w.ctx, url(to, 80), xdpBulk); err != nil {
			t.Error(err)
		}
	}
}

// testXDPDenied makes the program on the netdev drop what a denied source sends in numbers, but for
// what comes while the kernel of a slow guest has given the NIC no buffers back yet.
func testXDPDenied(t *testing.T, w *world) {
	s := w.serveXDP(t, sliceArgs()...)
	noBuffer := func() uint64 { return w.nic.Counters().Drops.OutOfBuffer }
	dropped, lost := w.statistic(t, xdpDropped), noBuffer()
	w.deniedBefore(t, func() uint64 { return w.statistic(t, xskReceived) }, func() {})
	n := w.statistic(t, xdpDropped) - dropped
	if lost = noBuffer() - lost; n+lost < 1000 || n < 500 {
		t.Errorf("%s rose by %d, and for %d frames there was no buffer", xdpDropped, n, lost)
	}
	s.stop(t)
}

func testXDPHost(t *testing.T, w *world) {
	s := w.serveXDP(t, "--address", "host")
	before := w.statistic(t, xskReceived)
	w.bytesByXDP(t, netdev4, netdev6)
	if n := w.statistic(t, xskReceived) - before; n < xdpBulk/1500 {
		t.Errorf("%d frames came by AF_XDP", n)
	}
	if err := w.client.Download(w.ctx, url(netdev4, netdevPort), xdpBulk); err != nil {
		t.Errorf("the kernel's own server: %v", err)
	}
	w.killXDP(t, s)
	w.kernels(t, netdev4.Addr(), 80)
	w.kernels(t, netdev6.Addr(), 80)
}

// killXDP kills a server.
func (w *world) killXDP(t *testing.T, s *server) {
	t.Helper()
	if _, err := w.vm.Do(rig.Request{Op: "stop", Job: s.job, Signal: int(unix.SIGKILL),
		Timeout: patience}); err != nil {
		t.Fatal(err)
	}
}

// testXDPKilled: whoever comes next has the interface at once.
func testXDPKilled(t *testing.T, w *world) {
	w.killXDP(t, w.serveXDP(t, sliceArgs()...))
	s := w.serveXDP(t, sliceArgs()...)
	w.bytesByXDP(t, slice4)
	s.stop(t)
}

// testXDPLink takes the carrier away, and then the interface down: the server goes on in zero copy.
func testXDPLink(t *testing.T, w *world) {
	s := w.serveXDP(t, sliceArgs()...)
	for _, c := range []struct {
		what     string
		down, up func()
	}{
		{"the carrier", func() { w.nic.SetLink(false) }, func() { w.nic.SetLink(true) }},
		{"the interface", func() { w.run(t, "ip", "link", "set", "eth0", "down") },
			func() { w.run(t, "ip", "link", "set", "eth0", "up") }},
	} {
		c.down()
		eventually(t, func() string { return c.what + " known to be gone" }, func() bool {
			return strings.Contains(w.run(t, "rdma-netstack", "status", "stats", "--all"),
				"link_up: 0")
		})
		c.up()
		w.pinged(t, slice4.Addr())
		before := w.statistic(t, xskReceived)
		w.bytesByXDP(t, slice4)
		if n := w.statistic(t, xskReceived) - before; n < xdpBulk/1500 {
			t.Errorf("%s gone and back: %d frames came by AF_XDP", c.what, n)
		}
	}
	s.stop(t)
	w.appeared(t) // IPv6 addresses go with an interface that is taken down
}

func testXDPSecond(t *testing.T, w *world) {
	s := w.serveXDP(t, sliceArgs()...)
	out, code := w.try(t, xdpArgs("--address", "10.77.0.4/24")...)
	if code != 1 || !strings.Contains(out, "served through AF_XDP by another process") {
		t.Errorf("a second server: exit %d\n%s", code, out)
	}
	w.bytesByXDP(t, slice4)
	s.stop(t)
}

// testXDPOther has a program of somebody else's on the interface first: it stays, and its name is
// told. Packet sockets work beside it.
func testXDPOther(t *testing.T, w *world) {
	other := w.must(t, rig.Request{Op: "start", Argv: []string{"/bin/xdp.test"},
		Env: []string{"XDP_TEST_CHILD=program", "XDP_TEST_DEVICE=eth0"}}).ID
	eventually(t, func() string { return "the program: " + w.output(t, other) },
		func() bool { return strings.Contains(w.output(t, other), "attached") })
	out, code := w.try(t, xdpArgs(sliceArgs()...)...)
	if code != 1 || !strings.Contains(out, `"somebody_elses", and can have one`) {
		t.Errorf("a server: exit %d\n%s", code, out)
	}
	s := w.serveOn(t, "eth0", sliceArgs("--backend", "packet")...)
	w.bytesByXDP(t, slice4)
	s.stop(t)
	w.must(t, rig.Request{Op: "stop", Job: other, Signal: int(unix.SIGKILL), Timeout: patience})
	w.serveXDP(t, sliceArgs()...).stop(t) // within a second, in which the kernel takes it away
}

// testXDPRemoved removes the device under a server, which goes on when the interface is back: by
// packet sockets, as the new interface takes VLAN tags out.
func testXDPRemoved(t *testing.T, w *world) {
	s := w.serveXDP(t, sliceArgs()...)
	pciRemoval.leave(t, w)
	pciRemoval.back(t, w)
	w.appeared(t)
	w.bytesByXDP(t, slice4)
	contains(t, w.output(t, s.job), "the device is back",
		"frames come by packet sockets, not AF_XDP")
	s.stop(t)
}

// xdpDriver is a driver other than mlx5's that has zero copy, with the device that QEMU has for it.
type xdpDriver struct {
	name, device string
	netdevs      string // pattern of their directories
}

var xdpDrivers = []xdpDriver{
	{"virtio_net", "virtio-net-pci,iommu_platform=on,disable-legacy=on",
		"/sys/bus/virtio/drivers/virtio_net/virtio*/net/*"},
	{"igb", "igb", "/sys/bus/pci/drivers/igb/*/net/*"},
}

func (d xdpDriver) row() string { return "AF_XDP on " + d.name }

// xdpDriverRows are the rows of the table.
func xdpDriverRows() (rows []check) {
	for _, d := range xdpDrivers {
		rows = append(rows, check{name: d.row()})
	}
	return rows
}

// xdpDriverKernel is the kernel under which both have zero copy: virtio_net from 6.13, igb from
// 6.14.
const xdpDriverKernel = "7.2"

// xdpSet names the guest's modules of these drivers.
const xdpSet = "xdp"

// testXDPDrivers serves through AF_XDP on a second netdev of the machine, one after the other.
func testXDPDrivers(t *testing.T, ctx context.Context, p *machineParts, version string,
	tab *table) {
	if os.Getenv("VM") == "" || version != xdpDriverKernel {
		return // make test-vm has it
	}
	for _, d := range xdpDrivers {
		tab.run(t, version, d.row(), functionTime, func(t *testing.T) {
			parts := *p
			parts.second = func(w *world, p *machineParts, m *rig.Machine) {
				need.That(w, "packages", p.cache.AddModules(w.ctx, w.kernel, xdpSet, "virtio_pci",
					"virtio_net", "igb"))
				w.addSecond(m)
				m.StandbyDevice = d.device
			}
			w := boot(t, ctx, &parts, version, simnic.Config{Seed: 1}, pcie.Config{})
			w.testXDPDriver(t, d)
			w.cleanLog(t)
		})
	}
}

func (w *world) testXDPDriver(t *testing.T, d xdpDriver) {
	t.Helper()
	w.must(t, rig.Request{Op: "load", Path: xdpSet, Timeout: patience})
	var name string
	eventually(t, func() string { return "a netdev of " + d.name }, func() bool {
		path := w.must(t, rig.Request{Op: "glob", Path: d.netdevs}).Output
		name = filepath.Base(path)
		return path != ""
	})
	w.run(t, "ip", "link", "set", "lo", "up")
	w.run(t, "ip", "link", "set", name, "up")
	w.run(t, "ethtool", "-K", name, "rxvlan", "off")
	for _, send := range []string{"sockets", "rings"} {
		s := &server{w, w.start(t, append([]string{"rdma-netstack", "serve", "http",
			"--debug-endpoints", "--device", name, "--backend", "xdp", "--log-level", "info",
			"--xdp-send", send}, sliceArgs()...)...)}
		eventually(t, func() string { return "rdma-netstack says: " + w.output(t, s.job) },
			func() bool { return strings.Contains(w.output(t, s.job), "try: ") })
		contains(t, w.output(t, s.job), fmt.Sprintf("%s is a %s: served through AF_XDP in zero "+
			"copy", name, d.name))
		w.bytesByXDP(t, slice4, slice6)
		contains(t, w.run(t, "rdma-netstack", "status", "stats"), "rx0_frames: ")
		s.stop(t)
	}
}
