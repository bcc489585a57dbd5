package stack

import (
	"net"
	"os"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/waiter"
)

// TCPConn is a TCP connection. It has the methods of net.TCPConn except SyscallConn, see the
// package comment. Its methods may be called from any goroutine; concurrent reads take turns, and
// so do concurrent writes.
type TCPConn struct {
	connState
	ep           tcpip.Endpoint
	network      string
	laddr, raddr *net.TCPAddr
	outages      uint64   // Stack.outage.count when it was made
	next, prev   *TCPConn // of openConns, whose mutex guards them

	rd, wr  ioSide
	events  waiter.Entry // of both sides
	untuned int          // bytes read since buffer tuning was last told; guarded by rd.mu

	// Bytes that netstack has taken from writes, and given to reads.
	written, received atomic.Uint64
}

var _ net.Conn = (*TCPConn)(nil)

// newTCPConn wraps a connected endpoint. laddr and raddr become the conn's and must not change.
func newTCPConn(s *Stack, ep tcpip.Endpoint, q *waiter.Queue, network string,
	laddr, raddr *net.TCPAddr, keepAlive net.KeepAliveConfig) *TCPConn {
	c := &TCPConn{ep: ep, network: network, laddr: laddr, raddr: raddr}
	c.stack, c.outages = s, s.outage.count.Load()
	register(q, &c.events, tcpEvents{c}, readEvents|writeEvents)
	c.keepAlive(keepAlive)
	s.conns.add(c)
	return c
}

// tcpEvents is told by netstack what a connection is ready for.
type tcpEvents struct{ c *TCPConn }

// NotifyEvent implements waiter.EventListener. It is called with netstack's locks held.
func (e tcpEvents) NotifyEvent(mask waiter.EventMask) {
	if mask&readEvents != 0 {
		e.c.rd.notify()
	}
	if mask&writeEvents != 0 {
		e.c.wr.notify()
	}
}

// LocalAddr is our end, also after Close. It is a *net.TCPAddr that must not be changed.
func (c *TCPConn) LocalAddr() net.Addr { return c.laddr }

// RemoteAddr is the peer's end, also after Close. It is a *net.TCPAddr that must not be changed.
func (c *TCPConn) RemoteAddr() net.Addr { return c.raddr }

// Close sends what was written and then a FIN, in the background; operations in progress fail with
// net.ErrClosed. Unread data makes it a reset, as on Linux. A peer that takes nothing, or
// little, of what is left is reset, see [TCPOptions].OrphanTimeout and [TCPConn.SetLinger].
func (c *TCPConn) Close() error {
	if c.closed.Swap(true) {
		return c.opError("close", net.ErrClosed)
	}
	c.rd.stop()
	c.wr.stop()
	linger := c.ep.SocketOptions().GetLinger()
	orphan := tcpip.TCPUserTimeoutOption(c.stack.cfg.TCP.OrphanTimeout)
	c.ep.SetSockOpt(&orphan) // answers to zero window probes do not prolong it
	c.stack.conns.remove(c)
	c.ep.Close()
	if !c.stack.orphaned(c.ep) {
		endKeepAlive(c.ep)
	}
	if linger.Enabled && linger.Timeout > 0 {
		c.linger(linger.Timeout)
	}
	return nil
}

// linger waits until the peer has acknowledged everything, at most for d.
func (c *TCPConn) linger(d time.Duration) {
	s := c.stack
	for end := s.clock.Now().Add(d); unflushed(c.ep) && s.clock.Now().Before(end); {
		if s.clock.Sleep(s.ctx, flushPoll) != nil {
			return
		}
	}
}

// CloseRead makes reads return io.EOF once what has arrived is read.
func (c *TCPConn) CloseRead() error { return c.shutdown(tcpip.ShutdownRead) }

// CloseWrite sends a FIN after the data written so far; the peer reads io.EOF.
func (c *TCPConn) CloseWrite() error { return c.shutdown(tcpip.ShutdownWrite) }

func (c *TCPConn) shutdown(how tcpip.ShutdownFlags) error {
	if err := c.done(); err != nil {
		return c.opError("close", err)
	}
	if terr := c.ep.Shutdown(how); terr != nil {
		return c.opError("close", c.orClosedErr(syscallError("shutdown", terr)))
	}
	return nil
}

// SetDeadline sets both deadlines, see net.Conn.
func (c *TCPConn) SetDeadline(t time.Time) error { return c.setDeadline(t, &c.rd, &c.wr) }

// SetReadDeadline makes reads fail with os.ErrDeadlineExceeded from t on; the zero time means
// never.
func (c *TCPConn) SetReadDeadline(t time.Time) error { return c.setDeadline(t, &c.rd) }

// SetWriteDeadline makes writes fail with os.ErrDeadlineExceeded from t on; the zero time means
// never. A Write that fails may have sent part of its bytes.
func (c *TCPConn) SetWriteDeadline(t time.Time) error { return c.setDeadline(t, &c.wr) }

func (c *TCPConn) setDeadline(t time.Time, sides ...*ioSide) error {
	if err := c.done(); err != nil {
		return &net.OpError{Op: "set", Net: c.network, Addr: c.laddr, Err: err}
	}
	for _, d := range sides {
		d.setDeadline(c.stack.clock, t)
	}
	return nil
}

// File always fails with ErrNoDescriptor.
func (c *TCPConn) File() (*os.File, error) {
	return nil, &net.OpError{Op: "file", Net: c.network, Source: c.laddr,
		Addr: c.raddr, Err: ErrNoDescriptor}
}

func (c *TCPConn) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: c.network, Source: c.laddr, Addr: c.raddr, Err: err}
}
