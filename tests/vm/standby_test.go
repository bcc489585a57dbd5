//go:build linux

package vm

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/vm/rig"
)

// A second way from the guest to the network outside, which a hypervisor offers beside a VF: a
// virtio netdev that the guest's net_failover pairs with the NIC's, as both have the same MAC.
//
//	guest                                  host, namespace "outside"
//	eth0 (mlx5e) ── simnic ─── TAP wire0 ─┐
//	                                      ├─ bridge 10.77.0.1: clients
//	virtio netdev ─ QEMU ───── TAP wire1 ─┘

const (
	bridgeName  = "br0"
	standbyName = "wire1"
	standbySet  = "standby" // the guest's modules
)

// addStandby makes the bridge, puts the NIC's wire into it, and gives the machine its second
// netdev.
func (w *world) addStandby(p *machineParts, m *rig.Machine) {
	w.Helper()
	need.That(w, "packages", p.cache.AddModules(w.ctx, w.kernel, standbySet, "virtio_pci",
		"virtio_net"))
	w.addSecond(m)
	m.StandbyMAC = w.nic.MAC()
}

// addSecond makes the bridge and the machine's second netdev, with a MAC of its own.
func (w *world) addSecond(m *rig.Machine) {
	w.Helper()
	err := w.outside.Do(func() (err error) {
		if m.Standby, err = openTAP(standbyName); err != nil {
			return err
		}
		return bridge("wire0", standbyName)
	})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { m.Standby.Close() })
}

// pairStandby has the guest's kernel find the virtio netdev, which pairs it with the NIC's below a
// third, and takes all three up.
func (w *world) pairStandby(t *testing.T) {
	t.Helper()
	w.must(t, rig.Request{Op: "load", Path: standbySet, Timeout: patience})
	var found string
	eventually(t, func() string { return "a netdev above eth0" }, func() bool {
		found = w.must(t, rig.Request{Op: "glob", Path: "/sys/class/net/*/lower_eth0"}).Output
		return found != ""
	})
	w.run(t, "ip", "link", "set", filepath.Base(filepath.Dir(found)), "up")
}

// openTAP makes a TAP for another process, whose frames have a virtio_net_hdr.
func openTAP(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	f := os.NewFile(uintptr(fd), name)
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return f, err
	}
	ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
		return f, fmt.Errorf("make TAP %s: %w", name, err)
	}
	return f, lab.Up(name, lab.Setup{})
}

// bridge joins interfaces, and takes the addresses outside from the first.
func bridge(ports ...string) error {
	if err := netlink.LinkAdd(&netlink.Bridge{
		LinkAttrs: netlink.LinkAttrs{Name: bridgeName}}); err != nil {
		return fmt.Errorf("make bridge: %w", err)
	}
	master, err := netlink.LinkByName(bridgeName)
	if err != nil {
		return err
	}
	for _, name := range ports {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		for _, a := range []netip.Prefix{outside4, outside6} {
			_ = netlink.AddrDel(link, &netlink.Addr{IPNet: ipNet(a)}) // not of every port
		}
		if err := netlink.LinkSetMaster(link, master); err != nil {
			return fmt.Errorf("put %s into the bridge: %w", name, err)
		}
	}
	return lab.Up(bridgeName, lab.Setup{Addresses: []netip.Prefix{outside4, outside6}})
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
