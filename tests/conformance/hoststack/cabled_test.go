//go:build linux

package hoststack

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/netpair"
)

// cabledWorld is two kernels on a cable: two network namespaces with the addresses of the two
// stacks. Loopback cannot show what depends on the link: server and client are one host, which has
// every address.
func cabledWorld(t *testing.T) *world {
	return worldOn(t, func(server, client *lab.Net) (string, error) {
		return cable, lab.Cable(server, cable, client, cable)
	})
}

// worldOn is cabledWorld on what lay lays, which says at which interface of the client frames are
// seen.
func worldOn(t *testing.T, lay func(server, client *lab.Net) (seen string, err error)) *world {
	need.NetNS(t)
	w := pairWorld("kernel")
	server, client := newHost(t, "server"), newHost(t, "client")
	seen, err := lay(server, client)
	if err != nil {
		t.Fatal(err)
	}
	must(t, client.Do(func() error {
		ports := fmt.Sprintf("%d %d", firstClientPort, lastClientPort)
		return os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte(ports), 0o644)
	}))
	connect(t, server, client)
	address(t, server, netip.PrefixFrom(w.server4, 24), netip.PrefixFrom(w.alias4, 24),
		netip.PrefixFrom(w.server6, 64))
	address(t, client, netip.PrefixFrom(w.client4, 24), netip.PrefixFrom(w.client6, 64))
	w.server, w.client = inside{server, kernel{}}, inside{client, kernel{}}
	w.sent.listen(t, client, seen)
	return w
}

// cable is the name of the cable's ends.
const cable = "cable"

// firstClientPort and lastClientPort bound the ephemeral ports of a client that is a host of its
// own. The server's are others, so that notes name no port of the client's as the server's.
const firstClientPort, lastClientPort = 10000, 19999

// pairWorld is a world with the addresses of tests/lib/netpair, which no host has yet.
func pairWorld(name string) *world {
	w := &world{
		name:    name,
		server4: netpair.ServerIP4, client4: netpair.ClientIP4,
		server6: netpair.ServerIP6, client6: netpair.ClientIP6,
		alias4: netip.MustParseAddr("192.0.2.3"),
		sent:   newOnCable(),
	}
	w.roles = roles(w)
	return w
}

func newHost(t *testing.T, name string) *lab.Net {
	t.Helper()
	n, err := lab.New(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	return n
}

// connect sets both ends of the cable up and waits until they send: a kernel drops all frames until
// it has noticed that the other end is up.
func connect(t *testing.T, hosts ...*lab.Net) {
	t.Helper()
	for _, n := range hosts {
		if err := n.Do(func() error { return lab.Up(cable, lab.Setup{}) }); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range hosts {
		await(t, n, "carrier", func(link netlink.Link) (bool,
			error) {
			return link.Attrs().OperState == netlink.OperUp, nil
		})
	}
}

// await calls ready on a thread of n until it returns true.
func await(t *testing.T, n *lab.Net, what string, ready func(netlink.Link) (bool, error)) {
	t.Helper()
	for end := soon(); ; time.Sleep(time.Millisecond) {
		is := false
		err := n.Do(func() error {
			link, err := netlink.LinkByName(cable)
			if err == nil {
				is, err = ready(link)
			}
			return err
		})
		switch {
		case err != nil:
			t.Fatal(err)
		case is:
			return
		case time.Now().After(end):
			t.Fatalf("%s: no %s", n.Name(), what)
		}
	}
}

// address gives a host's end of the cable its addresses, and a route to the groups of IPv4, which
// Linux does not add by itself.
func address(t *testing.T, n *lab.Net, addrs ...netip.Prefix) {
	t.Helper()
	err := n.Do(func() error {
		if err := lab.Up(cable, lab.Setup{Addresses: addrs}); err != nil {
			return err
		}
		link, err := netlink.LinkByName(cable)
		if err != nil {
			return err
		}
		groups := net.IPNet{IP: net.IPv4(224, 0, 0, 0), Mask: net.CIDRMask(4, 32)}
		return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index,
			Scope: netlink.SCOPE_LINK, Dst: &groups})
	})
	if err != nil {
		t.Fatal(err)
	}
	await(t, n, "addresses in use", func(link netlink.Link) (bool, error) {
		list, err := netlink.AddrList(link, netlink.FAMILY_V6)
		tentative := func(a netlink.Addr) bool { return a.Flags&unix.IFA_F_TENTATIVE != 0 }
		// including the link-local address
		return len(list) >= 2 && !slices.ContainsFunc(list, tentative), err
	})
}

