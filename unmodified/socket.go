//go:build linux

package unmodified

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// Socket has the methods of net.RDMASocket, which is in package net of programs that are built by
// rdma-netstack build only.
type Socket interface {
	Close() error
	SetDeadline(time.Time) error
	SetReadDeadline(time.Time) error
	SetWriteDeadline(time.Time) error
	LocalAddr() net.Addr
	RemoteAddr() net.Addr
	Control(func(fd uintptr)) error
	RawRead(func(fd uintptr) bool) error
	RawWrite(func(fd uintptr) bool) error
	File() (*os.File, error)
	SetOption(level, name, value int) error
	SetLinger(sec int) error
	JoinGroup(ifi *net.Interface, group net.IP) error

	Read([]byte) (int, error)
	Write([]byte) (int, error)
	CloseRead() error
	CloseWrite() error
	ReadFrom(io.Reader) (int64, error)
	WriteTo(io.Writer) (int64, error)
	WriteBuffers([][]byte) (int64, error)

	Accept() (any, *net.TCPConn, error)

	ReadAddr([]byte) (int, netip.AddrPort, error)
	WriteAddr([]byte, netip.AddrPort) (int, error)
	ReadMsg(b, oob []byte, flags int) (n, oobn, retflags int, from netip.AddrPort, err error)
	WriteMsg(b, oob []byte, to netip.AddrPort) (n, oobn int, err error)
}

// bareError takes the error out of the *net.OpError that package stack returns: package net makes
// its own.
func bareError(err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	if op, ok := err.(*net.OpError); ok {
		return op.Err
	}
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

// maker makes one socket of the slice.
type maker struct {
	p       *Program
	st      *stack.Stack
	ctx     context.Context
	q       request
	standIn *standIn
}

// makeSocket listens, dials or binds. A socket of the kernel's is counted as one.
func (m *maker) makeSocket(local, remote net.Addr) (Socket, net.Conn, error) {
	switch m.q.kind() {
	case tcpListener:
		s, err := m.listenTCP(local)
		return s, nil, bareError(err)
	case tcpDialed:
		s, c, err := m.dialTCP(local, remote)
		return s, c, bareError(err)
	}
	s, err := m.openUDP(local, remote)
	return s, nil, bareError(err)
}

func (m *maker) listenConfig() *stack.ListenConfig {
	lc := m.st.ListenConfig()
	lc.ReusePort = m.standIn.reusesPort()
	lc.KeepAlive = -1 // package net sets it on each connection
	return lc
}

func (m *maker) listenTCP(local net.Addr) (Socket, error) {
	t, err := m.listenConfig().Listen(m.ctx, m.q.network, addressText(local))
	if err != nil {
		return nil, err
	}
	m.p.counts[tcpListener][slice].Add(1)
	l := &sharedListener{owners: owners{n: 1}, p: m.p, l: t.(*stack.TCPListener),
		got: make(chan acceptedConn), done: make(chan struct{})}
	if m.servesLocalhost() {
		l.listenLocally(m.ctx, m.q.network, m.standIn)
	}
	return newListenSocket(m.standIn, l), nil
}

// servesLocalhost reports whether a socket that is bound to any address is to be on localhost as
// well. With Config.Host package stack sees to it.
func (m *maker) servesLocalhost() bool {
	a := m.q.local.Addr()
	return !m.q.dials && !m.p.cfg.Stack.Host && !m.p.cfg.NoLocalhost &&
		(!a.IsValid() || a.IsUnspecified()) && m.q.local.Port() != 0
}

// logMissing logs that a socket on any address is not on localhost.
func (p *Program) logMissing(at string, err error) {
	if errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT) {
		return // no IPv6 on this host
	}
	p.log.Warn("rdma-netstack: the program is not on localhost", "address", at, "reason", err,
		"instead", Prefix+"LOCALHOST=false says that it need not be")
}

// localAddresses returns those of localhost that a network reaches.
func localAddresses(network string, port int) (all []string) {
	for _, a := range []string{"127.0.0.1", "::1"} {
		if strings.HasSuffix(network, "4") && a == "::1" ||
			strings.HasSuffix(network, "6") && a != "::1" {
			continue
		}
		all = append(all, net.JoinHostPort(a, strconv.Itoa(port)))
	}
	return all
}

