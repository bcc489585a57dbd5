package stack_test

import (
	"errors"
	"io"
	"net"
	"syscall"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/tests/netpair"
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
