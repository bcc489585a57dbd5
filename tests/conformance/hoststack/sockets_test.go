//go:build linux

package hoststack

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// tcpConn, tcpListener and udpConn have the methods that servers and libraries type-assert: those
// of net's types, except those of the descriptor.
type (
	tcpConn interface {
		net.Conn
		io.ReaderFrom
		io.WriterTo
		CloseRead() error
		CloseWrite() error
		SetNoDelay(bool) error
		SetLinger(int) error
		SetKeepAlive(bool) error
		SetKeepAlivePeriod(time.Duration) error
		SetKeepAliveConfig(net.KeepAliveConfig) error
		SetReadBuffer(int) error
		SetWriteBuffer(int) error
		MultipathTCP() (bool, error)
	}
	tcpListener interface {
		net.Listener
		SetDeadline(time.Time) error
	}
	udpConn interface {
		net.Conn
		net.PacketConn
		ReadFromUDP([]byte) (int, *net.UDPAddr, error)
		ReadFromUDPAddrPort([]byte) (int, netip.AddrPort, error)
		ReadMsgUDP(b, oob []byte) (n, oobn, flags int, addr *net.UDPAddr, err error)
		ReadMsgUDPAddrPort(b, oob []byte) (n, oobn, flags int, addr netip.AddrPort, err error)
		WriteToUDP([]byte, *net.UDPAddr) (int, error)
		WriteToUDPAddrPort([]byte, netip.AddrPort) (int, error)
		WriteMsgUDP(b, oob []byte, addr *net.UDPAddr) (n, oobn int, err error)
		WriteMsgUDPAddrPort(b, oob []byte, addr netip.AddrPort) (n, oobn int, err error)
		SetReadBuffer(int) error
		SetWriteBuffer(int) error
	}
)

var (
	_, _ tcpConn     = (*net.TCPConn)(nil), (*stack.TCPConn)(nil)
	_, _ tcpListener = (*net.TCPListener)(nil), (*stack.TCPListener)(nil)
	_, _ udpConn     = (*net.UDPConn)(nil), (*stack.UDPConn)(nil)
)

// sockets is how one host opens sockets.
type sockets interface {
	Listen(network, address string) (net.Listener, error)
	ListenTCP(network string, laddr *net.TCPAddr) (tcpListener, error)
	ListenPacket(network, address string) (net.PacketConn, error)
	ListenUDP(network string, laddr *net.UDPAddr) (udpConn, error)
	// ListenMulticastUDP leaves the choice of the interface to the host.
	ListenMulticastUDP(network string, group *net.UDPAddr) (udpConn, error)
	// ListenShared and ListenPacketShared set SO_REUSEPORT.
	ListenShared(network, address string) (net.Listener, error)
	ListenPacketShared(network, address string) (net.PacketConn, error)
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
	// DialFrom has the options of net.Dialer.
	DialFrom(ctx context.Context, local net.Addr, timeout time.Duration, network,
		address string) (net.Conn, error)
	// DialShared sets SO_REUSEPORT.
	DialShared(ctx context.Context, local net.Addr, network, address string) (net.Conn, error)
	// DialerTCP and DialerUDP are net.Dialer's.
	DialerTCP(ctx context.Context, network string, laddr, raddr netip.AddrPort) (tcpConn, error)
	DialerUDP(ctx context.Context, network string, laddr, raddr netip.AddrPort) (udpConn, error)
	DialTCP(network string, laddr, raddr *net.TCPAddr) (tcpConn, error)
	DialUDP(network string, laddr, raddr *net.UDPAddr) (udpConn, error)
}

// kernel opens the machine's own sockets.
type kernel struct{}

func (kernel) Listen(network, address string) (net.Listener, error) {
	return net.Listen(network, address)
}

func (kernel) ListenTCP(network string, laddr *net.TCPAddr) (tcpListener, error) {
	return some[tcpListener](net.ListenTCP(network, laddr))
}

func (kernel) ListenPacket(network, address string) (net.PacketConn, error) {
	return net.ListenPacket(network, address)
}

func (kernel) ListenUDP(network string, laddr *net.UDPAddr) (udpConn, error) {
	return some[udpConn](net.ListenUDP(network, laddr))
}

func (kernel) ListenMulticastUDP(network string, group *net.UDPAddr) (udpConn, error) {
	return some[udpConn](net.ListenMulticastUDP(network, nil, group))
}

