//go:build linux

package attack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
)

// page is the file that web clients request.
const page = "what legitimate clients ask for\n"

// site makes a directory with the page.
func site(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "page.txt"), []byte(page), 0o644))
	return dir
}

// browsers returns a function that makes web clients, half of which keep their connection.
func (w *world) browsers() func() client {
	var n atomic.Int32
	return func() client {
		h := &http.Client{Transport: &http.Transport{DialContext: w.ns.DialContext,
			DisableKeepAlives: n.Add(1)%2 == 0}}
		w.t.Cleanup(h.CloseIdleConnections)
		return func(ctx context.Context) error { return get(ctx, h, "http://"+server4+"/page.txt") }
	}
}

// get fetches the page.
func get(ctx context.Context, h *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := h.Do(req)
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) { // without the ports, which differ each time
			return fmt.Errorf("%s: %w", op.Op, op.Err)
		}
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && string(body) != page {
		err = fmt.Errorf("status %s, %d bytes", resp.Status, len(body))
	}
	return err
}

// hold opens n connections, writes hello on each, and returns them. They are closed when the test
// ends. A connection that the server refuses is not in the list.
func (w *world) hold(n int, address, hello string, prepare func(net.Conn)) []net.Conn {
	w.t.Helper()
	var conns []net.Conn
	for range n {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		c, err := w.ns.DialContext(ctx, "tcp", address)
		cancel()
		if err != nil {
			continue
		}
		w.t.Cleanup(func() { c.Close() })
		if prepare != nil {
			prepare(c)
		}
		if _, err := io.WriteString(c, hello); err == nil {
			conns = append(conns, c)
		}
	}
	if len(conns) < n/2 {
		w.t.Logf("%d of %d connections were taken", len(conns), n)
	}
	return conns
}
