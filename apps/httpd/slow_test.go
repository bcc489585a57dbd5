package httpd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/pipes"
)

// piped starts a server on connections without buffers, in virtual time.
func piped(t *testing.T, cfg Config) (*Server, *pipes.Listener) {
	t.Helper()
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s, pipes.Serve(t, s.Serve, func() { s.Close() })
}

// TestSlowPeersAreCut: a peer below the floor of 16 KiB/s loses its connection after the grace
// time, whatever the size of the transfer; a peer above the floor keeps it.
func TestSlowPeersAreCut(t *testing.T) {
	const large = "GET /-/bytes/268435456 HTTP/1.1\r\nHost: x\r\n\r\n"
	const medium = "GET /-/bytes/16777216 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
	const post = "POST /-/echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: "
	for _, tt := range []struct {
		name, request string
		bytes         int // that the peer moves per second
		reads         bool
		least, most   time.Duration // that the connection lasts
	}{
		{"a window of a few bytes", large, 4, true, 29 * time.Second, 40 * time.Second},
		{"no window", large, 0, true, 29 * time.Second, 40 * time.Second},
		{"half the floor", large, 8 << 10, true, 50 * time.Second, 2 * time.Minute},
		{"just above the floor", medium, 17 << 10, true, 16 * time.Minute, 17 * time.Minute},
		{"above the floor", medium, 20 << 10, true, 13 * time.Minute, 14 * time.Minute},
		{"echo, a byte per second", post + "268435456\r\n\r\n", 1, false,
			29 * time.Second, 40 * time.Second},
		{"echo above the floor", post + "16777216\r\n\r\n", 20 << 10, false,
			13 * time.Minute, 14 * time.Minute},
		{"a body nobody reads", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n", 1,
			false, 9 * time.Second, 20 * time.Second},
		{"headers", "GET / HTTP/1.1\r\nX: ", 1, false, 9 * time.Second, 20 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, p := piped(t, Config{DebugEndpoints: true})
				c := p.Dial(t)
				began := time.Now()
				if _, err := io.WriteString(c, tt.request); err != nil {
					t.Fatal(err)
				}
				trickled := make(chan struct{})
				go func() {
					defer close(trickled)
					time.Sleep(time.Second / 2) // never wakes at the moment of this test's check
					trickle(c, tt.bytes, tt.reads)
				}()
				for time.Sleep(time.Second); s.Counters().Connections > 0 &&
					time.Since(began) < 24*time.Hour; {
					time.Sleep(time.Second)
				}
				held := time.Since(began)
				c.Close()
				<-trickled // virtual time stops once this goroutine has ended
				if held < tt.least || held > tt.most {
					t.Errorf("held for %v, want %v to %v", held, tt.least, tt.most)
				}
			})
		})
	}
}

// trickle moves n bytes each second until the connection ends.
func trickle(c net.Conn, n int, reads bool) {
	if !reads {
		go io.Copy(io.Discard, c)
	}
	for b := make([]byte, max(n, 1)); ; time.Sleep(time.Second) {
		var err error
		switch {
		case n == 0:
			return
		case reads:
			_, err = io.ReadFull(c, b)
		default:
			_, err = c.Write(b)
		}
		if err != nil {
			return
		}
	}
}

func TestBudget(t *testing.T) {
	const floor, second = 1000, time.Second
	for _, tt := range []struct {
		name  string
		moved []int // bytes, each in one second
		left  time.Duration
	}{
		{"nothing moves", []int{0, 0, 0}, 7 * second},
		{"at the floor", []int{1000, 1000}, 10 * second},
		{"half the floor", []int{500, 500}, 9 * second},
		{"no more than the grace is in store", []int{1 << 40, 0}, 9 * second},
		{"progress gives time back", []int{0, 0, 2000}, 9 * second},
	} {
		b := newBudget(floor, 10*second)
		for _, n := range tt.moved {
			b.creditTime(second, n)
		}
		if b.left != tt.left {
			t.Errorf("%s: %v left, want %v", tt.name, b.left, tt.left)
		}
	}
}

