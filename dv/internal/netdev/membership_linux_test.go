package netdev

import (
	"errors"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// inNamespace gives the test a network namespace of its own with a veth pair in it.
func inNamespace(t *testing.T) (name string) {
	t.Helper()
	need.NetNS(t)
	runtime.LockOSThread() // and no Unlock: the thread ends with the test, and its namespace
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "port"},
		PeerName: "peer"}); err != nil {
		need.That(t, "veth", err)
	}
	link, err := netlink.LinkByName("port")
	if err == nil {
		err = netlink.LinkSetUp(link)
	}
	if err != nil {
		t.Fatal(err)
	}
	return "port"
}

// lists is what the kernel says that the netdev receives: groups, and whether it is promiscuous,
// which a veth is for any further unicast address.
func lists(t *testing.T, name string) (groups string, promisc bool) {
	t.Helper()
	b, err := os.ReadFile("/proc/thread-self/net/dev_mcast")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 5 && f[1] == name {
			groups += f[4] + " "
		}
	}
	link, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return groups, link.Attrs().Promisc > 0
}

func TestMembership(t *testing.T) {
	name := inNamespace(t)
	m, err := OpenMembership(name)
	if err != nil {
		t.Fatal(err)
	}
	own, group := net.HardwareAddr{2, 0, 0, 0, 0, 7}, net.HardwareAddr{0x33, 0x33, 0xff, 0, 0, 3}
	for _, step := range []struct {
		name       string
		do         func() error
		err        error
		group, own bool
	}{
		{"nothing", func() error { return nil }, nil, false, false},
		{"group", func() error { return m.Add(group) }, nil, true, false},
		{"MAC", func() error { return m.Add(own) }, nil, true, true},
		{"all groups", func() error { return m.Add(nil) }, nil, true, true},
		{"without all groups", func() error { return m.Remove(nil) }, nil, true, true},
		{"without the group", func() error { return m.Remove(group) }, nil, false, true},
		{"again", func() error { return m.Remove(group) }, nil, false, true},
		{"9 bytes", func() error { return m.Add(make(net.HardwareAddr, 9)) },
			unix.EINVAL, false, true},
		{"group again", func() error { return m.Add(group) }, nil, true, true},
		{"closed", m.Close, nil, false, false},
		{"closed again", m.Close, nil, false, false},
		{"closed for good", func() error { return m.Add(group) }, net.ErrClosed, false, false},
	} {
		if err := step.do(); !errors.Is(err, step.err) {
			t.Errorf("%s: %v, want %v", step.name, err, step.err)
		}
		groups, promisc := lists(t, name)
		if strings.Contains(groups, "3333ff000003") != step.group || promisc != step.own {
			t.Errorf("%s: groups %q, promiscuous %v", step.name, groups, promisc)
		}
	}
	if _, err := OpenMembership("no such netdev"); err == nil {
		t.Error("a netdev that does not exist has a list")
	}
}

// An alternative name, also one that is longer than a name may be, is resolved.
func TestAlternativeNames(t *testing.T) {
	link, err := netlink.LinkByName(inNamespace(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"uplink", "uplink-of-the-first-card"} {
		if err := netlink.LinkAddAltName(link, name); err != nil {
			t.Fatal(err)
		}
		if i, err := ByName(name); err != nil || i.Name != "port" {
			t.Errorf("by %s: %+v, %v", name, i, err)
		}
		if m, err := OpenMembership(name); err != nil {
			t.Errorf("list by %s: %v", name, err)
		} else if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
}
