//go:build linux

package unmodified

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// tcpListenSocket joins a listener of the slice and those of the kernel on localhost.
type tcpListenSocket struct {
	noSocket
	*standIn
	p *Program
	l *stack.TCPListener

	// The kernel's on localhost; with one, got has what is accepted anywhere.
	local []net.Listener
	got   chan acceptedConn
	done  chan struct{} // closed by Close
	once  sync.Once
	limit deadline
}

type acceptedConn struct {
	c   net.Conn
	err error
}

var _ Socket = (*tcpListenSocket)(nil)

// listenLocally listens on localhost as well, by the kernel. A port that is taken there stays
// without: it is another program's.
func (l *tcpListenSocket) listenLocally(ctx context.Context, network string, port int) {
	for _, at := range localAddresses(network, port) {
		var lc net.ListenConfig
		if l.reusesPort() {
			lc.Control = reusePort
		}
		k, err := lc.Listen(ctx, "tcp", at)
		if err != nil {
			continue
		}
		l.p.counts[tcpListener][kernel].Add(1)
		l.local = append(l.local, k)
	}
	if len(l.local) == 0 {
		return
	}
	l.got, l.done = make(chan acceptedConn), make(chan struct{})
	l.limit.init()
	for _, k := range l.local {
		go l.acceptFrom(k)
	}
	go l.acceptFrom(l.l)
}

// acceptFrom hands connections of one listener to Accept until that listener ends.
func (l *tcpListenSocket) acceptFrom(k net.Listener) {
	for {
		c, err := k.Accept()
		select {
		case l.got <- acceptedConn{c, err}:
		case <-l.done:
			if c != nil {
				c.Close()
			}
			return
		}
	}
}

// Accept returns the next connection: a *tcpSocket, or the kernel's.
func (l *tcpListenSocket) Accept() (any, *net.TCPConn, error) {
	c, err := l.acceptNext()
	if err != nil {
		return nil, nil, bareError(err)
	}
	if k, ok := c.(*net.TCPConn); ok {
		l.p.counts[tcpAccepted][kernel].Add(1)
		return nil, k, nil
	}
	l.p.counts[tcpAccepted][slice].Add(1)
	s := newTCPSocket(c.(*stack.TCPConn), &standIn{device: l.device, family: l.family, kind: l.kind,
		fd: -1})
	_ = s.bindTo(s.setSockOption) // nothing is set yet
	l.inherit(s.setSockOption)
	return s, nil, nil
}

func (l *tcpListenSocket) acceptNext() (net.Conn, error) {
	if l.got == nil {
		return l.l.Accept()
	}
	expired, err := l.limit.expired()
	if err != nil {
		return nil, err
	}
	for {
		select {
		case a := <-l.got:
			return a.c, a.err
		case <-l.done:
			return nil, net.ErrClosed
		case <-expired:
			if expired, err = l.limit.expired(); err != nil {
				return nil, err
			}
		}
	}
}

// Close closes the listeners.
func (l *tcpListenSocket) Close() error {
	l.once.Do(func() {
		if l.done != nil {
			close(l.done)
		}
	})
	for _, k := range l.local {
		k.Close()
	}
	l.closeDescriptor()
	return bareError(l.l.Close())
}

// SetDeadline sets when Accept fails with os.ErrDeadlineExceeded.
func (l *tcpListenSocket) SetDeadline(t time.Time) error {
	if l.got != nil {
		l.limit.set(t)
		return nil
	}
	return bareError(l.l.SetDeadline(t))
}

func (l *tcpListenSocket) SetReadDeadline(t time.Time) error { return l.SetDeadline(t) }
func (*tcpListenSocket) SetWriteDeadline(time.Time) error    { return nil }
func (l *tcpListenSocket) LocalAddr() net.Addr               { return l.l.Addr() }
func (*tcpListenSocket) RemoteAddr() net.Addr                { return nil }
func (*tcpListenSocket) SetOption(_, _, _ int) error         { return nil }

// tcpSocket wraps a connection of the slice. What a program has looked at through RawRead and not
// taken is in back, from where Read takes it first.
type tcpSocket struct {
	noSocket
	*standIn
	c         *stack.TCPConn
	keepAlive atomic.Bool

	hasBack atomic.Bool
	raw     sync.Mutex // held by RawRead and RawWrite, also while the program's function runs
	back    []byte     // guarded by raw
	pair    *dataPair  // guarded by raw; nil until it is needed
	gone    atomic.Bool
}

var _ Socket = (*tcpSocket)(nil)

func newTCPSocket(c *stack.TCPConn, s *standIn) *tcpSocket { return &tcpSocket{c: c, standIn: s} }

// Close closes the connection, the stand-in and the pair. A RawRead that waits ends first.
func (c *tcpSocket) Close() error {
	c.closeDescriptor()
	err := bareError(c.c.Close())
	c.gone.Store(true)
	if c.raw.TryLock() { // else the holder closes it
		c.closePair()
		c.raw.Unlock()
	}
	return err
}

func (c *tcpSocket) closePair() {
	if c.pair != nil {
		c.pair.close()
		c.pair = nil
	}
}

