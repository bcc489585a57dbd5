//go:build linux

package unmodified

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// sharedListener joins a listener of the slice and those of the kernel on localhost. It is open
// until the last of its tcpListenSockets is closed.
type sharedListener struct {
	owners
	p       *Program
	l       *stack.TCPListener
	local   []net.Listener    // the kernel's on localhost
	got     chan acceptedConn // what is accepted anywhere, once pumped
	done    chan struct{}     // closed with the last owner
	pumped  atomic.Bool       // goroutines accept
	pumping sync.Once
}

// tcpListenSocket wraps a listener of the program: the first, or one made of the File of another.
type tcpListenSocket struct {
	noSocket
	*standIn
	shared *sharedListener
	limit  deadline
	closed chan struct{}
	once   sync.Once
}

type acceptedConn struct {
	c   net.Conn
	err error
}

var _ Socket = (*tcpListenSocket)(nil)

func newListenSocket(s *standIn, l *sharedListener) *tcpListenSocket {
	t := &tcpListenSocket{standIn: s, shared: l, closed: make(chan struct{})}
	t.limit.init()
	return t
}

// listenLocally listens on localhost as well, by the kernel. A port that is taken there is another
// program's, and stays so.
func (l *sharedListener) listenLocally(ctx context.Context, network string, s *standIn) {
	for _, at := range localAddresses(network, l.l.Addr().(*net.TCPAddr).Port) {
		lc := net.ListenConfig{Control: s.controlLocal}
		k, err := lc.Listen(ctx, "tcp", at)
		if err != nil {
			l.p.logMissing(at, err)
			continue
		}
		l.p.counts[tcpListener][kernel].Add(1)
		l.local = append(l.local, k)
	}
	if len(l.local) > 0 {
		l.pump()
	}
}

// pump has goroutines accept, so that Accept can wait for several listeners and each owner can stop
// waiting alone.
func (l *sharedListener) pump() {
	l.pumping.Do(func() {
		l.pumped.Store(true)
		l.wake()
		for _, k := range l.local {
			go l.acceptFrom(k)
		}
		go l.acceptFrom(l.l)
	})
}

// wake makes each Accept of l.l end, those of other owners begin anew.
func (l *sharedListener) wake() {
	_ = l.l.SetDeadline(time.Now())
	_ = l.l.SetDeadline(time.Time{})
}

// acceptFrom hands connections of one listener to Accept until that listener ends.
func (l *sharedListener) acceptFrom(k net.Listener) {
	for {
		c, err := k.Accept()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			continue // see wake
		}
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

func (l *sharedListener) close() error {
	close(l.done)
	for _, k := range l.local {
		k.Close()
	}
	l.p.closeFiles(&l.owners)
	return bareError(l.l.Close())
}

// Accept returns the next connection: a *tcpSocket, or the kernel's.
func (l *tcpListenSocket) Accept() (any, *net.TCPConn, error) {
	c, err := l.acceptNext()
	if err != nil {
		return nil, nil, bareError(err)
	}
	p := l.shared.p
	if k, ok := c.(*net.TCPConn); ok {
		p.counts[tcpAccepted][kernel].Add(1)
		return nil, k, nil
	}
	p.counts[tcpAccepted][slice].Add(1)
	s := newTCPSocket(c.(*stack.TCPConn), &standIn{device: l.device, family: l.family, kind: l.kind,
		kept: l.kept, fd: -1})
	_ = s.bindTo(s) // nothing is set yet
	l.inherit(s.setSockOption)
	return s, nil, nil
}

func (l *tcpListenSocket) acceptNext() (net.Conn, error) {
	for !l.shared.pumped.Load() {
		c, err := l.shared.l.Accept()
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return c, err
		}
		if _, err := l.limit.expired(); err != nil {
			return nil, err
		}
	}
	for {
		expired, err := l.limit.expired()
		if err != nil {
			return nil, err
		}
		select {
		case <-l.closed: // even if a connection waits
			return nil, net.ErrClosed
		default:
		}
		select {
		case a := <-l.shared.got:
			return a.c, a.err
		case <-l.closed:
			return nil, net.ErrClosed
		case <-expired:
		}
	}
}