// shared sets SO_REUSEPORT before bind.
var shared = net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
	broken := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd),
			unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	})
	return errors.Join(broken, err)
}}

func (kernel) ListenShared(network, address string) (net.Listener, error) {
	return shared.Listen(context.Background(), network, address)
}

func (kernel) ListenPacketShared(network, address string) (net.PacketConn, error) {
	return shared.ListenPacket(context.Background(), network, address)
}

func (kernel) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, network, address)
}

func (kernel) DialFrom(ctx context.Context, local net.Addr, timeout time.Duration,
	network, address string) (net.Conn, error) {
	return (&net.Dialer{LocalAddr: local, Timeout: timeout}).DialContext(ctx, network, address)
}

func (kernel) DialShared(ctx context.Context, local net.Addr, network,
	address string) (net.Conn, error) {
	return (&net.Dialer{LocalAddr: local, Control: shared.Control}).DialContext(ctx, network,
		address)
}

func (kernel) DialerTCP(ctx context.Context, network string,
	laddr, raddr netip.AddrPort) (tcpConn, error) {
	return some[tcpConn](new(net.Dialer).DialTCP(ctx, network, laddr, raddr))
}

func (kernel) DialerUDP(ctx context.Context, network string,
	laddr, raddr netip.AddrPort) (udpConn, error) {
	return some[udpConn](new(net.Dialer).DialUDP(ctx, network, laddr, raddr))
}

func (kernel) DialTCP(network string, laddr, raddr *net.TCPAddr) (tcpConn, error) {
	return some[tcpConn](net.DialTCP(network, laddr, raddr))
}

func (kernel) DialUDP(network string, laddr, raddr *net.UDPAddr) (udpConn, error) {
	return some[udpConn](net.DialUDP(network, laddr, raddr))
}

// netstack opens sockets of our stack.
type netstack struct{ *stack.Stack }

func (n netstack) ListenTCP(network string, laddr *net.TCPAddr) (tcpListener, error) {
	return some[tcpListener](n.Stack.ListenTCP(network, laddr))
}

func (n netstack) ListenUDP(network string, laddr *net.UDPAddr) (udpConn, error) {
	return some[udpConn](n.Stack.ListenUDP(network, laddr))
}

func (n netstack) ListenMulticastUDP(network string, group *net.UDPAddr) (udpConn, error) {
	return some[udpConn](n.Stack.ListenMulticastUDP(network, nil, group))
}

func (n netstack) ListenShared(network, address string) (net.Listener, error) {
	return n.shared().Listen(context.Background(), network, address)
}

func (n netstack) ListenPacketShared(network, address string) (net.PacketConn, error) {
	return n.shared().ListenPacket(context.Background(), network, address)
}

func (n netstack) shared() *stack.ListenConfig {
	c := n.ListenConfig()
	c.ReusePort = true
	return c
}

func (n netstack) DialFrom(ctx context.Context, local net.Addr, timeout time.Duration,
	network, address string) (net.Conn, error) {
	d := n.Stack.Dialer()
	d.LocalAddr, d.Timeout = local, timeout
	return d.DialContext(ctx, network, address)
}

func (n netstack) DialShared(ctx context.Context, local net.Addr, network,
	address string) (net.Conn, error) {
	d := n.Stack.Dialer()
	d.LocalAddr, d.ReusePort = local, true
	return d.DialContext(ctx, network, address)
}

func (n netstack) DialerTCP(ctx context.Context, network string,
	laddr, raddr netip.AddrPort) (tcpConn, error) {
	return some[tcpConn](n.Stack.Dialer().DialTCP(ctx, network, laddr, raddr))
}

func (n netstack) DialerUDP(ctx context.Context, network string,
	laddr, raddr netip.AddrPort) (udpConn, error) {
	return some[udpConn](n.Stack.Dialer().DialUDP(ctx, network, laddr, raddr))
}

func (n netstack) DialTCP(network string, laddr, raddr *net.TCPAddr) (tcpConn, error) {
	return some[tcpConn](n.Stack.DialTCP(network, laddr, raddr))
}

func (n netstack) DialUDP(network string, laddr, raddr *net.UDPAddr) (udpConn, error) {
	return some[udpConn](n.Stack.DialUDP(network, laddr, raddr))
}

// some converts a nil pointer to a nil interface.
func some[I any, P any](p P, err error) (i I, _ error) {
	if err != nil {
		return i, err
	}
	return any(p).(I), nil
}
