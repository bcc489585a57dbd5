package admin_test

import (
	"bytes"
	"encoding/json"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/stack/admin"
	"github.com/rdma-netstack/rdma-netstack/stack/stacktest"
)

// crowd is a stack with n connections to another one.
func crowd(t testing.TB, n int) *stack.Stack {
	server, client := stacktest.Pair(t)
	ln, err := server.Listen("tcp", ":80")
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan net.Conn)
	go func() {
		for c, err := ln.Accept(); err == nil; c, err = ln.Accept() {
			accepted <- c
		}
	}()
	for range n {
		c, err := client.Dial("tcp", stacktest.Used().ServerIP4.Addr().String()+":80")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		<-accepted
	}
	return server
}

// TestSocketsJSON: what is written by hand is what package json would write, and what is read is
// what it would read.
func TestSocketsJSON(t *testing.T) {
	server := crowd(t, 3)
	if _, err := server.ListenUDP("udp", nil); err != nil {
		t.Fatal(err)
	}
	for name, all := range map[string][]stack.Socket{"of a stack": server.Sockets(), "none": {},
		"rare": {{}, {Network: "udp", Drops: 1<<64 - 1, Kernel: true, TCP: &stack.TCPInfo{RTT: -1},
			Local: netip.MustParseAddrPort("[fe80::1%a\"\\b]:80")}}} {
		var text bytes.Buffer
		if err := admin.WriteSockets(&text, all); err != nil {
			t.Fatal(err)
		}
		want, err := json.Marshal(all)
		if err != nil || text.String() != string(want)+"\n" {
			t.Errorf("%s: %v: %s\nwant %s", name, err, &text, want)
		}
		for change, text := range map[string]string{"": text.String(), "spaces": strings.ReplaceAll(
			text.String(), ",", ", "), "new": strings.ReplaceAll(text.String(), `"recv_q"`,
			`"x":[{}],"recv_q"`)} {
			got, err := admin.ReadSockets(strings.NewReader(text))
			if err != nil || len(got) != len(all) || len(all) > 0 && !reflect.DeepEqual(got, all) {
				t.Errorf("%s, %s: %+v, %v; want %+v", name, change, got, err, all)
			}
		}
		for _, wrong := range []string{text.String() + "x", text.String()[:text.Len()/2], ""} {
			if got, err := admin.ReadSockets(strings.NewReader(wrong)); err == nil {
				t.Errorf("%q is read as %+v", wrong, got)
			}
		}
	}
}

// TestSocketsAllocations bounds what a look at connections costs the server and the one who looks:
// it was 55 and 6 for each connection.
func TestSocketsAllocations(t *testing.T) {
	const conns = 500
	server := crowd(t, conns)
	h := admin.Handler(admin.Config{Stack: server})
	ask := httptest.NewRequest("GET", "/sockets", nil)
	if n := leastAllocs(func() { h.ServeHTTP(nowhere{http.Header{}}, ask) }); n > 3*conns {
		t.Errorf("/sockets of %d connections: %v allocations, want 3 each at most", conns, n)
	}
	_, text := get(t, h, "/sockets", nil)
	if n := leastAllocs(func() { admin.ReadSockets(strings.NewReader(text)) }); n > 4*conns {
		t.Errorf("%d connections are read with %v allocations, want 4 each at most", conns, n)
	}
}

// leastAllocs returns the allocations of one of several calls that had the fewest: the connections,
// which go on beside it, can only add to those.
func leastAllocs(f func()) float64 {
	least := math.Inf(1)
	for range 20 {
		least = min(least, testing.AllocsPerRun(1, f))
	}
	return least
}

// nowhere is a response that is thrown away.
type nowhere struct{ header http.Header }

func (w nowhere) Header() http.Header         { return w.header }
func (w nowhere) Write(b []byte) (int, error) { return len(b), nil }
func (w nowhere) WriteHeader(int)             {}

// BenchmarkSockets is what a server with 10,000 connections does for ss -i.
func BenchmarkSockets(b *testing.B) {
	h := admin.Handler(admin.Config{Stack: crowd(b, 10000)})
	ask := httptest.NewRequest("GET", "/sockets", nil)
	b.ReportAllocs()
	for b.Loop() {
		h.ServeHTTP(nowhere{http.Header{}}, ask)
	}
}

// BenchmarkReadSockets is what ss -i does with the answer.
func BenchmarkReadSockets(b *testing.B) {
	var text bytes.Buffer
	if err := admin.WriteSockets(&text, crowd(b, 10000).Sockets()); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := admin.ReadSockets(bytes.NewReader(text.Bytes())); err != nil {
			b.Fatal(err)
		}
	}
}
