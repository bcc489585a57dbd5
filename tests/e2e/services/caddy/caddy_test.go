// Package caddy runs Caddy on the stack, which its configuration names as a network.
package caddy

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp/fileserver"
	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/rdma-netstack/rdma-netstack/tests/e2e/services/world"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/moving"
)

// host is the host on which Caddy opens the sockets of the networks "slice" and "sliceudp".
// Networks are registered once per process.
var host atomic.Pointer[world.Host]

func TestMain(m *testing.M) {
	caddy.RegisterNetwork("slice", func(_ context.Context, _, address, port string, offset uint,
		_ net.ListenConfig) (any, error) {
		return (*host.Load()).Listen("tcp", join(address, port, offset))
	})
	caddy.RegisterNetwork("sliceudp", func(_ context.Context, _, address, port string, offset uint,
		_ net.ListenConfig) (any, error) {
		return (*host.Load()).ListenPacket("udp", join(address, port, offset))
	})
	caddyhttp.RegisterNetworkHTTP3("slice", "sliceudp")
	os.Exit(m.Run())
}

func join(address, port string, offset uint) string {
	var n uint
	fmt.Sscan(port, &n)
	return net.JoinHostPort(address, fmt.Sprint(n+offset))
}

const config = `{
  "admin": {"disabled": true, "config": {"persist": false}},
  "logging": {"logs": {"default": {"level": "ERROR"}}},
  "apps": {
    "tls": {"certificates": {"load_files": [{"certificate": %s, "key": %s}]}},
    "http": {"servers": {
      "clear": {"listen": ["slice/:80"], "automatic_https": {"disable": true},
        "routes": [{"handle": [{"handler": "static_response", "body": "{http.request.proto} for {http.request.remote.host}"}]}]},
      "secret": {"listen": ["slice/:443"], "automatic_https": {"disable": true}, "protocols": ["h1", "h2", "h3"],
        "tls_connection_policies": [{}],
        "routes": [
          {"match": [{"path": ["/files/*"]}], "handle": [{"handler": "file_server", "root": %s}]},
          {"handle": [{"handler": "static_response", "body": "{http.request.proto} for {http.request.remote.host}"}]}]}
    }}
  }
}`

func TestCaddy(t *testing.T) {
	world.Module(t, "github.com/caddyserver/caddy/v2")
	world.Tool(t, "curl", `curl ([\d.]+)`, "--version")
	world.Each(t, func(t *testing.T, w *world.World) {
		id := world.NewIdentity(t)
		root, big := files(t)
		start(t, w, fmt.Sprintf(config, quote(id.Cert), quote(id.Key), quote(root)))
		curl := func(args ...string) string {
			return w.Run(t, "curl", append([]string{"-sS", "--fail", "--globoff", "--noproxy", "*",
				"--cacert", id.Cert}, args...)...)
		}
		for _, c := range []struct{ option, url, want string }{
			{"--http1.1", "http://192.0.2.10/", "HTTP/1.1 for 192.0.2.1"},
			{"--http1.1", "http://[2001:db8::10]/", "HTTP/1.1 for 2001:db8::1"},
			{"--http1.1", "https://192.0.2.10/", "HTTP/1.1 for 192.0.2.1"},
			{"--http2", "https://192.0.2.10/", "HTTP/2.0 for 192.0.2.1"},
		} {
			if got := curl(c.option, c.url); got != c.want {
				t.Errorf("curl %s %s: %q, want %q", c.option, c.url, got, c.want)
			}
		}
		if got := curl("--http2", "https://192.0.2.10/files/big"); got != string(big) {
			t.Errorf("file over HTTP/2: %d bytes of %d, or others", len(got), len(big))
		}
		web := http3Client(t, w, id.Client())
		if got := get(t, w, web, "https://192.0.2.10/"); string(got) != "HTTP/3.0 for 192.0.2.1" {
			t.Errorf("HTTP/3: %q", got)
		}
		if got := get(t, w, web, "https://192.0.2.10/files/big"); !bytes.Equal(got, big) {
			t.Errorf("file over HTTP/3: %d bytes of %d, or others", len(got), len(big))
		}
	})
}

// files makes a root directory that contains a directory "files" with one file.
func files(t *testing.T) (root string, big []byte) {
	t.Helper()
	root = t.TempDir()
	big = make([]byte, 1<<20+5)
	rand.NewChaCha8([32]byte{3}).Read(big)
	if err := os.Mkdir(filepath.Join(root, "files"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "files", "big"), big, 0o644); err != nil {
		t.Fatal(err)
	}
	return root, big
}

// start runs Caddy until the test ends. Only one Caddy can run per process.
func start(t *testing.T, w *world.World, config string) {
	t.Helper()
	host.Store(&w.Server)
	if err := caddy.Load([]byte(config), true); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := caddy.Stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
}

func quote(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}

// http3Client sends from one kernel socket.
func http3Client(t *testing.T, w *world.World, config *tls.Config) *http.Client {
	t.Helper()
	pc, err := w.Client.ListenPacket("udp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	socket := &quic.Transport{Conn: pc}
	transport := &http3.Transport{TLSClientConfig: config, Dial: func(ctx context.Context, _ string,
		config *tls.Config, cfg *quic.Config) (*quic.Conn, error) {
		return socket.DialEarly(ctx, &net.UDPAddr{IP: net.ParseIP(world.Server4), Port: 443},
			config, cfg)
	}}
	t.Cleanup(func() {
		transport.Close()
		socket.Close()
		pc.Close()
	})
	return &http.Client{Transport: transport, Timeout: world.Patience}
}

func get(t *testing.T, w *world.World, web *http.Client, url string) []byte {
	t.Helper()
	req, err := http.NewRequestWithContext(w.Moving(t, moving.Limit), "GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := web.Do(req)
	if err != nil {
		t.Error(err)
		return nil
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Errorf("%s: %v", url, err)
	}
	return body
}
