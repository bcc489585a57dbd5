package httpd

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// getBytes is a request, which answered wants an answer for.
const getBytes = "GET /-/bytes/3 HTTP/1.1\r\nHost: h\r\n\r\n"

// streamServer starts a server in a bubble of virtual time, and returns how to connect to it and to
// send a first piece.
func streamServer(t *testing.T, cfg Config, wrap func(*streamConn) net.Conn) (
	s *Server, dial func(first string) *streamConn) {
	t.Helper()
	ln := &streamListener{queue: make(chan net.Conn), closed: make(chan struct{})}
	return serveStreams(t, ln, cfg, wrap)
}

func serveStreams(t *testing.T, ln *streamListener, cfg Config,
	wrap func(*streamConn) net.Conn) (s *Server, dial func(first string) *streamConn) {
	t.Helper()
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }()
	t.Cleanup(func() {
		s.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return s, func(first string) *streamConn {
		near, far := newStream()
		ln.queue <- wrap(far)
		t.Cleanup(func() { near.Close() })
		fmt.Fprint(near, first)
		synctest.Wait()
		return near
	}
}

func told(c *streamConn) net.Conn { return c }

// untold is a connection that does not tell what is unread.
type untold struct {
	net.Conn
	c *streamConn
}

func (u untold) CloseWrite() error { return u.c.CloseWrite() }

// TestShutdownReadsOn: a request of which some has come is answered, however long the rest takes up
// to the limit on headers; a connection without one ends with a FIN, and what comes then gets no
// reset, but is counted. Time is virtual: beside load this test may not run for longer than the
// limits last.
func TestShutdownReadsOn(t *testing.T) {
	for name, wrap := range map[string]func(*streamConn) net.Conn{"told what is unread": told,
		"not told": func(c *streamConn) net.Conn { return untold{c, c} }} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { shutdownReadsOn(t, wrap) })
		})
	}
}

func shutdownReadsOn(t *testing.T, wrap func(*streamConn) net.Conn) {
	s, dial := streamServer(t, Config{DebugEndpoints: true}, wrap)
	began := time.Now()
	fresh, used := dial(""), dial(getBytes)
	kept := bufio.NewReader(used)
	answered(t, kept)
	slow := dial("G")
	fmt.Fprint(used, "G")
	idle := dial(getBytes)
	answered(t, bufio.NewReader(idle))
	done := shutDown(s)
	for _, conn := range []net.Conn{idle, fresh} {
		if n, err := conn.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("a connection without a request: %d bytes, %v", n, err)
		}
	}
	if _, err := fmt.Fprint(fresh, getBytes); err != nil {
		t.Error(err)
	}
	time.Sleep(time.Until(began.Add(headerTimeout - time.Second))) // a slow client
	fmt.Fprint(slow, getBytes[1:])
	answered(t, bufio.NewReader(slow))
	fmt.Fprint(used, getBytes[1:])
	answered(t, kept)
	if n, err := fresh.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("after the request that is not answered: %d bytes, %v", n, err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n := s.Counters().Unanswered; n != 1 {
		t.Errorf("%d requests were not answered, want 1", n)
	}
}

// TestShutdownReadsLate: a request that comes at the very end of a connection's time is answered,
// and one that comes before the end of the time after that is counted and gets no reset, although
// the server's goroutines run later than all its limits on looks.
func TestShutdownReadsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, dial := streamServer(t, Config{DebugEndpoints: true}, func(c *streamConn) net.Conn {
			c.lag = 5 * lastPoll
			return c
		})
		fresh, ended := dial(""), dial("")
		fresh.peer.ending = func() { fmt.Fprint(fresh, "G") }
		done := shutDown(s)
		if n, err := ended.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("a connection without a request: %d bytes, %v", n, err)
		}
		sent := time.Now().Add(lastRequests - 2*lastPoll)
		fmt.Fprint(fresh, getBytes[1:])
		answered(t, bufio.NewReader(fresh))
		time.Sleep(time.Until(sent))
		fmt.Fprint(ended, getBytes)
		if err := <-done; err != nil {
			t.Error(err)
		}
		if n, err := ended.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("after the request that is not answered: %d bytes, %v", n, err)
		}
		if n := s.Counters().Unanswered; n != 1 {
			t.Errorf("%d requests were not answered, want 1", n)
		}
	})
}

