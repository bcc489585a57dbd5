package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/stack/stacktest"
)

// TestProxy fetches a page through the proxy. Client and backend are the same host: the other end
// of the wire.
func TestProxy(t *testing.T) {
	slice, other := stacktest.Pair(t)
	ln, err := other.Listen("tcp", ":8000")
	if err != nil {
		t.Fatal(err)
	}
	backend := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s for %s", r.URL.Path, r.Header.Get("X-Forwarded-For"))
	})}
	defer backend.Close()
	go backend.Serve(ln)

	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- serve(ctx, slice, &url.URL{Scheme: "http", Host: "192.0.2.2:8000"}) }()
	if got := fetch(t, other.HTTPTransport(),
		"http://192.0.2.1/page"); got != "/page for 192.0.2.2" {
		t.Errorf("got %q", got)
	}
	stop()
	if err := <-served; err != nil {
		t.Errorf("serve: %v", err)
	}
}

// fetch returns a page. The proxy may not be listening yet: a refused connection is tried again.
func fetch(t *testing.T, from *http.Transport, page string) string {
	t.Helper()
	defer from.CloseIdleConnections()
	for end := time.Now().Add(30 * time.Second); ; {
		resp, err := (&http.Client{Transport: from}).Get(page)
		if err != nil && time.Now().Before(end) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		return string(body)
	}
}
