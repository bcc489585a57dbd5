package sim

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// shared is a socket that each process of an upgraded host has one of, for a program that sees the
// host only: what comes to any of them comes out of it.
type shared[T any] struct {
	at   netip.AddrPort
	came chan T
	over chan struct{} // closed by close
	once sync.Once

	mu     sync.Mutex
	closed bool    // guarded by mu
	inner  []inner // guarded by mu
}

// inner is the socket of a process.
type inner struct {
	of *process
	io.Closer
}

func newShared[T any](at netip.AddrPort) *shared[T] {
	return &shared[T]{at: at, came: make(chan T), over: make(chan struct{})}
}

// add adds the socket of a process, from which read reads until it fails.
func (s *shared[T]) add(p *process, c io.Closer, read func() (T, error), drop func(T)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		c.Close()
		return
	}
	s.inner = append(s.inner, inner{p, c})
	go func() {
		for {
			v, err := read()
			if err != nil {
				return
			}
			select {
			case s.came <- v:
			case <-s.over:
				drop(v)
			}
		}
	}()
}

// remove closes the socket of a process.
func (s *shared[T]) remove(p *process) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.inner, func(c inner) bool { return c.of == p })
	if i < 0 {
		return nil
	}
	c := s.inner[i]
	s.inner = slices.Delete(s.inner, i, i+1)
	return c.Close()
}

// Close closes them all.
func (s *shared[T]) Close() error {
	s.once.Do(func() { close(s.over) })
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, c := range s.inner {
		errs = append(errs, c.Close())
	}
	s.closed, s.inner = true, nil
	return errors.Join(errs...)
}

// next waits for what comes.
func (s *shared[T]) next() (v T, err error) {
	select {
	case v = <-s.came:
		return v, nil
	case <-s.over:
		return v, net.ErrClosed
	}
}

// sharedListener is the listeners of all processes.
type sharedListener struct{ *shared[net.Conn] }

// serve has a process listen, too.
func (l sharedListener) serve(p *process) error {
	inner, err := p.stack.Listen("tcp", l.at.String())
	if err == nil {
		l.add(p, inner, inner.Accept, func(c net.Conn) { c.Close() })
	}
	return err
}

// Accept implements net.Listener.
func (l sharedListener) Accept() (net.Conn, error) { return l.next() }

// Addr implements net.Listener.
func (l sharedListener) Addr() net.Addr { return net.TCPAddrFromAddrPort(l.at) }

// datagram is one that came.
type datagram struct {
	data []byte
	from net.Addr
}

// sharedPackets are the UDP sockets of all processes.
type sharedPackets struct {
	*shared[datagram]
	host *upgradedHost
}

func (c sharedPackets) serve(p *process) error {
	inner, err := p.stack.ListenPacket("udp", c.at.String())
	if err != nil {
		return err
	}
	c.add(p, inner, func() (datagram, error) {
		buf := make([]byte, maxQuestion+1)
		n, from, err := inner.ReadFrom(buf)
		return datagram{buf[:n], from}, err
	}, func(datagram) {})
	return nil
}

// ReadFrom implements net.PacketConn.
func (c sharedPackets) ReadFrom(b []byte) (int, net.Addr, error) {
	d, err := c.next()
	return copy(b, d.data), d.from, err
}

// WriteTo implements net.PacketConn: the process that gets new clients writes.
func (c sharedPackets) WriteTo(b []byte, to net.Addr) (int, error) {
	p := c.host.newest()
	c.mu.Lock()
	i := slices.IndexFunc(c.inner, func(c inner) bool { return c.of == p })
	var own net.PacketConn
	if i >= 0 {
		own = c.inner[i].Closer.(net.PacketConn)
	}
	c.mu.Unlock()
	if own == nil {
		return 0, net.ErrClosed
	}
	return own.WriteTo(b, to)
}

// LocalAddr implements net.PacketConn.
func (c sharedPackets) LocalAddr() net.Addr { return net.UDPAddrFromAddrPort(c.at) }

// SetDeadline implements net.PacketConn: there are none.
func (sharedPackets) SetDeadline(time.Time) error { return errors.ErrUnsupported }

// SetReadDeadline implements net.PacketConn: there are none.
func (sharedPackets) SetReadDeadline(time.Time) error { return errors.ErrUnsupported }

// SetWriteDeadline implements net.PacketConn: there are none.
func (sharedPackets) SetWriteDeadline(time.Time) error { return errors.ErrUnsupported }
