package stack_test

import (
	"errors"
	"io"
	"net"
	"syscall"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/netpair"
)

// TestDrain has connections that the program has not accepted when draining begins: closing the
// listener afterwards resets none of them, and a client that comes meanwhile is refused then.
func TestDrain(t *testing.T) {
	j := join(t, cable{queues: 1})
	server, client := j.server, j.client
	l, err := server.Listen("tcp", ":0")
	must(t, err)
	to := at(netpair.ServerIP4, l.Addr())
	conns := make([]net.Conn, 4)
	for i := range conns {
		conns[i], err = redial(client, to)
		must(t, err)
		defer conns[i].Close()
	}
	drained := background(func() error { return server.Drain(t.Context()) })
	eventually(t, "draining", server.Draining)
	late := background(func() error {
		conn, err := client.DialTimeout("tcp", to, hangs)
		if err == nil {
			conn.Close()
		}
		return err
	})
	eventually(t, "a refused client", func() bool { return server.LinkStats().RxRefused > 0 })
	if n := server.Conns(); n != len(conns) {
		t.Errorf("%d connections, want %d", n, len(conns))
	}
	go func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			go func() {
				defer conn.Close()
				io.Copy(conn, conn)
			}()
		}
	}()
	must(t, result(t, "Drain", drained))
	must(t, l.Close())
	if err := server.Drain(t.Context()); err != nil {
		t.Errorf("again: %v", err)
	}
	for i, conn := range conns {
		if _, err := conn.Write([]byte("x")); err != nil {
			t.Errorf("connection %d: %v", i, err)
		}
		if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
			t.Errorf("connection %d: %v", i, err)
		}
	}
	if err := result(t, "the late client", late); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a client while draining: %v, want it refused", err)
	}
}

// TestConns counts a connection until the program has closed it, whoever ends its direction first,
// and what was written has arrived.
func TestConns(t *testing.T) {
	j := join(t, cable{queues: 1})
	l, err := j.server.Listen("tcp", ":0")
	must(t, err)
	defer l.Close()
	near, err := redial(j.client, at(netpair.ServerIP4, l.Addr()))
	must(t, err)
	far, err := l.Accept()
	must(t, err)
	counts := func(when string, near, far int) {
		t.Helper()
		eventually(t, when, func() bool {
			return j.client.Conns() == near && j.server.Conns() == far
		})
	}
	counts("accepted", 1, 1)
	must(t, near.(interface{ CloseWrite() error }).CloseWrite())
	_, err = io.Copy(io.Discard, far)
	must(t, err)
	eventually(t, "half closed", func() bool { return state(j.client) == "FIN-WAIT-2" })
	counts("half closed", 1, 1)
	_, err = far.Write([]byte("x"))
	must(t, err)
	must(t, far.Close())
	eventually(t, "closed by the peer", func() bool { return state(j.client) == "TIME-WAIT" })
	counts("closed by the peer", 1, 0)
	must(t, near.Close())
	counts("closed", 0, 0)
}

// state is that of a stack's only connection.
func state(s *stack.Stack) string {
	for _, so := range s.Sockets() {
		if so.Remote.IsValid() {
			return so.State
		}
	}
	return ""
}
