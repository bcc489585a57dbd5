// Package leak checks the recipes of package stacktest with go.uber.org/goleak, without any ignored
// goroutine.
package leak

import (
	"errors"
	"io"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/stack/stacktest"
)

// TestMain is the first recipe: no goroutine remains after all tests.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestCleanup is the second: the cleanup that is registered first runs last.
func TestCleanup(t *testing.T) {
	t.Cleanup(func() { goleak.VerifyNone(t) })
	server, client := stacktest.Pair(t)
	use(t, server, client)
}

// TestDefer is the third: both stacks are closed before a deferred check.
func TestDefer(t *testing.T) {
	defer goleak.VerifyNone(t)
	server, client := stacktest.Pair(t)
	defer server.Close()
	defer client.Close()
	use(t, server, client)
}

// TestLeakIsFound: while the stacks are open, goleak finds their goroutines.
func TestLeakIsFound(t *testing.T) {
	server, client := stacktest.Pair(t)
	use(t, server, client)
	if err := goleak.Find(); err == nil || !strings.Contains(err.Error(), "gvisor.dev/gvisor") {
		t.Errorf("with two stacks open goleak finds %v", err)
	}
}

// use echoes over TCP; Close of the stacks must end the open connection.
func use(t *testing.T, server, client *stack.Stack) {
	t.Helper()
	ln, err := server.Listen("tcp", ":7")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go io.Copy(c, c)
		}
	}()
	c, err := client.Dial("tcp", "192.0.2.1:7")
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Write([]byte("x"))
	if _, err2 := io.ReadFull(c, make([]byte, 1)); errors.Join(err, err2) != nil {
		t.Fatal(err, err2)
	}
}
