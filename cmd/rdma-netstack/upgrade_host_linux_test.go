package main

import (
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/apps/dnsd"
	"github.com/rdma-netstack/rdma-netstack/apps/httpd"
	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/card"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// hostRings is a card whose netdev is eth0 of a host, which has the servers' addresses, and another
// host at the end of the card's cable.
func hostRings(t *testing.T) (c *hostCard, client *lab.Net) {
	t.Helper()
	need.NetNS(t)
	need.TUN(t)
	var nets [2]*lab.Net
	for i, name := range []string{"server", "client"} {
		n, err := lab.New(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { n.Close() })
		nets[i] = n
	}
	mac := net.HardwareAddr{2, 0, 0x5e, 0, 0x53, 0x10}
	c = &hostCard{net: nets[0]}
	var nic *simnic.NIC
	err := lab.Cable(nets[0], "port0", nets[1], "veth0")
	if err == nil {
		err = nets[1].Do(func() error {
			return lab.Up("veth0", lab.Setup{Addresses: []netip.Prefix{
				netip.MustParsePrefix("192.0.2.1/24")}})
		})
	}
	if err == nil {
		err = nets[0].Do(func() (err error) {
			if err = card.Netdev("eth0", "port0", mac); err != nil {
				return err
			}
			if err = lab.Up("eth0", lab.Setup{MAC: mac, Addresses: []netip.Prefix{
				netip.MustParsePrefix("192.0.2.10/24"),
				netip.MustParsePrefix("192.0.2.11/24")}}); err != nil {
				return err
			}
			nic, c.config, err = card.Open("eth0", "port0", mac)
			return err
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nic.Close() })
	return c, nets[1]
}

// TestUpgradeHostRings is TestUpgrade on the host's own address, from the rings of its netdev's
// device.
func TestUpgradeHostRings(t *testing.T) {
	c, client := hostRings(t)
	testUpgrade(t, upgradeWorld{&ringServer{t: t, host: c, serve: serveWeb},
		&ringServer{t: t, host: c, serve: namesOf(zoneFile(t))}, []*lab.Net{client, c.net}})
}

// TestDrainRingsToKernel is the same on rings, whose stack is closed while Linux serves.
func TestDrainRingsToKernel(t *testing.T) {
	zone := zoneFile(t)
	for name, c := range map[string]struct {
		serve   servedBy
		toLinux onLinux
		start   func(*testing.T, *lab.Net, *lab.Net) (*upgradeClients, func())
	}{
		"HTTP": {serveWeb, (&httpFlags{Config: httpd.Config{DebugEndpoints: true,
			MinRate: httpd.DefaultMinRate}}).onLinux, startUpgradeClients},
		"DNS": {namesOf(zone), answersOnLinux(dnsd.Config{ResponseRate: -1,
			Zones: []dnsd.Zone{{File: zone}}}), startAskers},
	} {
		t.Run(name, func(t *testing.T) {
			host, client := hostRings(t)
			r := &ringServer{t: t, host: host, serve: c.serve, toLinux: c.toLinux}
			r.next()
			r.drainsToKernel(c.start(t, client, host.net))
		})
	}
}

// drainsToKernel has the server end while clients are at work, and Linux serve them from then on.
func (r *ringServer) drainsToKernel(c *upgradeClients, stop func()) {
	r.t.Helper()
	c.atWork(640)
	r.stop()
	select {
	case <-r.stack.Done():
	case <-time.After(stepTime):
		r.t.Fatal("the stack does not end")
	}
	c.atWork(640)
	stop()
	c.running.Wait()
	if r.resets != 0 {
		r.t.Errorf("the kernel has sent %d RSTs for connections that it does not have", r.resets)
	}
	r.t.Logf("%d requests and queries, %d transfers", c.atWorkSoFar(), c.transfers.Load())
	// the second signal, which the server waits for
	if err := unix.Kill(os.Getpid(), unix.SIGTERM); err != nil {
		r.t.Fatal(err)
	}
	r.wait(r.t)
	if r.t.Failed() || !strings.Contains(r.log.String(), "drained: no connection was cut") {
		r.t.Errorf("the server: %s", &r.log)
	}
}
