package unittest

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/stack/stacktest"
)

// start serves a quote on a new pair of stacks, which end with the test, and returns the client's.
func start(t *testing.T, quote string) (client *stack.Stack) {
	t.Helper()
	server, client := stacktest.Pair(t)
	ln, err := server.Listen("tcp", ":17")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- Serve(ln, quote) }()
	t.Cleanup(func() {
		ln.Close()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return client
}

// Tests may run in parallel with the same addresses: each pair of stacks has its own wire.
func TestQuote(t *testing.T) {
	for name, addr := range map[string]string{"IPv4": "192.0.2.1:17", "IPv6": "[2001:db8::1]:17"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const quote = "Nothing is particularly hard if you divide it into small jobs."
			conn := dial(t, start(t, quote), addr)
			if got, err := io.ReadAll(conn); err != nil || string(got) != quote {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

// A client that resets its connection does not hold up the next.
func TestResetClient(t *testing.T) {
	client := start(t, "short")
	rude := dial(t, client, "192.0.2.1:17").(*stack.TCPConn)
	rude.SetLinger(0) // Close sends RST
	rude.Close()
	if got, err := io.ReadAll(dial(t, client, "192.0.2.1:17")); err != nil ||
		string(got) != "short" {
		t.Errorf("got %q, %v", got, err)
	}
}

// dial connects, and closes the connection when the test ends.
func dial(t *testing.T, client *stack.Stack, addr string) net.Conn {
	t.Helper()
	conn, err := client.DialTimeout("tcp", addr, 30*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(30 * time.Second))
	return conn
}
