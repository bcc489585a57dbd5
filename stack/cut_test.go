package stack_test

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/netpair"
)

// cutWorld is a server with a listener, and connections of a client.
type cutWorld struct {
	t *testing.T
	*joined
	l  net.Listener
	to string
}

func newCutWorld(t *testing.T) *cutWorld { return newCutWorldOn(t, cable{queues: 1}) }

func newCutWorldOn(t *testing.T, c cable) *cutWorld {
	w := &cutWorld{t: t, joined: join(t, c)}
	var err error
	w.l, err = w.server.Listen("tcp", ":0")
	must(t, err)
	w.to = at(netpair.ServerIP4, w.l.Addr())
	return w
}

func (w *cutWorld) dial() net.Conn {
	w.t.Helper()
	conn, err := redial(w.client, w.to)
	must(w.t, err)
	w.t.Cleanup(func() { conn.Close() })
	return conn
}

// pair is both ends of a connection, the client's first.
func (w *cutWorld) pair() (near, far net.Conn) {
	w.t.Helper()
	near = w.dial()
	far, err := w.l.Accept()
	must(w.t, err)
	return near, far
}

// write sends a byte, which waits at the other end when it returns.
func (w *cutWorld) write(near net.Conn, far *stack.TCPConn) {
	w.t.Helper()
	_, err := near.Write([]byte("x"))
	must(w.t, err)
	eventually(w.t, "what the client has sent", func() bool {
		for _, so := range w.server.Sockets() {
			if so.Remote.String() == far.RemoteAddr().String() {
				return so.RecvQ == 1
			}
		}
		return false
	})
}

// TestDrainError: what is not accepted when the time of Drain is over is told, and then cut with
// the listener.
func TestDrainError(t *testing.T) {
	w := newCutWorld(t)
	for range 3 {
		w.dial()
	}
	eventually(t, "connections to accept", func() bool {
		return w.server.Sockets()[0].RecvQ == 3
	})
	ctx, cancel := context.WithCancel(t.Context())
	drained := background(func() error { return w.server.Drain(ctx) })
	eventually(t, "draining", w.server.Draining)
	cancel()
	var left *stack.DrainError
	err := result(t, "Drain", drained)
	if !errors.As(err, &left) || !errors.Is(err, context.Canceled) ||
		left.Unaccepted != 3 || left.Handshakes != 0 {
		t.Errorf("Drain: %v (%+v), want 3 connections to accept", err, left)
	}
	if cut := w.server.Cut(); cut != (stack.Cut{}) {
		t.Errorf("before the listener is closed: %+v", cut)
	}
	must(t, w.l.Close())
	if cut := w.server.Cut(); cut != (stack.Cut{Reset: 3}) {
		t.Errorf("with the listener: %+v, want 3 that were reset", cut)
	}
}

// TestCut ends connections of a server that drains in several ways: those that are reset are
// counted, also at the end of the stack, and no others.
func TestCut(t *testing.T) {
	for _, c := range []struct {
		name string
		want stack.Cut
		end  func(w *cutWorld, near net.Conn, far *stack.TCPConn)
	}{
		{"left open", stack.Cut{Reset: 1}, func(*cutWorld, net.Conn, *stack.TCPConn) {}},
		{"unread data", stack.Cut{Reset: 1},
			func(w *cutWorld, near net.Conn, far *stack.TCPConn) {
				w.write(near, far)
				must(w.t, far.Close())
			}},
		{"data on its way", stack.Cut{Reset: 1},
			func(w *cutWorld, near net.Conn, far *stack.TCPConn) {
				must(w.t, far.Close())
				_, err := near.Write([]byte("x"))
				must(w.t, err)
				eventually(w.t, "a reset", func() bool { return w.server.Cut().Reset == 1 })
			}},
		{"aborted", stack.Cut{Reset: 1},
			func(w *cutWorld, _ net.Conn, far *stack.TCPConn) {
				must(w.t, far.SetLinger(0))
				must(w.t, far.Close())
			}},
		{"closed by both", stack.Cut{},
			func(w *cutWorld, near net.Conn, far *stack.TCPConn) {
				must(w.t, far.Close())
				_, err := io.Copy(io.Discard, near)
				must(w.t, err)
				must(w.t, near.Close())
			}},
		{"closed by the server", stack.Cut{},
			func(w *cutWorld, _ net.Conn, far *stack.TCPConn) {
				must(w.t, far.Close())
			}},
		{"a refused client", stack.Cut{},
			func(w *cutWorld, _ net.Conn, far *stack.TCPConn) {
				must(w.t, far.Close())
				must(w.t, w.l.Close())
				_, err := w.client.DialTimeout("tcp", w.to, hangs)
				if !errors.Is(err, syscall.ECONNREFUSED) {
					w.t.Error(err)
				}
			}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newCutWorld(t)
			near, far := w.pair()
			must(t, w.server.Drain(t.Context()))
			c.end(w, near, far.(*stack.TCPConn))
			must(t, w.server.Shutdown(t.Context()))
			if cut := w.server.Cut(); cut != c.want {
				t.Errorf("%+v, want %+v", cut, c.want)
			}
			if _, err := near.Read(make([]byte, 1)); c.want.Reset == 0 &&
				!errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
				t.Errorf("the client's end: %v, want io.EOF", err)
			}
		})
	}
}

// TestCutAfterTheEnd: the server's FIN comes twice, and the client acknowledges both. The second
// ACK is answered with a RST, as Linux does, but nothing is cut: both ends had ended.
func TestCutAfterTheEnd(t *testing.T) {
	w := newCutWorldOn(t, cable{queues: 1, faults: wire.FaultConfig{Duplicate: 1}})
	near, far := w.pair()
	must(t, w.server.Drain(t.Context()))
	must(t, near.(*stack.TCPConn).CloseWrite())
	_, err := io.Copy(io.Discard, far)
	must(t, err)
	sent := w.server.Stats().TCPResetsSent
	must(t, far.Close())
	eventually(t, "a RST", func() bool { return w.server.Stats().TCPResetsSent > sent })
	must(t, w.server.Shutdown(t.Context()))
	if cut := w.server.Cut(); cut != (stack.Cut{}) {
		t.Errorf("%+v, want none", cut)
	}
}
