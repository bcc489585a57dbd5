package iperf3d

import (
	"encoding/json"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// pipes is a listener in virtual time.
type pipes struct {
	queue chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.queue:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "pipe"} }

// dial opens a connection of the test named by a letter.
func (p *pipes) dial(t *testing.T, letter byte) net.Conn {
	t.Helper()
	near, far := net.Pipe()
	t.Cleanup(func() { near.Close() })
	p.queue <- far
	k := cookie{letter}
	if _, err := near.Write(k[:]); err != nil {
		t.Fatal(err)
	}
	return near
}

// piped starts a server in virtual time.
func piped(t *testing.T) (*Server, *pipes) {
	t.Helper()
	s := New(Config{})
	p := &pipes{queue: make(chan net.Conn), done: make(chan struct{})}
	served := make(chan error, 1)
	go func() { served <- s.Serve(p) }()
	t.Cleanup(func() {
		s.Close()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return s, p
}

// until takes a client through the protocol to the state; it has one stream, whose other end it
// returns.
func (p *pipes) until(t *testing.T, ctl net.Conn, letter byte, want state,
	params string) (data net.Conn) {
	t.Helper()
	for {
		got, err := readState(ctl)
		if err != nil {
			t.Fatal(err)
		}
		if got == want {
			return data
		}
		switch got {
		case paramExchange:
			err = writeJSON(ctl, json.RawMessage(params))
		case createStreams:
			data = p.dial(t, letter)
		case testRunning:
			err = writeState(ctl, testEnd)
		case exchangeResults:
			var results json.RawMessage
			if err = writeJSON(ctl, json.RawMessage(`{}`)); err == nil {
				err = readJSON(ctl, &results)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// blocked is how long another client waits for its turn, trying again every 100 ms when it is sent
// away.
func blocked(t *testing.T, p *pipes) time.Duration {
	t.Helper()
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		c := p.dial(t, 'z')
		st, err := readState(c)
		c.Close()
		if err == nil && st == paramExchange {
			return time.Since(began)
		}
		if time.Since(began) > 48*time.Hour {
			t.Fatal("never")
		}
	}
}

// TestHangUpFreesAtOnce: at no step of the protocol does a client that is gone keep another one
// out.
func TestHangUpFreesAtOnce(t *testing.T) {
	for name, step := range steps {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, p := piped(t)
				ctl := p.dial(t, 'a')
				p.until(t, ctl, 'a', step, tcpParams)
				ctl.Close()
				if took := blocked(t, p); took > 200*time.Millisecond {
					t.Errorf("others wait for %v", took)
				}
			})
		})
	}
}

// TestSilenceBlocksTwoSeconds: at no step of the protocol does a client that says nothing keep
// another one out for longer.
func TestSilenceBlocksTwoSeconds(t *testing.T) {
	for name, step := range steps {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, p := piped(t)
				ctl := p.dial(t, 'a')
				p.until(t, ctl, 'a', step, tcpParams)
				if took := blocked(t, p); took > 2200*time.Millisecond {
					t.Errorf("others wait for %v", took)
				}
			})
		})
	}
}

const tcpParams = `{"tcp":true,"time":60,"parallel":1,"len":1024}`

var steps = map[string]state{
	"before the parameters": paramExchange, "before the streams": createStreams,
	"while the test runs": testRunning,
	"before the results":  exchangeResults, "before the end": displayResults,
}