// TestCutIsAReset: data that a slow peer did not receive is discarded, not kept in the send buffer;
// also when everything fitted into the buffer and the server has closed the connection.
func TestCutIsAReset(t *testing.T) {
	for _, tt := range []struct{ name, request string }{
		{"while the server writes", "GET /-/bytes/268435456 HTTP/1.1\r\nHost: x\r\n\r\n"},
		{"after the server has closed",
			"GET /-/bytes/100000 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, url, _ := serve(t, Config{DebugEndpoints: true, MinRate: 4 << 20,
				Grace: 50 * time.Millisecond})
			c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			c.(*net.TCPConn).SetReadBuffer(4096)
			io.WriteString(c, tt.request)
			gone := func() bool {
				n := s.Counters()
				return n.Accepted > 0 && n.Connections == 0 && s.lingering() == 0
			}
			for deadline := time.Now().Add(10 * time.Second); !gone(); runtime.Gosched() {
				if time.Now().After(deadline) {
					t.Fatalf("not cut: %+v", s.Counters())
				}
			}
			c.SetDeadline(time.Now().Add(10 * time.Second))
			if _, err := io.Copy(io.Discard, c); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the connection ends with %v, want a reset", err)
			}
		})
	}
}

func (s *Server) lingering() int {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	return s.table.lingering.Len()
}

// sized records the sizes of writes to a connection whose packets hold that many bytes.
type sized struct {
	net.Conn
	holds  int
	writes []int
	got    []byte
}

func (c *sized) WriteSize() int                   { return c.holds }
func (c *sized) SetWriteDeadline(time.Time) error { return nil }
func (c *sized) Write(p []byte) (int, error) {
	c.writes, c.got = append(c.writes, len(p)), append(c.got, p...)
	return len(p), nil
}

// TestPiecesFillPackets writes a large answer: all pieces but the last are what a packet holds, as
// far as that is no more than is checked at a time.
func TestPiecesFillPackets(t *testing.T) {
	body := make([]byte, 300_000)
	for i := range body {
		body[i] = byte(i >> 8)
	}
	for _, tt := range []struct{ holds, piece int }{{65320, 65320}, {1448, 1448},
		{1 << 20, 64 << 10}} {
		s, err := New(Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		n := &sized{holds: tt.holds}
		c := &conn{Conn: n, table: &s.table, out: newBudget(s.cfg.MinRate, s.cfg.Grace)}
		sent, err := c.Write(body)
		if sent != len(body) || err != nil || !bytes.Equal(n.got, body) {
			t.Fatalf("%d of %d bytes sent, %d arrived: %v", sent, len(body), len(n.got), err)
		}
		for i, size := range n.writes {
			if want := min(tt.piece, len(body)-i*tt.piece); size != want {
				t.Errorf("packets of %d: write %d has %d bytes, want %d", tt.holds, i, size, want)
			}
		}
	}
}

// writes represents a listener of connections whose packets hold so many bytes. It tells the sizes
// of what is written to them.
type writes struct {
	net.Listener
	holds int
	sizes chan int
}

type written struct {
	net.Conn
	to *writes
}

func (w *writes) Accept() (net.Conn, error) {
	c, err := w.Listener.Accept()
	return &written{c, w}, err
}

func (c *written) WriteSize() int { return c.to.holds }
func (c *written) Write(p []byte) (int, error) {
	c.to.sizes <- len(p)
	return c.Conn.Write(p)
}

// TestFilesFillPackets: all of a file but its beginning, by which net/http finds out what it is,
// and its end is written in pieces that fill packets, and not in those of net/http, of 32 KiB.
func TestFilesFillPackets(t *testing.T) {
	const holds, size = 65_160, 400_000
	s, err := New(Config{DebugEndpoints: true})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w, done := &writes{ln, holds, make(chan int, 100)}, make(chan error, 1)
	go func() { done <- s.Serve(w) }()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, body := get(t, c, http.MethodGet, fmt.Sprintf("http://%v/-/bytes/%d", ln.Addr(), size))
	want := make([]byte, size)
	if FillPattern(want, 0); resp.StatusCode != http.StatusOK || !bytes.Equal(body, want) {
		t.Errorf("status %d, %d bytes, or others than asked for", resp.StatusCode, len(body))
	}
	if err := errors.Join(s.Close(), <-done); err != nil {
		t.Error(err)
	}
	close(w.sizes)
	var sizes []int
	for n := range w.sizes {
		sizes = append(sizes, n)
	}
	whole := 0
	for _, n := range sizes {
		if n == holds {
			whole++
		}
	}
	if whole != size/holds || len(sizes) > whole+3 {
		t.Errorf("writes of %v bytes, want %d of %d", sizes, size/holds, holds)
	}
}
