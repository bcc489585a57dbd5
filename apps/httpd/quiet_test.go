package httpd

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestShutdownReadsOn: a request of which some has come is answered, however long the rest takes; a
// connection without one ends with a FIN, and what comes then gets no reset, but is counted.
func TestShutdownReadsOn(t *testing.T) {
	s, url, _ := serve(t, Config{Root: t.TempDir(), DebugEndpoints: true})
	dial := func(first string) net.Conn {
		conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		conn.SetDeadline(time.Now().Add(20 * time.Second))
		fmt.Fprint(conn, first)
		return conn
	}
	const request = "GET /-/bytes/3 HTTP/1.1\r\nHost: h\r\n\r\n"
	fresh, used := dial(""), dial(request)
	kept := bufio.NewReader(used)
	answered(t, kept)
	slow := dial("G")
	fmt.Fprint(used, "G")
	idle := dial(request)
	answered(t, bufio.NewReader(idle))
	done := shutDown(s)
	for _, conn := range []net.Conn{idle, fresh} {
		if n, err := conn.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("a connection without a request: %d bytes, %v", n, err)
		}
	}
	fmt.Fprint(slow, request[1:])
	answered(t, bufio.NewReader(slow))
	fmt.Fprint(used, request[1:])
	answered(t, kept)
	if _, err := fmt.Fprint(fresh, request); err != nil {
		t.Error(err)
	}
	for end := time.Now().Add(20 * time.Second); s.Counters().Unanswered == 0; {
		if time.Now().After(end) {
			t.Fatal("the request after the end is not counted")
		}
		time.Sleep(time.Millisecond) // no event reports it
	}
	fresh.(*net.TCPConn).CloseWrite()
	if _, err := fresh.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("after the request that is not answered: %v", err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n := s.Counters().Unanswered; n != 1 {
		t.Errorf("%d requests were not answered, want 1", n)
	}
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