func (m *maker) dialTCP(local, remote net.Addr) (Socket, net.Conn, error) {
	d := m.st.Dialer()
	d.KeepAlive = -1 // package net sets it
	d.LocalAddr, d.ReusePort = local, m.standIn.reusesPort()
	c, err := d.DialContext(m.ctx, m.q.network, remote.String())
	if err != nil {
		return nil, nil, unreachable(err)
	}
	t, ok := c.(*stack.TCPConn)
	if !ok {
		return nil, c, m.p.leave(m.q, "not by this interface")
	}
	m.p.counts[tcpDialed][slice].Add(1)
	s := newTCPSocket(t, m.standIn)
	return s, nil, m.standIn.bindTo(s)
}

func (m *maker) openUDP(local, remote net.Addr) (Socket, error) {
	c, err := m.openUDPConn(local, remote)
	if err != nil {
		return nil, err
	}
	m.p.counts[udpSocket][slice].Add(1)
	u := newSharedUDP(m.p, c)
	if m.servesLocalhost() {
		u.bindLocally(m.ctx, m.q.network, m.standIn)
	}
	s := newUDPSocket(u, m.standIn, m.p.cfg.Stack.NIC.Device)
	return s, m.standIn.bindTo(s)
}

func (m *maker) openUDPConn(local, remote net.Addr) (*stack.UDPConn, error) {
	if remote != nil {
		d := m.st.Dialer()
		d.LocalAddr, d.ReusePort = local, m.standIn.reusesPort()
		c, err := d.DialContext(m.ctx, m.q.network, remote.String())
		if err != nil {
			return nil, unreachable(err)
		}
		u, ok := c.(*stack.UDPConn)
		if !ok { // the kernel would be asked before the stack is
			c.Close()
			return nil, os.NewSyscallError("connect", syscall.ENETUNREACH)
		}
		return u, nil
	}
	c, err := m.listenConfig().ListenPacket(m.ctx, m.q.network, addressText(local))
	if err != nil {
		return nil, err
	}
	return c.(*stack.UDPConn), nil
}

// unreachable makes ENETUNREACH, as the kernel returns, of addresses of another family than the
// network's.
func unreachable(err error) error {
	if _, ok := errors.AsType[*net.AddrError](err); ok {
		return os.NewSyscallError("connect", syscall.ENETUNREACH)
	}
	return err
}

func addressText(a net.Addr) string {
	if a == nil {
		return ":0"
	}
	return a.String()
}

// noSocket refuses what a kind of socket does not have.
type noSocket struct{}

func (noSocket) Read([]byte) (int, error)                      { return 0, syscall.ENOTCONN }
func (noSocket) Write([]byte) (int, error)                     { return 0, syscall.ENOTCONN }
func (noSocket) CloseRead() error                              { return syscall.ENOTCONN }
func (noSocket) CloseWrite() error                             { return syscall.ENOTCONN }
func (noSocket) ReadFrom(io.Reader) (int64, error)             { return 0, syscall.ENOTCONN }
func (noSocket) WriteTo(io.Writer) (int64, error)              { return 0, syscall.ENOTCONN }
func (noSocket) WriteBuffers([][]byte) (int64, error)          { return 0, syscall.ENOTCONN }
func (noSocket) Accept() (any, *net.TCPConn, error)            { return nil, nil, syscall.EINVAL }
func (noSocket) WriteAddr([]byte, netip.AddrPort) (int, error) { return 0, syscall.EINVAL }
func (noSocket) JoinGroup(*net.Interface, net.IP) error        { return syscall.EINVAL }
func (noSocket) SetLinger(int) error                           { return nil }
func (noSocket) File() (*os.File, error)                       { return nil, errNoDescriptor }
func (noSocket) RawRead(func(uintptr) bool) error              { return errNoDescriptor }
func (noSocket) RawWrite(func(uintptr) bool) error             { return errNoDescriptor }

func (noSocket) ReadAddr([]byte) (int, netip.AddrPort, error) {
	return 0, netip.AddrPort{}, syscall.EINVAL
}

func (noSocket) ReadMsg(_, _ []byte, _ int) (int, int, int, netip.AddrPort, error) {
	return 0, 0, 0, netip.AddrPort{}, syscall.EINVAL
}

func (noSocket) WriteMsg(_, _ []byte, _ netip.AddrPort) (int, int, error) {
	return 0, 0, syscall.EINVAL
}
