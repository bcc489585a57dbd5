package sim

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/rdma-netstack/rdma-netstack/internal/backing"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

// kernelSockets implements stack.HostSockets.
type kernelSockets struct{ *kernelModel }

// Open implements stack.HostSockets.
func (k kernelSockets) Open(p backing.Protocol, at netip.AddrPort) (stack.HostSocket, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	key := socketKey{p, netip.AddrPortFrom(at.Addr().WithZone(""), at.Port())}
	switch {
	case !k.held:
		return nil, net.ErrClosed
	case k.sockets[key] != nil:
		return nil, os.NewSyscallError("bind", unix.EADDRINUSE)
	case !at.Addr().IsLoopback() && !slices.ContainsFunc(k.addrs, func(p netip.Prefix) bool {
		return p.Addr() == key.at.Addr()
	}):
		return nil, os.NewSyscallError("bind", unix.EADDRNOTAVAIL)
	}
	s := &kernelSocket{of: k.kernelModel, key: key}
	k.sockets[key] = s
	return s, nil
}

// Adopt implements stack.HostSockets. No process hands over here.
func (k kernelSockets) Adopt(backing.Protocol, netip.AddrPort, int) stack.HostSocket { return nil }

// SetDevice implements stack.HostSockets.
func (k kernelSockets) SetDevice(d backing.Device) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.device = d
}

// Refused implements stack.HostSockets.
func (k kernelSockets) Refused() error {
	if k.own {
		return unix.EPERM
	}
	return nil
}

// Own implements stack.HostSockets.
func (k kernelSockets) Own() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.own {
		return len(k.sockets)
	}
	return 0
}

// Close implements stack.HostSockets.
func (k kernelSockets) Close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.held = false
	return nil
}

// kernelSocket represents the kernel's socket of a port.
type kernelSocket struct {
	of  *kernelModel
	key socketKey

	// Guarded by of.mu.
	serving bool
	closed  bool
	users   int            // of Listener and Conn that are open
	device  backing.Device // whose packets do not pass, if the filter is the socket's own
}

// serve makes the socket pass what does not come by the device. What is returned ends with the
// caller's Close.
func (s *kernelSocket) serve() (*kernelEnd, error) {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	if s.closed {
		return nil, net.ErrClosed
	}
	s.serving, s.device = true, s.of.device
	s.users++
	return &kernelEnd{of: s, ended: make(chan struct{}), due: make(chan struct{})}, nil
}

// Listener implements stack.HostSocket.
func (s *kernelSocket) Listener(int) (stack.HostAcceptor, error) {
	if s.key.protocol != backing.TCP {
		return nil, errors.New("a listener of UDP")
	}
	end, err := s.serve()
	if err != nil {
		return nil, err
	}
	return kernelAcceptor{end}, nil
}

// Conn implements stack.HostSocket.
func (s *kernelSocket) Conn() (stack.HostDatagrams, error) {
	if s.key.protocol != backing.UDP {
		return nil, errors.New("datagrams of TCP")
	}
	end, err := s.serve()
	if err != nil {
		return nil, err
	}
	return kernelDatagrams{end}, nil
}

// Silence implements stack.HostSocket.
func (s *kernelSocket) Silence() error {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.serving = false
	return nil
}

// Close implements stack.HostSocket.
func (s *kernelSocket) Close() error {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	if s.closed {
		return nil
	}
	if s.users > 0 {
		s.of.fail(errors.New("a socket of the kernel is closed whose listener is open"))
	}
	s.closed = true
	delete(s.of.sockets, s.key)
	return nil
}

// FollowDevice implements stack.HostSocket.
func (s *kernelSocket) FollowDevice() error {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	if s.serving {
		s.device = s.of.device
	}
	return nil
}

// passes reports whether the socket passes what comes by the device with a number. of.mu is held.
func (s *kernelSocket) passes(index int) bool {
	d := s.of.device
	if s.of.own {
		d = s.device
	}
	return s.serving && d.Index != index && (d.Last == 0 || index <= d.Last)
}

func (s *kernelSocket) Refuse() error                     { return nil }
func (s *kernelSocket) PassAllBut([]netip.AddrPort) error { return errors.ErrUnsupported }
func (s *kernelSocket) PassNone() error                   { return errors.ErrUnsupported }
func (s *kernelSocket) Waiting() int                      { return 0 }
func (s *kernelSocket) Duplicate() (int, error)           { return -1, errors.ErrUnsupported }

