//go:build linux

package attack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// States that an iperf3 server sends to a client.
const (
	paramExchange = 9
	createStreams = 10
)

// blocked is the longest that one client may delay the next one, including the time that an iperf3
// client takes itself.
const blocked = 2*time.Second + 2*time.Second

// TestIperf3Blocked: clients that hang up or send nothing at any step of the protocol, and clients
// with impossible requests. After each of them a stock client connects at once.
func TestIperf3Blocked(t *testing.T) {
	need.Tool(t, "iperf3")
	ordinary := `{"tcp":true,"time":10,"parallel":1,"len":131072}`
	for _, tt := range []struct {
		name   string
		steps  int    // states to wait for
		params string // parameters sent after the first state
		silent bool   // keep the connection instead of closing it
	}{
		{"hangs up before its cookie", -1, "", false},
		{"hangs up after its cookie", 0, "", false},
		{"hangs up before its parameters", 1, "", false},
		{"hangs up before its streams", 2, ordinary, false},
		{"silent before its cookie", -1, "", true},
		{"silent before its parameters", 1, "", true},
		{"silent before its streams", 2, ordinary, true},
		{"time of 292 years", 1, `{"tcp":true,"time":9223372037,"parallel":1,"len":131072}`, true},
		{"omit of 292 years", 1, `{"tcp":true,"time":1,"omit":9223372037,"parallel":1}`, true},
		{"parallel of 2^31", 1, `{"tcp":true,"time":1,"parallel":2147483648}`, true},
		{"len of 2^62", 1, `{"tcp":true,"time":1,"len":4611686018427387904}`, true},
		{"a JSON text of 4 GiB", 1, "\xff\xff\xff\xff", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newServer(t, "iperf3")
			ctx := context.Background()
			must(t, w.iperf3(ctx))
			w.baseline = w.rss()
			conn := w.bother(tt.steps, tt.params)
			if !tt.silent {
				conn.Close()
			}
			began := time.Now()
			err := w.iperf3(ctx)
			took := time.Since(began)
			during, after := 1.0, 1.0
			if err != nil || took > blocked {
				during = 0
				t.Errorf("the next client was served after %v (%v), want at most %v", took, err,
					blocked)
			}
			conn.Close()
			if err := w.iperf3(ctx); err != nil {
				after = 0
			}
			w.judge(row{attack: "iperf3: " + tt.name, during: during, after: after,
				growth: w.rss() - w.baseline,
				note: fmt.Sprintf("the next client was done after %v",
					took.Round(10*time.Millisecond))})
		})
	}
}

// bother takes some steps of iperf3's protocol. -1 connects only, 0 sends the cookie, 1 and 2 wait
// for that many states; the parameters, if any, follow the first.
func (w *world) bother(steps int, params string) net.Conn {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := w.ns.DialContext(ctx, "tcp", server4+":5201")
	must(w.t, err)
	w.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	if steps >= 0 {
		_, err = io.WriteString(c, strings.Repeat("a", 36)+"\x00")
		must(w.t, err)
	}
	if steps >= 1 {
		must(w.t, state(c, paramExchange))
	}
	switch {
	case strings.HasPrefix(params, "{"):
		_, err = c.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(params))), params...))
	case params != "":
		_, err = io.WriteString(c, params)
	}
	must(w.t, err)
	if steps >= 2 {
		must(w.t, state(c, createStreams))
	}
	return c
}

func state(c net.Conn, want byte) error {
	var b [1]byte
	if _, err := io.ReadFull(c, b[:]); err != nil {
		return err
	}
	if b[0] != want {
		return fmt.Errorf("the server says %d, want %d", int8(b[0]), want)
	}
	return nil
}

// iperf3 runs a stock client repeatedly until it is served, or fails after ten seconds.
func (w *world) iperf3(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		out, err := w.tool(5*time.Second, "iperf3", "-c", server4, "-n", "64K",
			"--connect-timeout", "3000")
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return errors.Join(err, errors.New(lastLine(out)))
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}