// TestShutdownReadsAhead: a request has begun although what came of it was read before the one
// ahead of it was answered.
func TestShutdownReadsAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		s, dial := streamServer(t, Config{DebugEndpoints: true, Checks: []Check{{"slow",
			func() error { <-answer; return nil }}}}, told)
		conn := dial("GET /-/healthz HTTP/1.1\r\nHost: h\r\n\r\n")
		fmt.Fprint(conn, "G")
		synctest.Wait()
		close(answer)
		from := bufio.NewReader(conn)
		resp, err := http.ReadResponse(from, nil)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		done := shutDown(s)
		time.Sleep(firstRequests + time.Second)
		fmt.Fprint(conn, getBytes[1:])
		answered(t, from)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestShutdownSparesLingerersFirst: no connection that ends because of Shutdown has one reset whose
// data is in flight, from its first moment on.
func TestShutdownSparesLingerersFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = "GET /-/bytes/300000 HTTP/1.1\r\nHost: h\r\n"
		ln := &streamListener{queue: make(chan net.Conn), closed: make(chan struct{})}
		s, dial := serveStreams(t, ln, Config{MaxConns: 4, DebugEndpoints: true}, told)
		reads := func(from net.Conn) {
			t.Helper()
			resp, err := http.ReadResponse(bufio.NewReader(from), nil)
			if err != nil {
				t.Fatal(err)
			}
			if n, err := io.Copy(io.Discard, resp.Body); n != 300000 || err != nil {
				t.Errorf("%d bytes, %v", n, err)
			}
		}
		slow, idle := dial(size+"Connection: close\r\n\r\n"), dial("")
		if n := s.lingering(); n != 1 {
			t.Fatalf("%d connections linger, want 1", n)
		}
		ln.closing = func() {
			ln.closing = nil
			fmt.Fprint(idle, size+"\r\n")
			synctest.Wait()
		}
		if err := s.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		reads(idle)
		reads(slow)
	})
}

// TestUnread: a connection of the kernel says what is unread, whatever the deadline of reads.
func TestUnread(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	client, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	conn, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	check := func(want bool) {
		t.Helper()
		if waits, known := unread(conn); waits != want || known != (runtime.GOOS != "windows") {
			t.Errorf("bytes wait: %v, known: %v; want %v", waits, known, want)
		}
	}
	check(false)
	fmt.Fprint(client, "ab")
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	conn.SetReadDeadline(time.Unix(1, 0))
	check(true)
	conn.SetReadDeadline(time.Time{})
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	check(false)
	conn.Close()
	if waits, _ := unread(conn); waits {
		t.Error("bytes wait in a closed connection")
	}
}

// streamListener accepts connections in memory.
type streamListener struct {
	queue   chan net.Conn
	closed  chan struct{}
	closing func() // called by Close if set
}

func (l *streamListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.queue:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *streamListener) Close() error {
	if l.closing != nil {
		l.closing()
	}
	close(l.closed)
	return nil
}

func (l *streamListener) Addr() net.Addr { return &net.TCPAddr{} }

// streamConn is one end of a connection in memory that behaves as one of TCP: what is written waits
// for the reader, each direction has an end of its own, and who closes with bytes unread, or gets
// more afterwards, resets it.
type streamConn struct {
	net.Conn // nil: the methods that are not needed
	peer     *streamConn

	// lag is how late a read runs, on its way in and when it is woken.
	lag time.Duration
	// ending is called once, when a read is told to end by a deadline that is over.
	ending func()
	// resets says that Close resets the connection, as SetLinger wants it.
	resets bool

	mu       sync.Mutex
	changed  sync.Cond
	data     []byte // that was not read
	eof      bool   // the peer writes no more
	broken   bool   // there was a reset
	closed   bool
	deadline time.Time
}

func newStream() (near, far *streamConn) {
	near, far = new(streamConn), new(streamConn)
	near.peer, far.peer = far, near
	near.changed.L, far.changed.L = &near.mu, &far.mu
	return near, far
}

