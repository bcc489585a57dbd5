package backing

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// Protocol is TCP or UDP.
type Protocol uint8

// The protocols.
const (
	TCP Protocol = iota
	UDP
)

// String is tcp or udp.
func (p Protocol) String() string {
	if p == UDP {
		return "udp"
	}
	return "tcp"
}

// fileName names Files whose sockets are this project's own, not the program's: package unmodified
// knows them by it.
const fileName = "rdma-netstack port"

// Socket is the kernel's socket of one port. Its methods may be called from any goroutine.
//
//	Open ──▶ silent ◀──────────────▶ serving ──────▶ passing ──▶ closed
//	         nothing passes   Listener, Conn;   PassAllBut: another program
//	                          Silence           serves
type Socket struct {
	protocol Protocol
	at       netip.AddrPort
	filters  *Filters

	mu      sync.Mutex
	fd      int // guarded by mu, as is what follows; -1: closed
	serving bool
	passing bool
	others  []netip.AddrPort // of PassAllBut
	owned   bool             // the filter is the socket's own, see Filters
}

// Open takes a port of the host for the calling thread's network namespace. Nothing that is sent
// to it passes until Listener or Conn. An error that is EADDRINUSE or EADDRNOTAVAIL says so.
func Open(p Protocol, at netip.AddrPort, f *Filters) (*Socket, error) {
	s := &Socket{protocol: p, at: at, filters: f}
	if err := s.open(); err != nil {
		return nil, fmt.Errorf("take port %s of %s from the kernel: %w", p, at, err)
	}
	return s, nil
}

// open makes a socket whose filter is in place before anything can come.
func (s *Socket) open() (err error) {
	family, transport := unix.AF_INET, unix.SOCK_STREAM
	if s.at.Addr().Is6() {
		family = unix.AF_INET6
	}
	if s.protocol == UDP {
		transport = unix.SOCK_DGRAM
	}
	s.fd, err = unix.Socket(family, transport|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	if err := s.prepare(); err != nil {
		return errors.Join(err, s.Close())
	}
	return nil
}

func (s *Socket) prepare() error {
	fd, p, at := s.fd, s.protocol, s.at
	if at.Addr().Is6() {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
			return os.NewSyscallError("setsockopt IPV6_V6ONLY", err)
		}
	}
	if p == UDP {
		if err := reportHeader(fd, at.Addr().Is6()); err != nil {
			return err
		}
	}
	if p == TCP { // an earlier server's connections do not keep the port
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return os.NewSyscallError("setsockopt SO_REUSEADDR", err)
		}
	}
	if err := s.attach(dropAll); err != nil {
		return err
	}
	sa, err := sockaddr(at)
	if err != nil {
		return err
	}
	if err := unix.Bind(fd, sa); err != nil {
		return os.NewSyscallError("bind", err)
	}
	if p == TCP {
		return os.NewSyscallError("listen", unix.Listen(fd, 0))
	}
	return nil
}

// reportHeader makes reads report the traffic class and the time to live of each datagram.
func reportHeader(fd int, v6 bool) error {
	level, options := unix.IPPROTO_IP, []int{unix.IP_RECVTOS, unix.IP_RECVTTL}
	if v6 {
		level, options = unix.IPPROTO_IPV6, []int{unix.IPV6_RECVTCLASS, unix.IPV6_RECVHOPLIMIT}
	}
	for _, o := range options {
		if err := unix.SetsockoptInt(fd, level, o, 1); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	return nil
}

// sockaddr is at for the kernel. A zone is a device's name or number.
func sockaddr(at netip.AddrPort) (unix.Sockaddr, error) {
	if at.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}, nil
	}
	sa := &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()}
	if zone := at.Addr().Zone(); zone != "" {
		if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
			sa.ZoneId = uint32(n)
			return sa, nil
		}
		i, err := net.InterfaceByName(zone)
		if err != nil {
			return nil, fmt.Errorf("zone of %s: %w", at, err)
		}
		sa.ZoneId = uint32(i.Index)
	}
	return sa, nil
}