// kernelEnd represents a listener or conn of a socket, to which nobody comes.
type kernelEnd struct {
	of    *kernelSocket
	once  sync.Once
	ended chan struct{} // closed by Close

	mu  sync.Mutex
	due chan struct{} // closed when a deadline has passed; guarded by mu
}

// wait returns when the end is closed, or its deadline passes.
func (e *kernelEnd) wait() error {
	e.mu.Lock()
	due := e.due
	e.mu.Unlock()
	select {
	case <-e.ended:
		return net.ErrClosed
	case <-due:
		return os.ErrDeadlineExceeded
	}
}

// setDeadline knows two times: one long past, and none.
func (e *kernelEnd) setDeadline(t time.Time) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if t.IsZero() {
		e.due = make(chan struct{})
	} else {
		close(e.due)
	}
	return nil
}

func (e *kernelEnd) Close() error {
	e.once.Do(func() {
		close(e.ended)
		e.of.of.mu.Lock()
		defer e.of.of.mu.Unlock()
		e.of.users--
	})
	return nil
}

// kernelAcceptor implements stack.HostAcceptor.
type kernelAcceptor struct{ *kernelEnd }

func (a kernelAcceptor) AcceptTCP() (*net.TCPConn, error) { return nil, a.wait() }
func (a kernelAcceptor) SetDeadline(t time.Time) error    { return a.setDeadline(t) }

// kernelDatagrams implements stack.HostDatagrams.
type kernelDatagrams struct{ *kernelEnd }

func (d kernelDatagrams) Receive([]byte, []byte) (int, int, netip.AddrPort, error) {
	return 0, 0, netip.AddrPort{}, d.wait()
}

func (d kernelDatagrams) Send([]byte, []byte, netip.AddrPort) error {
	return os.NewSyscallError("sendmsg", unix.ENETUNREACH)
}

func (d kernelDatagrams) SetReadDeadline(t time.Time) error { return d.setDeadline(t) }

// isFragment reports whether a frame is a fragment of an IP packet.
func isFragment(f []byte) bool {
	ip := f[header.EthernetMinimumSize:]
	switch header.Ethernet(f).Type() {
	case header.IPv4ProtocolNumber:
		return len(ip) >= header.IPv4MinimumSize &&
			(header.IPv4(ip).More() || header.IPv4(ip).FragmentOffset() != 0)
	case header.IPv6ProtocolNumber:
		return len(ip) >= header.IPv6MinimumSize &&
			header.IPv6(ip).NextHeader() == uint8(header.IPv6FragmentExtHdrIdentifier)
	}
	return false
}

// destinationOf returns the port that a frame is for; tells is false if it has none, or is damaged
// so that it tells none.
func destinationOf(f []byte) (to socketKey, tells bool) {
	protocol, at, ok := transportOf(f)
	if !ok || isFragment(f) {
		return to, false
	}
	ip := f[header.EthernetMinimumSize:]
	dst, _ := netip.AddrFromSlice(ip[16:20])
	if ip[0]>>4 == header.IPv6Version {
		dst, _ = netip.AddrFromSlice(ip[24:40])
	}
	port := uint16(f[at+2])<<8 | uint16(f[at+3])
	return socketKey{protocol, netip.AddrPortFrom(dst, port)}, true
}

// transportOf returns the protocol of a frame's IP packet, if that is TCP or UDP, and where its
// header begins.
func transportOf(f []byte) (p backing.Protocol, at int, ok bool) {
	if len(f) < header.EthernetMinimumSize {
		return 0, 0, false
	}
	ip, proto := f[header.EthernetMinimumSize:], uint8(0)
	switch header.Ethernet(f).Type() {
	case header.IPv4ProtocolNumber:
		if len(ip) < header.IPv4MinimumSize {
			return 0, 0, false
		}
		proto, at = header.IPv4(ip).Protocol(), int(header.IPv4(ip).HeaderLength())
	case header.IPv6ProtocolNumber:
		if len(ip) < header.IPv6MinimumSize {
			return 0, 0, false
		}
		proto, at = header.IPv6(ip).NextHeader(), header.IPv6MinimumSize
	}
	const ports = 4
	if at == 0 || len(ip) < at+ports {
		return 0, 0, false
	}
	at += header.EthernetMinimumSize
	switch proto {
	case uint8(header.TCPProtocolNumber):
		return backing.TCP, at, true
	case uint8(header.UDPProtocolNumber):
		return backing.UDP, at, true
	}
	return 0, 0, false
}
