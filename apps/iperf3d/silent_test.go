package iperf3d

import (
	"encoding/json"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/pipes"
)

// world is a server in virtual time.
type world struct{ *pipes.Listener }

func piped(t *testing.T) world {
	t.Helper()
	s := New(Config{})
	return world{pipes.Serve(t, s.Serve, func() { s.Close() })}
}

// dial opens a connection of the test named by a letter.
func (w world) dial(t *testing.T, letter byte) net.Conn {
	t.Helper()
	c := w.Dial(t)
	k := cookie{letter}
	if _, err := c.Write(k[:]); err != nil {
		t.Fatal(err)
	}
	return c
}

// until takes a client through the protocol to the state; the test has one stream, whose other end
// it returns.
func (w world) until(t *testing.T, ctl net.Conn, letter byte, want state,
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
			data = w.dial(t, letter)
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

// blocked is how long another client waits for its turn, when it retries every 100 ms after a
// refusal.
func blocked(t *testing.T, w world) time.Duration {
	t.Helper()
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		c := w.dial(t, 'z')
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

// TestHangUpFreesAtOnce: at no step of the protocol does a client that has disconnected block
// another one.
func TestHangUpFreesAtOnce(t *testing.T) {
	for name, step := range steps {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := piped(t)
				ctl := w.dial(t, 'a')
				w.until(t, ctl, 'a', step, tcpParams)
				ctl.Close()
				if took := blocked(t, w); took > 200*time.Millisecond {
					t.Errorf("others wait for %v", took)
				}
			})
		})
	}
}

// TestSilenceBlocksTwoSeconds: at no step of the protocol does a silent client block another one
// for longer.
func TestSilenceBlocksTwoSeconds(t *testing.T) {
	for name, step := range steps {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := piped(t)
				ctl := w.dial(t, 'a')
				w.until(t, ctl, 'a', step, tcpParams)
				if took := blocked(t, w); took > 2200*time.Millisecond {
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
