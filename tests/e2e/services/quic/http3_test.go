// Package quic runs quic-go's HTTP/3 server and client on the stack.
package quic

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"testing"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/rdma-netstack/rdma-netstack/tests/e2e/services/world"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/moving"
)

// body is what is sent and fetched.
var body = func() []byte {
	b := make([]byte, 1<<20+5)
	rand.NewChaCha8([32]byte{2}).Read(b)
	return b
}()

func TestHTTP3(t *testing.T) {
	world.Module(t, "github.com/quic-go/quic-go")
	world.Each(t, func(t *testing.T, w *world.World) {
		id := world.NewIdentity(t)
		for _, c := range []struct {
			name           string
			server, client world.Host
			at             string
		}{
			{"server on the stack", w.Server, w.Client, world.Server4},
			{"server on the stack, IPv6", w.Server, w.Client, world.Server6},
			{"client on the stack", w.Client, w.Server, world.Client4},
			{"client on the stack, IPv6", w.Client, w.Server, world.Client6},
		} {
			t.Run(c.name, func(t *testing.T) {
				serve(t, c.server, id.Server())
				exchange(t, w.Moving(t, moving.Limit), client(t, c.client, id.Client(), c.at),
					"https://"+net.JoinHostPort(c.at, "443"))
			})
		}
	})
}

// serve answers with the request's body, and its digest in a trailer.
func serve(t *testing.T, h world.Host, config *tls.Config) {
	t.Helper()
	pc, err := h.ListenPacket("udp", ":443")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http3.Server{TLSConfig: http3.ConfigureTLSConfig(config),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Trailer", "Digest")
			digest := sha256.New()
			io.Copy(w, io.TeeReader(r.Body, digest))
			w.Header().Set("Digest", fmt.Sprintf("%x", digest.Sum(nil)))
		})}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(pc) }()
	t.Cleanup(func() {
		srv.Close()
		pc.Close()
		if err := <-done; err != http.ErrServerClosed {
			t.Errorf("Serve: %v", err)
		}
	})
}

// client sends from one socket of the host.
func client(t *testing.T, h world.Host, config *tls.Config, to string) *http.Client {
	t.Helper()
	pc, err := h.ListenPacket("udp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	socket := &quic.Transport{Conn: pc}
	transport := &http3.Transport{TLSClientConfig: config, Dial: func(ctx context.Context,
		addr string, config *tls.Config, cfg *quic.Config) (*quic.Conn, error) {
		return socket.DialEarly(ctx, &net.UDPAddr{IP: net.ParseIP(to), Port: 443}, config, cfg)
	}}
	t.Cleanup(func() {
		transport.Close()
		socket.Close()
		pc.Close()
	})
	return &http.Client{Transport: transport, Timeout: world.Patience}
}

// exchange sends the body eight times at once over one connection.
func exchange(t *testing.T, ctx context.Context, web *http.Client, url string) {
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			req, err := http.NewRequestWithContext(ctx, "POST", url, bytes.NewReader(body))
			if err != nil {
				t.Error(err)
				return
			}
			resp, err := web.Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			got, err := io.ReadAll(resp.Body)
			want := fmt.Sprintf("%x", sha256.Sum256(body))
			if err != nil || !bytes.Equal(got, body) || resp.Trailer.Get("Digest") != want ||
				resp.Proto != "HTTP/3.0" {
				t.Errorf("%s: %d bytes of %d, trailer %q, %v", resp.Proto, len(got), len(body),
					resp.Trailer.Get("Digest"), err)
			}
		})
	}
	all.Wait()
}