// inside opens sockets in a network namespace. A socket stays in the namespace where it was opened,
// and a stack on the host's address asks the kernel on the thread that calls it.
type inside struct {
	n       *lab.Net
	sockets // the kernel's, or those of a stack on its addresses
}

// enter runs open on a thread of the namespace.
func enter[T any](i inside, open func() (T, error)) (c T, _ error) {
	err := i.n.Do(func() (err error) {
		c, err = open()
		return err
	})
	return c, err
}

func (i inside) Listen(network, address string) (net.Listener, error) {
	return enter(i, func() (net.Listener, error) { return i.sockets.Listen(network, address) })
}

func (i inside) ListenTCP(network string, laddr *net.TCPAddr) (tcpListener, error) {
	return enter(i, func() (tcpListener, error) { return i.sockets.ListenTCP(network, laddr) })
}

func (i inside) ListenPacket(network, address string) (net.PacketConn, error) {
	return enter(i, func() (net.PacketConn, error) {
		return i.sockets.ListenPacket(network, address)
	})
}

func (i inside) ListenUDP(network string, laddr *net.UDPAddr) (udpConn, error) {
	return enter(i, func() (udpConn, error) { return i.sockets.ListenUDP(network, laddr) })
}

func (i inside) ListenMulticastUDP(network string, group *net.UDPAddr) (udpConn, error) {
	return enter(i, func() (udpConn, error) { return i.sockets.ListenMulticastUDP(network, group) })
}

func (i inside) ListenShared(network, address string) (net.Listener, error) {
	return enter(i, func() (net.Listener, error) {
		return i.sockets.ListenShared(network, address)
	})
}

func (i inside) ListenPacketShared(network, address string) (net.PacketConn, error) {
	return enter(i, func() (net.PacketConn, error) {
		return i.sockets.ListenPacketShared(network, address)
	})
}

func (i inside) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return i.DialFrom(ctx, nil, 0, network, address)
}

func (i inside) DialFrom(ctx context.Context, local net.Addr, timeout time.Duration,
	network, address string) (net.Conn, error) {
	return enter(i, func() (net.Conn, error) {
		// a negative FallbackDelay: one after the other, on this thread
		if ours, ok := i.sockets.(netstack); ok {
			d := ours.Dialer()
			d.LocalAddr, d.Timeout, d.FallbackDelay = local, timeout, -1
			return d.DialContext(ctx, network, address)
		}
		d := net.Dialer{LocalAddr: local, Timeout: timeout, FallbackDelay: -1}
		return d.DialContext(ctx, network, address)
	})
}

func (i inside) DialShared(ctx context.Context, local net.Addr, network,
	address string) (net.Conn, error) {
	return enter(i, func() (net.Conn, error) {
		return i.sockets.DialShared(ctx, local, network, address)
	})
}

func (i inside) DialerTCP(ctx context.Context, network string,
	laddr, raddr netip.AddrPort) (tcpConn, error) {
	return enter(i, func() (tcpConn, error) {
		return i.sockets.DialerTCP(ctx, network, laddr, raddr)
	})
}

func (i inside) DialerUDP(ctx context.Context, network string,
	laddr, raddr netip.AddrPort) (udpConn, error) {
	return enter(i, func() (udpConn, error) {
		return i.sockets.DialerUDP(ctx, network, laddr, raddr)
	})
}

func (i inside) DialTCP(network string, laddr, raddr *net.TCPAddr) (tcpConn, error) {
	return enter(i, func() (tcpConn, error) { return i.sockets.DialTCP(network, laddr, raddr) })
}

func (i inside) DialUDP(network string, laddr, raddr *net.UDPAddr) (udpConn, error) {
	return enter(i, func() (udpConn, error) { return i.sockets.DialUDP(network, laddr, raddr) })
}