// Listener has the kernel accept connections of TCP that do not come by the device, backlog of them
// at a time. The caller closes it, and then calls Silence.
func (s *Socket) Listener(backlog int) (*net.TCPListener, error) {
	var l net.Listener
	err := s.serve(func(f *os.File) (err error) {
		if err = unix.Listen(int(f.Fd()), backlog); err == nil {
			l, err = net.FileListener(f)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return l.(*net.TCPListener), nil
}

// Conn makes the kernel deliver datagrams that do not come by the device. The caller closes it, and
// then calls Silence.
func (s *Socket) Conn() (*net.UDPConn, error) {
	var c net.PacketConn
	err := s.serve(func(f *os.File) (err error) {
		c, err = net.FilePacketConn(f)
		return err
	})
	if err != nil {
		return nil, err
	}
	return c.(*net.UDPConn), nil
}

// serve changes the filter and hands a copy of the descriptor to use.
func (s *Socket) serve(use func(*os.File) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd < 0 {
		return net.ErrClosed
	}
	if !s.serving {
		s.discard() // what has come while the filter was being changed
	}
	if err := s.attachServing(); err != nil {
		return fmt.Errorf("have the kernel serve %s port %s: %w", s.protocol, s.at, err)
	}
	s.serving = true
	fd, err := unix.FcntlInt(uintptr(s.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	f := os.NewFile(uintptr(fd), fileName)
	defer f.Close()
	if err := use(f); err != nil {
		return fmt.Errorf("have the kernel serve %s port %s: %w", s.protocol, s.at, err)
	}
	return nil
}

// attach puts one of the common filters in the place of the one before. mu is held.
func (s *Socket) attach(k kind) error {
	owned, err := s.filters.attach(s.fd, k, s.owned)
	s.setOwned(owned)
	return err
}

// setOwned notes whether the filter is the socket's own. mu is held.
func (s *Socket) setOwned(owned bool) {
	switch {
	case owned && !s.owned:
		s.filters.own.Add(1)
	case !owned && s.owned:
		s.filters.own.Add(-1)
	}
	s.owned = owned
}

// attachServing gives a socket that serves its filter. mu is held.
func (s *Socket) attachServing() error {
	if s.passing {
		return s.attachOwn(s.filters.current().allBut(s.others, s.at.Addr().Is6()))
	}
	return s.attach(passOthers)
}

// attachOwn puts a filter of the socket's own in the place of the one before. mu is held.
func (s *Socket) attachOwn(program []unix.SockFilter) error {
	s.waitForTurn()
	err := attach(s.fd, program)
	s.setOwned(s.owned || err == nil)
	return err
}

// waitForTurn returns when the filter that the socket has now may be freed. mu is held.
func (s *Socket) waitForTurn() {
	if s.owned {
		s.filters.pacer.waitForTurn()
	}
}

// FollowDevice renews the filter after [Filters.SetDevice]. No packet finds the socket without one.
func (s *Socket) FollowDevice() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.fd < 0 || !s.serving && !s.passing || s.passing && len(s.others) == 0:
		return nil
	case s.passing:
		return s.attachOthers()
	}
	return s.attachServing()
}

// Silence makes the kernel drop everything that is sent to the port from now on, and discards what
// waits there: connections that it has completed and nobody has accepted are reset. After
// PassAllBut it does nothing.
func (s *Socket) Silence() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.serving
	s.serving = false
	if s.fd < 0 || s.passing {
		return nil
	}
	err := s.attach(dropAll)
	if was {
		s.discard()
	}
	return err
}

// discard resets the connections, or drops the datagrams, that wait at the socket, which is not
// blocking. Who has the port next is not to get them. mu is held.
func (s *Socket) discard() {
	for {
		err := s.discardOne()
		if err == nil || errors.Is(err, unix.ECONNABORTED) || errors.Is(err, unix.EINTR) {
			continue
		}
		return // EAGAIN: there are no more
	}
}

func (s *Socket) discardOne() error {
	if s.protocol == UDP {
		_, _, err := unix.Recvfrom(s.fd, nil, 0)
		return err
	}
	fd, _, err := unix.Accept4(s.fd, unix.SOCK_CLOEXEC)
	if err == nil {
		_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		_ = unix.Close(fd)
	}
	return err
}

// Refuse has the kernel begin no connection any more. Handshakes that have begun end, and
// connections that wait can be accepted.
func (s *Socket) Refuse() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd < 0 || s.passing {
		return nil
	}
	return s.attach(passBegun)
}

// Addr returns the port.
func (s *Socket) Addr() netip.AddrPort { return s.at }

// Close gives the port back to the kernel. Listener and Conn keep it for as long as they are open.
func (s *Socket) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd < 0 {
		return nil
	}
	s.waitForTurn()
	fd := s.fd
	s.fd = -1
	s.setOwned(false)
	return os.NewSyscallError("close", unix.Close(fd))
}

// LimitRate lets the kernel send on a connection at most so many bytes per second, headers included
// (SO_MAX_PACING_RATE of socket(7), of 64 bits since Linux 4.20).
func LimitRate(c *net.TCPConn, bytesPerSecond uint64) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = os.NewSyscallError("setsockopt", unix.SetsockoptUint64(int(fd), unix.SOL_SOCKET,
			unix.SO_MAX_PACING_RATE, bytesPerSecond))
	})
	return errors.Join(err, failed)
}
