// Package pipes gives servers connections in memory that have no buffers, so that a silent or slow
// peer has an immediate effect, and timeouts pass in virtual time (testing/synctest).
package pipes

import (
	"net"
	"sync"
	"testing"
)

// Listener is a net.Listener of net.Pipe connections. Its methods may be called concurrently.
type Listener struct {
	queue chan net.Conn
	once  sync.Once
	done  chan struct{}
}

var _ net.Listener = (*Listener)(nil)

// Serve runs a server on a new listener until the test ends. stop ends the server; serve must then
// return nil.
func Serve(t testing.TB, serve func(net.Listener) error, stop func()) *Listener {
	t.Helper()
	l := Listen()
	served := make(chan error, 1)
	go func() { served <- serve(l) }()
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return l
}

// Listen makes a listener, which needs no port.
func Listen() *Listener {
	return &Listener{queue: make(chan net.Conn), done: make(chan struct{})}
}

// Dial returns the client's end of a connection once the server has accepted it. It is closed when
// the test ends. On a closed listener the test fails.
func (l *Listener) Dial(t testing.TB) net.Conn {
	t.Helper()
	near, far := net.Pipe()
	t.Cleanup(func() { near.Close() })
	select {
	case l.queue <- far:
	case <-l.done:
		t.Fatal("the listener is closed")
	}
	return near
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.queue:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. It may be called more than once.
func (l *Listener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "pipe"} }
