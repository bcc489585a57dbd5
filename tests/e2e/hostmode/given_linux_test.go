package hostmode

import (
	"os"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
)

// givenEnv has the tests that run on both kinds of links run on a card of the machine, whose netdev
// is eth0. It names another netdev that is on the same network: that is where the clients outside
// are. A virtual machine has such.
const givenEnv = "HOSTMODE_GIVEN"

// newGivenWorld has the card's netdev stay where it is, and the other go to the namespace outside,
// as its eth0, until the test ends.
func newGivenWorld(t testing.TB, far string) *world {
	t.Helper()
	host, err := lab.Own("host")
	must(t, err)
	t.Cleanup(func() { host.Close() })
	w := &world{host: host, outside: newNet(t, "outside"), rings: true, given: true,
		netdev: "eth0"}
	w.moveLink(t, w.host, far, w.outside, "eth0")
	t.Cleanup(func() {
		w.moveLink(t, w.outside, "eth0", w.host, far)
		must(t, w.host.Do(func() error {
			bridge, err := netlink.LinkByName("br0")
			if err != nil {
				return err
			}
			return netlink.LinkDel(bridge)
		}))
	})
	w.connect(t)
	return w
}

// moveLink moves a netdev to another namespace and gives it a name there, which is free in both.
func (w *world) moveLink(t testing.TB, from *lab.Net, name string, to *lab.Net, as string) {
	t.Helper()
	const between = "moving0"
	rename := func(from, to string) error {
		link, err := netlink.LinkByName(from)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetDown(link); err != nil {
			return err
		}
		return netlink.LinkSetName(link, to)
	}
	must(t, from.Do(func() error {
		if err := rename(name, between); err != nil {
			return err
		}
		link, err := netlink.LinkByName(between)
		if err != nil {
			return err
		}
		ns, err := os.Open(to.Path())
		if err != nil {
			return err
		}
		defer ns.Close()
		return netlink.LinkSetNsFd(link, int(ns.Fd()))
	}))
	must(t, to.Do(func() error { return rename(between, as) }))
}
