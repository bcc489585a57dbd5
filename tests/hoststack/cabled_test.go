package hoststack

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/tests/need"
	"github.com/rdma-netstack/rdma-netstack/tests/netpair"
)

// cabledWorld is two kernels on a cable: two network namespaces with the addresses of the two stacks. Loopback, where server
// and client are one host and every address is that host's, cannot show what depends on the link.
func cabledWorld(t *testing.T) *world {
	need.NetNS(t)
	w := pairWorld("kernel")
	server, client := newHost(t, "server"), newHost(t, "client")
	if err := lab.Cable(server, cable, client, cable); err != nil {
		t.Fatal(err)
	}
	up(t, server, netip.PrefixFrom(w.server4, 24), netip.PrefixFrom(w.alias4, 24), netip.PrefixFrom(w.server6, 64))
	up(t, client, netip.PrefixFrom(w.client4, 24), netip.PrefixFrom(w.client6, 64))
	w.server, w.client = inside{server}, inside{client}
	return w
}

// cable is the name of its ends.
const cable = "cable"

// pairWorld is a world with the addresses of tests/netpair, and nobody who has them.
func pairWorld(name string) *world {
	w := &world{
		name:    name,
		server4: netpair.ServerIP4, client4: netpair.ClientIP4,
		server6: netpair.ServerIP6, client6: netpair.ClientIP6,
		alias4: netip.MustParseAddr("192.0.2.3"),
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

// up gives a host's end of the cable its addresses.
func up(t *testing.T, n *lab.Net, addrs ...netip.Prefix) {
	t.Helper()
	if err := n.Do(func() error { return lab.Up(cable, lab.Setup{Addresses: addrs}) }); err != nil {
		t.Fatal(err)
	}
}

// inside opens the sockets of a network namespace. Where they are, they stay.
type inside struct{ n *lab.Net }

// enter runs open on a thread of the namespace.
func enter[T any](i inside, open func() (T, error)) (c T, _ error) {
	err := i.n.Do(func() (err error) {
		c, err = open()
		return err
	})
	return c, err
}

func (i inside) Listen(network, address string) (net.Listener, error) {
	return enter(i, func() (net.Listener, error) { return kernel{}.Listen(network, address) })
}

func (i inside) ListenTCP(network string, laddr *net.TCPAddr) (tcpListener, error) {
	return enter(i, func() (tcpListener, error) { return kernel{}.ListenTCP(network, laddr) })
}

func (i inside) ListenPacket(network, address string) (net.PacketConn, error) {
	return enter(i, func() (net.PacketConn, error) { return kernel{}.ListenPacket(network, address) })
}

func (i inside) ListenUDP(network string, laddr *net.UDPAddr) (udpConn, error) {
	return enter(i, func() (udpConn, error) { return kernel{}.ListenUDP(network, laddr) })
}

func (i inside) ListenShared(network, address string) (net.Listener, error) {
	return enter(i, func() (net.Listener, error) { return kernel{}.ListenShared(network, address) })
}

func (i inside) ListenPacketShared(network, address string) (net.PacketConn, error) {
	return enter(i, func() (net.PacketConn, error) { return kernel{}.ListenPacketShared(network, address) })
}

func (i inside) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return i.DialFrom(ctx, nil, 0, network, address)
}

func (i inside) DialFrom(ctx context.Context, local net.Addr, timeout time.Duration, network, address string) (net.Conn, error) {
	d := net.Dialer{LocalAddr: local, Timeout: timeout, FallbackDelay: -1} // one after the other, on this thread
	return enter(i, func() (net.Conn, error) { return d.DialContext(ctx, network, address) })
}

func (i inside) DialTCP(network string, laddr, raddr *net.TCPAddr) (tcpConn, error) {
	return enter(i, func() (tcpConn, error) { return kernel{}.DialTCP(network, laddr, raddr) })
}

func (i inside) DialUDP(network string, laddr, raddr *net.UDPAddr) (udpConn, error) {
	return enter(i, func() (udpConn, error) { return kernel{}.DialUDP(network, laddr, raddr) })
}