func (c *tcpSocket) SetDeadline(t time.Time) error     { return bareError(c.c.SetDeadline(t)) }
func (c *tcpSocket) SetReadDeadline(t time.Time) error { return bareError(c.c.SetReadDeadline(t)) }
func (c *tcpSocket) LocalAddr() net.Addr               { return c.c.LocalAddr() }
func (c *tcpSocket) RemoteAddr() net.Addr              { return c.c.RemoteAddr() }
func (c *tcpSocket) CloseRead() error                  { return bareError(c.c.CloseRead()) }
func (c *tcpSocket) CloseWrite() error                 { return bareError(c.c.CloseWrite()) }
func (c *tcpSocket) SetLinger(sec int) error           { return bareError(c.c.SetLinger(sec)) }

// SetWriteDeadline implements Socket.
func (c *tcpSocket) SetWriteDeadline(t time.Time) error {
	return bareError(c.c.SetWriteDeadline(t))
}

// Write implements Socket.
func (c *tcpSocket) Write(b []byte) (int, error) {
	n, err := c.c.Write(b)
	return n, bareError(err)
}

// Read implements Socket.
func (c *tcpSocket) Read(b []byte) (int, error) {
	if c.hasBack.Load() && len(b) > 0 {
		if n := c.takeBack(b); n > 0 {
			return n, nil
		}
	}
	n, err := c.c.Read(b)
	return n, bareError(err)
}

// takeBack copies what RawRead has left.
func (c *tcpSocket) takeBack(b []byte) int {
	c.raw.Lock()
	defer c.unlockRaw()
	n := copy(b, c.back)
	c.back = c.back[n:]
	c.hasBack.Store(len(c.back) > 0)
	return n
}

// unlockRaw releases raw, and closes the pair of a connection that was closed meanwhile.
func (c *tcpSocket) unlockRaw() {
	if c.gone.Load() {
		c.closePair()
	}
	c.raw.Unlock()
}

// ReadFrom sends what r gives until io.EOF.
func (c *tcpSocket) ReadFrom(r io.Reader) (int64, error) { return c.c.ReadFrom(r) }

// WriteTo passes what is received to w until io.EOF.
func (c *tcpSocket) WriteTo(w io.Writer) (int64, error) {
	var before int64
	for c.hasBack.Load() {
		var b [4 << 10]byte
		n, err := w.Write(b[:c.takeBack(b[:])])
		if before += int64(n); err != nil {
			return before, err
		}
	}
	n, err := c.c.WriteTo(w)
	return before + n, err
}

const (
	joinedSize = 64 << 10 // what small buffers are joined to: netstack's largest segment
	smallSize  = 8 << 10
)

var joinBuffers = sync.Pool{New: func() any { return new([joinedSize]byte) }}

// WriteBuffers sends buffers in order, and as one write the small ones among them.
func (c *tcpSocket) WriteBuffers(buffers [][]byte) (n int64, err error) {
	space := joinBuffers.Get().(*[joinedSize]byte)
	defer joinBuffers.Put(space)
	joined := space[:0]
	write := func(b []byte) error {
		if len(b) == 0 {
			return nil
		}
		k, err := c.Write(b)
		n += int64(k)
		return err
	}
	for _, b := range buffers {
		if len(b) > smallSize || len(joined)+len(b) > joinedSize {
			if err := write(joined); err != nil {
				return n, err
			}
			joined = space[:0]
		}
		if len(b) > smallSize {
			err = write(b)
		} else {
			joined = append(joined, b...)
		}
		if err != nil {
			return n, err
		}
	}
	return n, write(joined)
}

// SetOption implements Socket.
func (c *tcpSocket) SetOption(level, name, v int) error {
	return c.setSockOption(sockOption{level, name}, v)
}

// setSockOption sets an option of the slice's connection. One that it does not have is the
// stand-in's only.
func (c *tcpSocket) setSockOption(o sockOption, v int) error {
	t := c.c
	keep := net.KeepAliveConfig{Enable: c.keepAlive.Load(), Idle: -1, Interval: -1, Count: -1}
	switch o {
	case sockOption{unix.SOL_SOCKET, unix.SO_RCVBUF}:
		return bareError(t.SetReadBuffer(v))
	case sockOption{unix.SOL_SOCKET, unix.SO_SNDBUF}:
		return bareError(t.SetWriteBuffer(v))
	case sockOption{unix.SOL_SOCKET, unix.SO_KEEPALIVE}:
		c.keepAlive.Store(v != 0)
		return bareError(t.SetKeepAlive(v != 0))
	case sockOption{unix.IPPROTO_TCP, unix.TCP_NODELAY}:
		return bareError(t.SetNoDelay(v != 0))
	case sockOption{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE}:
		keep.Idle = time.Duration(v) * time.Second
	case sockOption{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL}:
		keep.Interval = time.Duration(v) * time.Second
	case sockOption{unix.IPPROTO_TCP, unix.TCP_KEEPCNT}:
		keep.Count = v
	case sockOption{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT}:
		return bareError(t.SetUserTimeout(time.Duration(v) * time.Millisecond))
	case sockOption{unix.IPPROTO_IP, unix.IP_TOS}, sockOption{unix.IPPROTO_IPV6, unix.IPV6_TCLASS}:
		return bareError(t.SetTrafficClass(v))
	case sockOption{unix.IPPROTO_IP, unix.IP_TTL},
		sockOption{unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS}:
		return bareError(t.SetTTL(v))
	default:
		return nil
	}
	return bareError(t.SetKeepAliveConfig(keep))
}

// reusePort serves as the Control function of kernel listeners beside a shared one of the slice.
func reusePort(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	})
	if err == nil {
		err = failed
	}
	return err
}
