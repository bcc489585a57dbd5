package sim

import (
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

// meeting is where a process waits for another: a net.Listener for stack.HandOver.
type meeting struct {
	clock clock.Clock
	room  int // messages that a connection holds each way
	delay time.Duration
	conns chan net.Conn
	over  chan struct{}
	once  sync.Once

	mu    sync.Mutex
	pipes []*messagePipe // of all connections there have been; guarded by mu
}

func newMeeting(c clock.Clock, room int, delay time.Duration) *meeting {
	return &meeting{clock: c, room: room, delay: delay, conns: make(chan net.Conn),
		over: make(chan struct{})}
}

// dial connects to the process that waits, once it does.
func (m *meeting) dial() (net.Conn, error) {
	p := &messagePipe{clock: m.clock, room: m.room, delay: m.delay}
	p.changed.L = &p.mu
	select {
	case m.conns <- &messageConn{p, 0}:
		m.mu.Lock()
		defer m.mu.Unlock()
		m.pipes = append(m.pipes, p)
		return &messageConn{p, 1}, nil
	case <-m.over:
		return nil, net.ErrClosed
	}
}

// Accept implements net.Listener.
func (m *meeting) Accept() (net.Conn, error) {
	select {
	case c := <-m.conns:
		return c, nil
	case <-m.over:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (m *meeting) Close() error {
	m.once.Do(func() { close(m.over) })
	return nil
}

// die closes the ends of the process that waits, as the kernel does when it is killed.
func (m *meeting) die() {
	m.Close()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.pipes {
		(&messageConn{p, 0}).Close()
	}
}

// Addr implements net.Listener.
func (m *meeting) Addr() net.Addr { return &net.UnixAddr{Name: "meeting", Net: "unixpacket"} }

// messagePipe is a connection that keeps messages apart, as a unix socket does.
type messagePipe struct {
	clock clock.Clock
	room  int
	delay time.Duration // of each message: its reader may have to wait for a processor

	mu      sync.Mutex // covers what follows
	changed sync.Cond
	closed  [2]bool
	until   [2]time.Time // of reads; zero: for ever
	timers  [2]clock.Timer
	sent    [2][][]byte // to the end with this number
	late    [2]int      // of them, on their way
}

// messageConn is one of its ends.
type messageConn struct {
	*messagePipe
	end int
}

var _ stack.MessageConn = (*messageConn)(nil)

// Read implements net.Conn: it reads one message.
func (c *messageConn) Read(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		until := c.until[c.end]
		switch {
		case c.closed[c.end]:
			return 0, net.ErrClosed
		case !until.IsZero() && !c.clock.Now().Before(until):
			return 0, os.ErrDeadlineExceeded
		case len(c.sent[c.end]) > c.late[c.end]:
			n := copy(b, c.sent[c.end][0])
			c.sent[c.end] = c.sent[c.end][1:]
			c.changed.Broadcast()
			return n, nil
		case c.closed[1-c.end] && c.late[c.end] == 0:
			return 0, io.EOF
		}
		c.changed.Wait()
	}
}

// Write implements net.Conn.
func (c *messageConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		switch {
		case c.closed[c.end]:
			return 0, net.ErrClosed
		case c.closed[1-c.end]:
			return 0, io.ErrClosedPipe
		case len(c.sent[1-c.end]) < c.room:
			c.put(b)
			return len(b), nil
		}
		c.changed.Wait()
	}
}

// TryWrite implements stack.MessageConn.
func (c *messageConn) TryWrite(b []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed[0] || c.closed[1] || len(c.sent[1-c.end]) >= c.room {
		return false
	}
	c.put(b)
	return true
}

// put sends a message, with mu held.
func (c *messageConn) put(b []byte) {
	to := 1 - c.end
	c.sent[to] = append(c.sent[to], append([]byte(nil), b...))
	if c.delay == 0 {
		c.changed.Broadcast()
		return
	}
	c.late[to]++
	c.clock.AfterFunc(c.delay, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.late[to]--
		c.changed.Broadcast()
	})
}

// Close implements net.Conn.
func (c *messageConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed[c.end] {
		return net.ErrClosed
	}
	c.closed[c.end] = true
	c.stopTimer()
	c.changed.Broadcast()
	return nil
}

// SetReadDeadline implements net.Conn.
func (c *messageConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.until[c.end] = t
	c.stopTimer()
	if left := c.clock.Until(t); !t.IsZero() && left > 0 && !c.closed[c.end] {
		c.timers[c.end] = c.clock.AfterFunc(left, c.changed.Broadcast)
	}
	c.changed.Broadcast()
	return nil
}

// stopTimer is called with mu held.
func (c *messageConn) stopTimer() {
	if t := c.timers[c.end]; t != nil {
		t.Stop()
	}
}

// SetDeadline implements net.Conn, for reads only.
func (c *messageConn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

// SetWriteDeadline implements net.Conn. It does nothing.
func (c *messageConn) SetWriteDeadline(time.Time) error { return nil }

// LocalAddr implements net.Conn.
func (c *messageConn) LocalAddr() net.Addr { return &net.UnixAddr{Net: "unixpacket"} }

// RemoteAddr implements net.Conn.
func (c *messageConn) RemoteAddr() net.Addr { return &net.UnixAddr{Net: "unixpacket"} }
