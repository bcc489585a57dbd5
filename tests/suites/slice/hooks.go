package slice

import (
	"context"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// ListenLocal listens where a test of net/http means to: on loopback, for tests and nobody else. It
// is the server's slice, whose clients are DialLocal's, so that all traffic crosses two NICs and
// the wire between them. The listener says that it has the address asked for, which certificates
// are made out for, and so do connections. The last result is false for what is the kernel's.
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

// DialLocal reaches what ListenLocal made, from the other slice. The trace of ctx has been called
// already.
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

// there is the server's address for a loopback one; others are as they were.
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

// listener is one that was asked to be on a loopback address.
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

// conn is a connection that says that both its ends are on loopback.
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
