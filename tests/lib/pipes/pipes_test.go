package pipes

import (
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestServe: a silent peer's timeouts pass in virtual time, and the end of the server is waited
// for.
func TestServe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l *Listener
		l = Serve(t, func(ln net.Listener) error {
			for {
				c, err := ln.Accept()
				if errors.Is(err, net.ErrClosed) {
					return nil
				}
				c.SetReadDeadline(time.Now().Add(time.Hour))
				_, err = c.Read(make([]byte, 1))
				if ne := net.Error(nil); !errors.As(err, &ne) || !ne.Timeout() {
					t.Errorf("%v, want a timeout", err)
				}
				c.Close()
			}
		}, func() { l.Close() })
		c := l.Dial(t)
		began := time.Now()
		if _, err := c.Read(make([]byte, 1)); err != io.EOF || time.Since(began) != time.Hour {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// TestClose ends Accept, from many goroutines at once.
func TestClose(t *testing.T) {
	l := Listen()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
				t.Errorf("Accept: %v", err)
			}
		})
		wg.Go(func() { l.Close() })
	}
	wg.Wait()
	if l.Addr().Network() != "pipe" {
		t.Error(l.Addr())
	}
}
