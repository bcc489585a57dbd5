package stack_test

import (
	"context"
	"net"
	"testing"
	"time"
)

// TestDrainOnHost: connections that the kernel has completed for a listener are accepted before it
// is closed, and none begins meanwhile; later ones are reset.
func TestDrainOnHost(t *testing.T) {
	h := &handoverWorld{t: t, host: true}
	h.make()
	s := h.open("host", nil)
	var l net.Listener
	must(t, h.nets[0].Do(func() (err error) {
		l, err = s.Listen("tcp", ":80")
		return err
	}))
	dial := func(limit time.Duration) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		return h.nets[0].DialContext(ctx, "tcp", "10.9.0.1:80")
	}
	var clients []net.Conn
	for range 5 {
		c, err := dial(hangs)
		must(t, err)
		defer c.Close()
		must(t, c.SetDeadline(time.Now().Add(hangs)))
		clients = append(clients, c)
	}
	began := time.Now()
	drained := background(func() error { return s.Drain(t.Context()) })
	eventually(t, "no connection begins", func() bool {
		c, err := dial(100 * time.Millisecond)
		if err == nil {
			clients = append(clients, c)
			return false
		}
		return true
	})
	for range clients {
		select {
		case err := <-drained:
			if time.Since(began) < 2*time.Second { // else its time is over
				t.Fatalf("Drain returned before all were accepted: %v", err)
			}
		default:
		}
		c, err := l.Accept()
		must(t, err)
		defer c.Close()
		_, err = c.Write([]byte("hello"))
		must(t, err)
	}
	if time.Since(began) < 2*time.Second {
		must(t, result(t, "Drain", drained))
	}
	must(t, l.Close())
	for _, c := range clients {
		if n, err := c.Read(make([]byte, 5)); n != 5 {
			t.Errorf("a connection from before the draining: %v", err)
		}
	}
	if c, err := dial(hangs); err == nil {
		must(t, c.SetDeadline(time.Now().Add(hangs)))
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("a connection after the draining is served")
		}
	}
}
