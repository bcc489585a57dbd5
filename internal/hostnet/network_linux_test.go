package hostnet

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestNetwork reads a configuration, asks for ways, and is told of changes.
func TestNetwork(t *testing.T) {
	need.NetNS(t)
	host, err := lab.New("host")
	must(t, err)
	defer host.Close()
	peer, err := lab.New("peer")
	must(t, err)
	defer peer.Close()
	must(t, lab.Cable(host, "eth0", peer, "eth0"))
	must(t, peer.Do(func() error { return lab.Up("eth0", lab.Setup{}) }))
	a4, a6 := netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("2001:db8::1/64")
	var w *Watcher
	var k *Kernel
	var link netlink.Link
	must(t, host.Do(func() (err error) {
		if err := lab.Up("eth0", lab.Setup{Addresses: []netip.Prefix{a4, a6}}); err != nil {
			return err
		}
		if link, err = netlink.LinkByName("eth0"); err != nil {
			return err
		}
		for _, metric := range []int{100, 50} { // of one destination the lowest counts
			if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index,
				Gw:       netip.AddrFrom4([4]byte{192, 0, 2, byte(metric)}).AsSlice(),
				Priority: metric, MTU: 1400}); err != nil {
				return err
			}
		}
		if k, err = Open(); err != nil {
			return err
		}
		w, err = Watch()
		return err
	}))
	defer w.Close()
	defer k.Close()
	must(t, host.Do(func() error {
		n, err := k.Read("eth0")
		if err != nil {
			return err
		}
		if n.Index != link.Attrs().Index || n.MTU != 1500 || !n.Up ||
			!slices.Contains(n.Addresses, a4) || !slices.Contains(n.Addresses, a6) {
			t.Errorf("%+v", n)
		}
		for _, want := range []Route{
			{Destination: netip.MustParsePrefix("0.0.0.0/0"),
				Gateway: netip.MustParseAddr("192.0.2.50"), MTU: 1400},
			{Destination: a4.Masked()}, {Destination: a6.Masked()},
		} {
			if !slices.Contains(n.Routes, want) {
				t.Errorf("%+v is not among %+v", want, n.Routes)
			}
		}
		for to, want := range map[string]Way{
			"192.0.2.9":   {Index: n.Index, Source: a4.Addr()},
			"203.0.113.1": {Index: n.Index, Source: a4.Addr()},
			"192.0.2.1":   {Local: true, Index: 1, Source: a4.Addr()},
			"2001:db8::9": {Index: n.Index, Source: a6.Addr()},
		} {
			if got, err := k.WayTo(netip.MustParseAddr(to)); err != nil || got != want {
				t.Errorf("to %s: %+v, %v; want %+v", to, got, err, want)
			}
		}
		if got, err := k.WayTo(netip.MustParseAddr("2001:db8:9::1")); err == nil {
			t.Errorf("without a route: %+v", got)
		}
		if _, err := k.Read("eth7"); err == nil {
			t.Error("a device that is not there was read")
		}
		gone, err := netlink.ParseAddr(a4.String())
		if err != nil {
			return err
		}
		return netlink.AddrDel(link, gone)
	}))
	select {
	case <-w.Changed():
	case <-time.After(20 * time.Second):
		t.Error("nothing was told")
	}
	must(t, w.Close())
}
