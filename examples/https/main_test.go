package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/stack/stacktest"
)

// TestShutdownFinishesRequests stops the server while a request is under way: it is answered, over
// HTTP/2, and then serve returns.
func TestShutdownFinishesRequests(t *testing.T) {
	server, client := stacktest.Pair(t)
	ln, err := server.Listen("tcp", ":443")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	slow := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		stop()
		for { // until the listener is closed
			c, err := client.DialTimeout("tcp", "192.0.2.1:443", time.Second)
			if err != nil {
				break
			}
			c.Close()
		}
		io.WriteString(w, r.Proto)
	})
	cert, key, roots := certificate(t)
	served := make(chan error, 1)
	go func() { served <- serve(ctx, ln, slow, cert, key) }()

	web := client.HTTPTransport()
	defer web.CloseIdleConnections()
	web.TLSClientConfig = &tls.Config{RootCAs: roots, ServerName: "example.com"}
	web.ForceAttemptHTTP2 = true
	resp, err := (&http.Client{Transport: web, Timeout: 30 * time.Second}).Get("https://192.0.2.1/")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "HTTP/2.0" {
		t.Errorf("answer %q, %v", body, err)
	}
	if err := <-served; err != nil {
		t.Errorf("serve: %v", err)
	}
}

// certificate writes that of net/http's tests, for example.com, to files.
func certificate(t *testing.T) (cert, key string, roots *x509.CertPool) {
	t.Helper()
	known := httptest.NewTLSServer(nil)
	defer known.Close()
	pair := known.TLS.Certificates[0]
	private, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}),
			0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	roots = x509.NewCertPool()
	roots.AddCert(known.Certificate())
	return write("cert.pem", "CERTIFICATE", pair.Certificate[0]),
		write("key.pem", "PRIVATE KEY", private), roots
}
