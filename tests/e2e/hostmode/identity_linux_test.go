package hostmode

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
)

// changeLink changes the netdev with a name in a namespace.
func changeLink(t testing.TB, n *lab.Net, name string, change func(netlink.Link) error) {
	t.Helper()
	must(t, n.Do(func() error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return change(link)
	}))
}

// neighbour is the MAC that a namespace knows an address by on eth0, and whether it takes it for a
// router's.
func neighbour(t testing.TB, n *lab.Net, ip string) (mac net.HardwareAddr, router bool) {
	t.Helper()
	changeLink(t, n, "eth0", func(link netlink.Link) error {
		list, err := netlink.NeighList(link.Attrs().Index, netlink.FAMILY_ALL)
		for _, e := range list {
			if e.IP.Equal(net.ParseIP(ip)) {
				mac, router = e.HardwareAddr, e.Flags&netlink.NTF_ROUTER != 0
			}
		}
		return err
	})
	return mac, router
}

// until waits for ok, which must come within half a minute.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not %s", what)
		}
	}
}

// TestNetdevMACChanges gives the netdev other MACs under connections: they go on, the neighbours
// are told, and who comes later is served, on both versions of IP, by TCP and UDP, and dialled.
func TestNetdevMACChanges(t *testing.T) {
	onBoth(t, func(t *testing.T, w *world) {
		s := w.start(t, "tcp :8080", "udp :5300")
		echoServer(t, w.outside, ":9100")
		must(t, w.host.Do(func() error { // its neighbours are not to forget that it is a router
			return os.WriteFile("/proc/sys/net/ipv6/conf/eth0/forwarding", []byte("1"), 0o644)
		}))
		must(t, datagrams(w.outside, hostIP, 3, 100))
		for n := range 3 {
			mac := net.HardwareAddr{2, 0, 0, 0, 0x99, byte(n)}
			sent := make(chan error, 4)
			for i := range cap(sent) { // of which some are under way
				c, err := dial(w.outside, net.JoinHostPort([]string{hostIP, hostIPv6}[i%2], "8080"))
				must(t, err)
				met, err := meet(c, "stack")
				must(t, err)
				go func() { sent <- echo(met, payload(i, 3<<20)) }()
			}
			changeLink(t, w.host, "eth0", func(l netlink.Link) error {
				return netlink.LinkSetHardwareAddr(l, mac)
			})
			for range cap(sent) {
				must(t, <-sent)
			}
			for _, ip := range []string{hostIP, hostIPv6} {
				until(t, "told where "+ip+" is", func() bool {
					now, router := neighbour(t, w.outside, ip)
					return bytes.Equal(now, mac) && router == (ip == hostIPv6)
				})
				c, err := dial(w.outside, net.JoinHostPort(ip, "8080"))
				must(t, err)
				must(t, visit(c, "stack", 3, 20000))
			}
			must(t, datagrams(w.outside, hostIP, 3, 100))
			if got := s.ok("dial " + outsideIP + ":9100 5"); got != "dialled: stack 5, kernel 0" {
				t.Error(got)
			}
			want := fmt.Sprintf("%v %d", mac, n+1)
			if got := s.ok("mac"); got != want {
				t.Errorf("MAC and changes: %q, want %q", got, want)
			}
		}
		s.stop()
	})
}

// TestNetdevRenamed renames the netdev under a server: addresses that come later are served, and
// containers that start later reach the kernel, as does who comes to a netdev with the old name.
func TestNetdevRenamed(t *testing.T) {
	onBoth(t, func(t *testing.T, w *world) {
		s := w.start(t, "tcp :8080")
		c, err := dial(w.outside, hostIP+":8080")
		must(t, err)
		met, err := meet(c, "stack")
		must(t, err)
		changeLink(t, w.host, "eth0", func(l netlink.Link) error {
			// since linux 6.2 also while it is up; down it would lose IPv6 addresses
			return netlink.LinkSetName(l, "uplink9")
		})
		late := newNet(t, "late container")
		must(t, lab.Cable(w.host, "veth2", late, "eth0"))
		must(t, lab.Cable(w.host, "eth0", late, "eth1")) // another one has the old name by now
		up(t, w.host, "veth2", "172.21.0.1/24")
		up(t, late, "eth0", "172.21.0.2/24")
		route(t, late, "eth0", "0.0.0.0/0", "172.21.0.1")
		const second = "10.9.0.7"
		up(t, w.host, "uplink9", second+"/24")
		until(t, "served on "+second, func() bool {
			c, err := dial(w.outside, second+":8080")
			return err == nil && visit(c, "stack", 1, 1000) == nil
		})
		must(t, echo(met, payload(1, 300000)))
		for n, owner := range map[*lab.Net]string{w.outside: "stack", late: "kernel",
			w.container: "kernel"} {
			c, err := dial(n, hostIP+":8080")
			must(t, err)
			must(t, visit(c, owner, 3, 20000))
		}
		if got := s.ok("netdev"); !strings.Contains(got, "uplink9") {
			t.Error(got)
		}
		s.stop()
	})
}
