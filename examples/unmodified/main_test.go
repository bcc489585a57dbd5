package main

import (
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestServer tries the server by the kernel's sockets; tests/e2e/unmodified has it on a slice.
func TestServer(t *testing.T) {
	w := httptest.NewRecorder()
	greet(w, httptest.NewRequest(http.MethodGet, "/", nil))
	if got := w.Body.String(); got != "hello, 192.0.2.1\n" {
		t.Errorf("it greets %q", got)
	}
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- answer(c) }()
	from, err := net.Dial("udp", c.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	b := make([]byte, 16)
	if _, err := from.Write([]byte("ping")); err != nil {
		t.Fatal(err)
	}
	if n, err := from.Read(b); err != nil || string(b[:n]) != "ping" {
		t.Errorf("it answers %q, %v", b[:n], err)
	}
	c.Close()
	if err := <-ended; err == nil {
		t.Error("it ends without an error")
	}
}
