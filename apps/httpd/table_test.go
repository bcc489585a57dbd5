package httpd

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// hello dials, and requests /-/healthz unless silent.
func hello(t *testing.T, url string, silent bool) (net.Conn, *http.Response) {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(10 * time.Second))
	if silent {
		return c, nil
	}
	fmt.Fprintf(c, "GET /-/healthz HTTP/1.1\r\nHost: x\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	io.Copy(io.Discard, resp.Body)
	return c, resp
}

// TestFullTableMakesRoom: silent and idle connections never block a new client; the one that has
// waited longest is closed.
func TestFullTableMakesRoom(t *testing.T) {
	s, url, _ := serve(t, Config{MaxConns: 8})
	first, _ := hello(t, url, true)
	for i := range 100 {
		hello(t, url, i%2 == 0)
	}
	if _, resp := hello(t, url, false); resp.StatusCode != http.StatusOK {
		t.Errorf("answer %s", resp.Status)
	}
	if n, err := first.Read(make([]byte, 1)); n > 0 || err == nil ||
		strings.Contains(err.Error(), "timeout") {
		t.Errorf("the first is still there: %v", err)
	}
	if c := s.Counters(); c.Connections > 8 || c.Accepted != 102 ||
		c.Evicted < 94 || c.Refused != 0 {
		t.Errorf("%+v", c)
	}
}

// TestFullOfRequests: when every connection has a request, a new one is closed.
func TestFullOfRequests(t *testing.T) {
	status, entered, release := hold(t)
	defer release()
	s, url, c := serve(t, Config{MaxConns: 1, DebugEndpoints: true, Status: status})
	answer := make(chan int, 1)
	go func() {
		resp, _ := get(t, c, "GET", url+"/-/status.json")
		answer <- resp.StatusCode
	}()
	<-entered
	late, _ := hello(t, url, true)
	if n, err := late.Read(make([]byte, 1)); n > 0 || err == nil ||
		strings.Contains(err.Error(), "timeout") {
		t.Errorf("not refused: %v", err)
	}
	release()
	if got := <-answer; got != 200 {
		t.Errorf("the request under way got %d", got)
	}
	if n := s.Counters().Refused; n != 1 {
		t.Errorf("%d refused", n)
	}
}

// TestLingererMakesRoom: connections closed by the server are limited, too, also when many are
// closed at once: each makes room by another one, whose client may get a reset for it.
func TestLingererMakesRoom(t *testing.T) {
	s, url, c := serve(t, Config{MaxConns: 8, DebugEndpoints: true})
	for range 20 {
		if _, b := get(t, c, "GET", url+"/-/bytes/200000", "Connection",
			"close"); len(b) != 200000 {
			t.Fatalf("%d bytes", len(b))
		}
	}
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for range 20 {
				if resp, err := c.Get(url + "/-/bytes/200000"); err == nil {
					io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
				c.CloseIdleConnections()
			}
		})
	}
	clients.Wait()
	for deadline := time.Now().Add(10 * time.Second); s.lingering() > 2; {
		if time.Now().After(deadline) {
			t.Fatalf("%d closed connections linger, want 2", s.lingering())
		}
	}
}

func TestMemory(t *testing.T) {
	if n := connsForMemory(); n < fewConns || n > manyConns {
		t.Errorf("%d connections", n)
	}
}
