package packet

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func runTool(name string, args ...string) error {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %q: %w: %s", name, args, err, out)
	}
	return nil
}

// TestRefusals requires one sentence that says what to do, and no descriptor left open.
func TestRefusals(t *testing.T) {
	w := newWorld(t)
	files := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		return len(list)
	}
	before := files()
	for _, tt := range []struct {
		name  string
		cfg   Config
		want  string
		is    error
		setup func(netlink.Link) error
	}{
		{name: "no name", want: `no interface named: set Device to one that "ip link" lists`},
		{name: "unknown", cfg: Config{Device: "eth7"}, is: unix.ENODEV,
			want: `there is no interface eth7 here: "ip link" lists those there are: no such device`},
		{name: "a long name", cfg: Config{Device: "an-interface-of-no-machine"}, is: unix.ENODEV,
			want: `there is no interface an-interface-of-no-machine here: "ip link" lists those ` +
				`there are: no such device`},
		{name: "loopback", cfg: Config{Device: "lo"},
			want: `lo is no Ethernet interface: name one that "ip link" lists as link/ether`},
		{name: "its own MAC", cfg: Config{Device: ifname, MAC: netdev},
			want: `MAC 02:00:00:00:00:01 is that of eth0 itself, and Linux would answer the ` +
				`same frames: leave it unset for a random one`},
		{name: "a group", cfg: Config{Device: ifname, MAC: net.HardwareAddr{1, 0, 0, 0, 0, 1}},
			want: `MAC 01:00:00:00:00:01 is no address of one Ethernet host: leave it unset for a ` +
				`random one`},
		{name: "queues", cfg: Config{Device: ifname, Queues: 65},
			want: `65 queues: 1 to 64 are possible`},
		{name: "VLAN", cfg: Config{Device: ifname, VLAN: 4095},
			want: `VLAN 4095: networks have numbers from 1 to 4094`},
		{name: "MTU", cfg: Config{Device: ifname, MTU: 9000},
			want: `MTU 9000: eth0 has 1500 bytes`},
		{name: "down", cfg: Config{Device: ifname}, setup: netlink.LinkSetDown, is: unix.ENETDOWN,
			want: `netdev eth0 is down, and passes no frames: ip link set eth0 up: network is down`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.setup != nil {
				w.setLink(t, tt.setup)
			}
			err := w.ours.Do(func() error { _, err := Open(tt.cfg); return err })
			if err == nil || err.Error() != tt.want || tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
		})
	}
	if after := files(); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// TestWithoutPrivilege opens a port on a thread that has dropped its capabilities.
func TestWithoutPrivilege(t *testing.T) {
	w := newWorld(t)
	err := w.ours.Do(func() error { // the thread ends with it
		hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&hdr, &none[0]); err != nil {
			t.Errorf("capset: %v", err)
		}
		_, err := Open(Config{Device: ifname})
		return err
	})
	want := "packet sockets need CAP_NET_RAW: setcap cap_net_raw+ep on the program, " +
		"docker --cap-add " +
		"NET_RAW, or be root: operation not permitted"
	if err == nil || err.Error() != want || !errors.Is(err, os.ErrPermission) {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// TestFacts requires a port to report its interface, and a random address to be locally
// administered.
func TestFacts(t *testing.T) {
	w := newWorld(t)
	p := openIn(t, w.ours, Config{Device: ifname})
	if p.Driver() != "veth" || p.MTU() != 1500 || p.Name() != ifname || !p.LinkUp() ||
		p.NumQueues() != 1 || p.MAC()[0]&3 != 2 {
		t.Errorf("driver %q, MTU %d, name %s, up %v, %d queues, MAC %v",
			p.Driver(), p.MTU(), p.Name(),
			p.LinkUp(), p.NumQueues(), p.MAC())
	}
}

// TestAlternativeNames opens a port by names that ip link property has added, of which one is
// longer than a name may be.
func TestAlternativeNames(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"uplink", "uplink-of-the-first-card"} {
		w.setLink(t, func(l netlink.Link) error { return netlink.LinkAddAltName(l, name) })
		if p := openIn(t, w.ours, Config{Device: name}); p.Name() != ifname || !p.LinkUp() {
			t.Errorf("by %s: name %s, up %v", name, p.Name(), p.LinkUp())
		}
	}
}