// Close closes the listeners if this is the last socket that has them.
func (l *tcpListenSocket) Close() (err error) {
	err = net.ErrClosed
	l.once.Do(func() {
		close(l.closed)
		if err = nil; !l.shared.leave() {
			l.shared.wake()
			return
		}
		l.closeDescriptor()
		err = l.shared.close()
	})
	return err
}

// File returns a file of which net.FileListener makes another listener in this process.
func (l *tcpListenSocket) File() (*os.File, error) {
	return l.shared.p.openFile(&l.shared.owners, func() Socket {
		l.shared.pump()
		return newListenSocket(l.standIn, l.shared)
	})
}

// SetDeadline sets when Accept fails with os.ErrDeadlineExceeded.
func (l *tcpListenSocket) SetDeadline(t time.Time) error {
	l.limit.set(t)
	if l.shared.pumped.Load() {
		return nil
	}
	return bareError(l.shared.l.SetDeadline(t))
}

func (l *tcpListenSocket) SetReadDeadline(t time.Time) error { return l.SetDeadline(t) }
func (*tcpListenSocket) SetWriteDeadline(time.Time) error    { return nil }
func (l *tcpListenSocket) LocalAddr() net.Addr               { return l.shared.l.Addr() }
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

// buffers64K holds those of WriteBuffers, RawRead and RawWrite.
var buffers64K = sync.Pool{New: func() any { return new([joinedSize]byte) }}

// WriteBuffers sends buffers in order, and as one write the small ones among them.
func (c *tcpSocket) WriteBuffers(buffers [][]byte) (n int64, err error) {
	space := buffers64K.Get().(*[joinedSize]byte)
	defer buffers64K.Put(space)
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

// currentOptions returns the options of the slice's connection.
func (c *tcpSocket) currentOptions() map[sockOption]int {
	s := c.c.Settings()
	m := map[sockOption]int{
		{unix.SOL_SOCKET, unix.SO_RCVBUF}:         s.ReadBuffer,
		{unix.SOL_SOCKET, unix.SO_SNDBUF}:         s.WriteBuffer,
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE}:      intOf(s.KeepAlive.Enable),
		{unix.IPPROTO_TCP, unix.TCP_NODELAY}:      intOf(s.NoDelay),
		{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE}:     int(s.KeepAlive.Idle / time.Second),
		{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL}:    int(s.KeepAlive.Interval / time.Second),
		{unix.IPPROTO_TCP, unix.TCP_KEEPCNT}:      s.KeepAlive.Count,
		{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT}: int(s.UserTimeout / time.Millisecond),
	}
	addHeaderOptions(m, s.TrafficClass, s.TTL)
	addRate(m, s.Pacing)
	return m
}

// addRate adds the rate of a socket, 0 for none.
func addRate(m map[sockOption]int, bytesPerSecond uint64) {
	m[pacingRate] = int(bytesPerSecond)
	if bytesPerSecond == 0 {
		m[pacingRate] = noRate
	}
}

// addHeaderOptions adds those of the IP header. A TTL of 0 is the default, which the stand-in has.
func addHeaderOptions(m map[sockOption]int, class, ttl int) {
	m[sockOption{unix.IPPROTO_IP, unix.IP_TOS}] = class
	m[sockOption{unix.IPPROTO_IPV6, unix.IPV6_TCLASS}] = class
	if ttl > 0 {
		m[sockOption{unix.IPPROTO_IP, unix.IP_TTL}] = ttl
		m[sockOption{unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS}] = ttl
	}
}

func intOf(b bool) int {
	if b {
		return 1
	}
	return 0
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
	case pacingRate:
		return bareError(t.SetPacing(uint64(v)))
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