func (c *streamConn) RemoteAddr() net.Addr { return &net.TCPAddr{} }
func (c *streamConn) LocalAddr() net.Addr  { return &net.TCPAddr{} }

// change runs with the lock held, and wakes whoever waits.
func (c *streamConn) change(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	c.changed.Broadcast()
}

func (c *streamConn) runLate() {
	c.mu.Unlock()
	time.Sleep(c.lag)
	c.mu.Lock()
}

func (c *streamConn) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		c.runLate()
		switch {
		case c.closed:
			return 0, net.ErrClosed
		case !c.deadline.IsZero() && !time.Now().Before(c.deadline):
			return 0, os.ErrDeadlineExceeded
		case c.broken:
			return 0, syscall.ECONNRESET
		case len(c.data) > 0:
			n := copy(p, c.data)
			c.data = c.data[n:]
			return n, nil
		case c.eof:
			return 0, io.EOF
		}
		c.changed.Wait()
	}
}

func (c *streamConn) Buffered() (n int) {
	c.change(func() { n = len(c.data) })
	return n
}

func (c *streamConn) Write(p []byte) (int, error) {
	var gone bool
	c.peer.change(func() {
		if gone = c.peer.closed; !gone {
			c.peer.data = append(c.peer.data, p...)
		}
	})
	if gone {
		c.change(func() { c.broken = true })
	}
	return len(p), nil
}

func (c *streamConn) CloseWrite() error {
	c.peer.change(func() { c.peer.eof = true })
	return nil
}

func (c *streamConn) Close() error {
	var unread int
	var resets bool
	c.change(func() { c.closed, unread, resets = true, len(c.data), c.resets })
	c.peer.change(func() {
		c.peer.eof, c.peer.broken = true, c.peer.broken || unread > 0 || resets
	})
	return nil
}

func (c *streamConn) SetLinger(seconds int) error {
	c.change(func() { c.resets = seconds == 0 })
	return nil
}

func (c *streamConn) SetDeadline(at time.Time) error { return c.SetReadDeadline(at) }

func (c *streamConn) SetWriteDeadline(time.Time) error { return nil }

func (c *streamConn) SetReadDeadline(at time.Time) error {
	if ending := c.ending; ending != nil && !at.IsZero() && at.Before(time.Now()) {
		c.ending = nil
		ending()
	}
	c.change(func() { c.deadline = at })
	if wait := time.Until(at); wait > 0 {
		time.AfterFunc(wait, func() { c.change(func() {}) })
	}
	return nil
}

// answered reads an answer of three bytes.
func answered(t *testing.T, from *bufio.Reader) {
	t.Helper()
	resp, err := http.ReadResponse(from, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(resp.Body); len(got) != 3 || err != nil {
		t.Errorf("%d bytes, %v: %s %q", len(got), err, resp.Status, got)
	}
}

// TestShutdownKeepsLingerers: the connections that a server ends when it shuts down do not have
// those reset that it has closed before, and whose client has not read all.
func TestShutdownKeepsLingerers(t *testing.T) {
	const size = 300000
	s, url, _ := serve(t, Config{MaxConns: 4, DebugEndpoints: true})
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		conn.SetDeadline(time.Now().Add(20 * time.Second))
		return conn
	}
	ask := func(conn net.Conn, more string) {
		fmt.Fprintf(conn, "GET /-/bytes/%d HTTP/1.1\r\nHost: h\r\n%s\r\n", size, more)
	}
	reads := func(conn net.Conn) {
		t.Helper()
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, resp.Body); n != size || err != nil {
			t.Errorf("%d bytes, %v", n, err)
		}
	}
	slow, idle := dial(), dial()
	slow.(*net.TCPConn).SetReadBuffer(4096)
	ask(slow, "Connection: close\r\n")
	ask(idle, "")
	reads(idle)
	for end := time.Now().Add(20 * time.Second); s.lingering() == 0; {
		if time.Now().After(end) {
			t.Fatal("no connection lingers")
		}
		time.Sleep(time.Millisecond) // no event reports it
	}
	done := shutDown(s)
	ask(idle, "")
	reads(idle)
	if err := <-done; err != nil {
		t.Error(err)
	}
	reads(slow)
}
