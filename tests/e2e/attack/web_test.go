//go:build linux

package attack

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	slowClients = 200
	// giveUp is how long after the attack a server may keep connections whose clients are almost
	// idle.
	giveUp = 40 * time.Second
	// unread is the memory that a connection which does not read may use until then, in bytes: a
	// send buffer of 1 MiB, and a quarter of that for the rest.
	unread = 5 << 18
)

// mostBytes requests the largest body that is allowed: a larger one is refused at once
// (httpd.DefaultMaxBody).
const mostBytes = "GET /-/bytes/268435456 HTTP/1.1\r\nHost: a\r\n\r\n"

// narrow opens a connection with the smallest possible window.
func (w *world) narrow(address string) (conn net.Conn, err error) {
	d := net.Dialer{Timeout: patience, Control: func(_, _ string, c syscall.RawConn) (err error) {
		if cerr := c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET,
				unix.SO_RCVBUF, 1)
		}); cerr != nil {
			return cerr
		}
		return err
	}}
	err = w.ns.Do(func() error { conn, err = d.Dial("tcp", address); return err })
	return conn, err
}

// TestSlowClients: clients that hold a connection and are almost idle are served for a while, and
// then disconnected.
func TestSlowClients(t *testing.T) {
	for _, tt := range []struct {
		name, hello string
		drip        func(net.Conn) // what each client does once a second
		limit       int64          // of growth in bytes; 0: the usual one
	}{
		{"never reads /-/bytes", mostBytes, func(net.Conn) {}, slowClients * unread},
		{"reads /-/bytes slowly", mostBytes, func(c net.Conn) { c.Read(make([]byte, 8)) },
			slowClients * unread},
		{"trickles /-/echo",
			"POST /-/echo HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n",
			func(c net.Conn) { io.WriteString(c, "x") }, 0},
		{"slowloris", "GET / HTTP/1.1\r\n", func(c net.Conn) { io.WriteString(c, "X-a: b\r\n") },
			0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newServer(t, "http", "--root", site(t))
			var conns []net.Conn
			end := make(chan struct{})
			var all sync.WaitGroup
			defer all.Wait()
			defer close(end)
			r := w.under(tt.name, w.browsers(), func(done <-chan struct{}) {
				for range slowClients {
					if c, err := w.narrow(server4 + ":80"); err == nil {
						t.Cleanup(func() { c.Close() })
						io.WriteString(c, tt.hello)
						conns = append(conns, c)
					}
				}
				all.Go(func() { drip(conns, tt.drip, end) })
				<-done
			})
			began := time.Now()
			left := w.kept(conns, giveUp)
			if left > 0 {
				t.Errorf("%d of %d connections were still open %v after the attack", left,
					len(conns), giveUp)
			}
			r.limit = tt.limit
			r.note = fmt.Sprintf("%d connections, %d of them kept after %v", len(conns), left,
				time.Since(began).Round(time.Second))
			w.judge(r)
		})
	}
}

// drip calls the function once a second for all connections.
func drip(conns []net.Conn, do func(net.Conn), end <-chan struct{}) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		for _, c := range conns {
			c.SetDeadline(time.Now().Add(time.Millisecond))
			do(c)
		}
		select {
		case <-end:
			return
		case <-tick.C:
		}
	}
}

// special makes special files in a directory, and returns the request path of each.
func special(t *testing.T, dir string) []string {
	t.Helper()
	must(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o644))
	must(t, unix.Mknod(filepath.Join(dir, "zero"), unix.S_IFCHR|0o644, int(unix.Mkdev(1, 5))))
	must(t, os.Symlink("/etc/passwd", filepath.Join(dir, "out")))
	return []string{"/fifo", "/zero", "/out", "/page.txt%00"}
}

// TestSpecialFiles: special files in the root directory are not found, and delay no other request.
func TestSpecialFiles(t *testing.T) {
	t.Parallel()
	dir := site(t)
	urls := special(t, dir)
	w := newServer(t, "http", "--root", dir)
	hangs := 0
	r := w.under("FIFO, device, link out, NUL", w.browsers(), func(<-chan struct{}) {
		h := &http.Client{Timeout: patience,
			Transport: &http.Transport{DialContext: w.ns.DialContext}}
		defer h.CloseIdleConnections()
		for range 10 {
			for _, url := range urls {
				hangs += w.notFound(h, url)
			}
			if hangs > 0 {
				break
			}
		}
	})
	r.note = fmt.Sprintf("%d requests unanswered or answered with other than 404", hangs)
	w.judge(r)
}

// notFound returns 1 if a URL is not answered in time, or not with 404.
func (w *world) notFound(h *http.Client, url string) int {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet,
		"http://"+server4+url, nil)
	must(w.t, err)
	resp, err := h.Do(req)
	if err != nil {
		w.t.Errorf("GET %s: %v", url, err)
		return 1
	}
	defer resp.Body.Close()
	if n, _ := io.Copy(io.Discard,
		io.LimitReader(resp.Body, 1<<20)); resp.StatusCode != http.StatusNotFound {
		w.t.Errorf("GET %s: %s with %d bytes, want 404", url, resp.Status, n)
		return 1
	}
	return 0
}
