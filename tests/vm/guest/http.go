//go:build linux

package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"

	"github.com/rdma-netstack/rdma-netstack/apps/httpd"
	"github.com/rdma-netstack/rdma-netstack/tests/vm/rig"
)

// serveHTTP runs the project's web server on the guest kernel's own sockets.
func serveHTTP(addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	s, err := httpd.New(httpd.Config{DebugEndpoints: true})
	if err != nil {
		return err
	}
	go s.Serve(l)
	return nil
}

// fetch gets a URL over the guest kernel's sockets and returns length and SHA-256 of the body.
func fetch(q rig.Request) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), q.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, q.Argv[0], nil)
	if err != nil {
		return "", err
	}
	return digest(http.DefaultClient.Do(req))
}

// upload posts Argv[1] pattern bytes to a URL that echoes them.
func upload(q rig.Request) (string, error) {
	n, err := strconv.ParseInt(q.Argv[1], 10, 64)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), q.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, q.Argv[0],
		io.LimitReader(&pattern{}, n))
	if err != nil {
		return "", err
	}
	req.ContentLength = n
	return digest(http.DefaultClient.Do(req))
}

// pattern reads httpd's pattern from the beginning.
type pattern struct{ off int64 }

func (p *pattern) Read(b []byte) (int, error) {
	httpd.FillPattern(b, p.off)
	p.off += int64(len(b))
	return len(b), nil
}

// digest reads a response to its end.
func digest(resp *http.Response, err error) (string, error) {
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	h := sha256.New()
	n, err := io.Copy(h, resp.Body)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d %x", n, h.Sum(nil)), nil
}
