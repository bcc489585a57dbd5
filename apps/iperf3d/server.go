package iperf3d

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
)

// Config says how to serve. The zero value is ready.
type Config struct {
	Logger *slog.Logger // gets errors of tests; nil logs nothing
	Clock  clock.Clock  // of the listeners' deadlines; the zero value is the system's
}

// Server answers iperf3 clients. All methods may be called from any goroutine.
type Server struct {
	log    *slog.Logger
	clock  clock.Clock
	ctx    context.Context
	cancel context.CancelFunc

	mu        sync.Mutex
	listeners map[io.Closer]bool
	current   *session // the current test
	udp       *udpPort
	work      sync.WaitGroup
}

// New makes a server; Shutdown or Close ends it.
func New(cfg Config) *Server {
	s := &Server{log: cfg.Logger, clock: cfg.Clock, listeners: map[io.Closer]bool{}}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// ServeUDP reads the datagrams of UDP tests from pc, which has the same port as the listener, until
// Shutdown or Close, and then returns nil. It closes pc. Call it once, before the first UDP test.
func (s *Server) ServeUDP(pc net.PacketConn) error {
	if !s.trackCloser(pc) {
		return pc.Close()
	}
	u := &udpPort{conn: pc, streams: map[string]*udpFlow{}}
	s.mu.Lock()
	s.udp = u
	s.mu.Unlock()
	return s.unlessClosed(u.serveDatagrams())
}

// Serve accepts control and data connections from ln until Shutdown or Close, and then returns nil.
// It closes ln.
func (s *Server) Serve(ln net.Listener) error {
	if !s.trackCloser(ln) {
		return ln.Close()
	}
	for at := uint64(0); ; {
		c, err := ln.Accept()
		if err != nil {
			return s.unlessClosed(err)
		}
		at++
		s.work.Go(func() { s.readCookie(c, at) })
	}
}

// trackCloser records what Shutdown must close; false: it is too late.
func (s *Server) trackCloser(c io.Closer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return false
	}
	s.listeners[c] = true
	return true
}

func (s *Server) unlessClosed(err error) error {
	if s.ctx.Err() != nil {
		return nil
	}
	return err
}

// readCookie reads the cookie of a connection that arrived as number at: the current test gets its
// data connections, the first connection with a new cookie starts a test, and others are told that
// the server is busy.
func (s *Server) readCookie(c net.Conn, at uint64) {
	var k cookie
	c.SetDeadline(s.clock.Now().Add(stepTime))
	if _, err := io.ReadFull(c, k[:]); err != nil {
		c.Close()
		return
	}
	c.SetDeadline(time.Time{})
	cur, mine := s.admitConn(c, k)
	switch {
	case mine:
		s.runTest(cur)
	case cur == nil:
		writeState(c, accessDenied)
		c.Close()
	default:
		cur.offerArrival(
			arrival{
				at:     at,
				stream: func(p *params) *stream { return tcpStream(c, p, s.clock) },
				close:  func() { c.Close() },
			},
		)
	}
}

// runTest runs a test and makes room for the next.
func (s *Server) runTest(t *session) {
	err := t.conductTest()
	t.cancel(nil)
	s.mu.Lock()
	s.current = nil
	s.mu.Unlock()
	close(t.over)
	if err != nil && s.ctx.Err() == nil {
		s.log.Warn("iperf3 test failed", "client", t.ctl.RemoteAddr(), "error", err)
	}
}

// Shutdown closes the listeners and ends the current test; the client is told. It waits for all
// goroutines, at most until ctx ends.
func (s *Server) Shutdown(ctx context.Context) error {
	s.cancel()
	s.mu.Lock()
	var err error
	for l := range s.listeners {
		if e := l.Close(); !errors.Is(e, net.ErrClosed) {
			err = errors.Join(err, e)
		}
	}
	clear(s.listeners)
	s.mu.Unlock()
	done := make(chan struct{})
	go func() { s.work.Wait(); close(done) }()
	select {
	case <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close does what Shutdown does, without a limit.
func (s *Server) Close() error { return s.Shutdown(context.Background()) }
