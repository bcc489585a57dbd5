package slice

import (
	"context"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// ListenLocal listens where a test of net/http wants to: on loopback, for tests only. It listens on
// the server's slice, whose clients use DialLocal, so that all traffic crosses two NICs and the
// wire between them. The listener and its connections report the requested address, for which
// certificates are issued. The last result is false if the kernel should listen.
func ListenLocal(network, address string) (net.Listener, error, bool) {
	if !strings.HasPrefix(network, "tcp") {
		return nil, nil, false
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, nil, false
	}
	ln, err := shared().Server.Listen(network, net.JoinHostPort(there(host), port))
	if err != nil {
		return nil, err, true
	}
	asked, err := netip.ParseAddr(host)
	if err != nil || !asked.IsLoopback() {
		return ln, nil, true
	}
	return &listener{ln, asked}, nil, true
}

// DialLocal connects to a listener of ListenLocal, from the other slice. The trace of ctx has been
// called already.
func DialLocal(ctx context.Context, network, address string) (net.Conn, error, bool) {
	to, err := netip.ParseAddrPort(address)
	if err != nil || !strings.HasPrefix(network, "tcp") || !to.Addr().IsLoopback() {
		return nil, nil, false
	}
	c, err := shared().Client.DialContext(untraced{ctx}, network,
		net.JoinHostPort(there(to.Addr().String()), port(to)))
	if err != nil {
		return nil, err, true
	}
	return loopback(c, to.Addr()), nil, true
}

func port(a netip.AddrPort) string { return strconv.Itoa(int(a.Port())) }

// untraced is a context without its values, such as httptrace's.
type untraced struct{ context.Context }

func (untraced) Value(any) any { return nil }

// there is the server's address for a loopback one; other addresses are unchanged.
func there(host string) string {
	a, err := netip.ParseAddr(host)
	switch {
	case host == "localhost", err == nil && a.Is4() && a.IsLoopback():
		return Server4.String()
	case err == nil && a.IsLoopback():
		return Server6.String()
	}
	return host
}

// listener reports the loopback address that was requested.
type listener struct {
	net.Listener
	asked netip.Addr
}

func (l *listener) Addr() net.Addr { return at(l.Listener.Addr(), l.asked) }

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return loopback(c, l.asked), nil
}

// conn reports that both its ends are on loopback.
type conn struct {
	*stack.TCPConn
	local, remote net.Addr
}

func loopback(c net.Conn, ip netip.Addr) net.Conn {
	return &conn{c.(*stack.TCPConn), at(c.LocalAddr(), ip), at(c.RemoteAddr(), ip)}
}

func (c *conn) LocalAddr() net.Addr  { return c.local }
func (c *conn) RemoteAddr() net.Addr { return c.remote }

// at is an address of a TCP socket with another IP address.
func at(a net.Addr, ip netip.Addr) net.Addr {
	return &net.TCPAddr{IP: ip.AsSlice(), Port: a.(*net.TCPAddr).Port}
}
