package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
)

// drained is a server on veth0 that is told to end.
type drained struct {
	*script
	cmd       *exec.Cmd
	admin     string // directory of its socket
	out, errs *growing
}

func newDrained(t *testing.T, n *lab.Net, address, limit string) *drained {
	return newDrainedServer(t, n, "http --debug-endpoints --address "+address+" --drain "+limit)
}

// newDrainedServer is a server of some kind, whose zone file, if it has one, is z.
func newDrainedServer(t *testing.T, n *lab.Net, kind string) *drained {
	d := &drained{script: &script{t: t, dir: t.TempDir(), net: n}, admin: t.TempDir(),
		out: newGrowing(), errs: newGrowing()}
	d.unpack("-- z --\n" + zoneOfNS)
	d.cmd = d.program(strings.Fields("serve " + kind + " --device veth0"))
	d.cmd.Env = append(d.cmd.Env, "RUNTIME_DIRECTORY="+d.admin)
	d.cmd.Stdout, d.cmd.Stderr = d.out, d.errs
	if err := d.launch(d.cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.cmd.Process.Kill() })
	if err := d.out.await("try: "); err != nil {
		t.Fatal(err, d.errs)
	}
	return d
}

// TestDrain tells a server with a transfer under way to end: new clients are refused, /readyz says
// so, and the transfer finishes, unless there is a second signal or the time is over.
func TestDrain(t *testing.T) {
	for _, c := range []struct {
		name, limit, said   string
		second, whole, host bool
		idle                bool // a connection without a request gets one after its end
	}{
		{name: "finishes", limit: "5m", whole: true, said: "drained: no connection was cut"},
		{name: "finishes on the host's own address", host: true, limit: "5m", whole: true,
			said: "drained: no connection was cut"},
		{name: "a request too late", limit: "5m", whole: true, idle: true,
			said: `"drained: connections were cut" reset=1 unknown=0 unanswered=1`},
		{name: "second signal", limit: "5m", second: true, said: `reason="another signal"`},
		{name: "limit", limit: "500ms", said: `reason="context deadline exceeded"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			server, client := vethLab(t)
			address := "192.0.2.10/24"
			if c.host {
				addServerAddresses(t, server)
				address = "host"
			}
			d := newDrained(t, server, address, c.limit)
			const size = 32 << 20
			resp, err := clientFrom(client).Get(fmt.Sprint("http://192.0.2.10/-/bytes/", size))
			if err != nil {
				t.Fatal(err)
			}
			fast, came := make(chan struct{}), make(chan int64, 1)
			go func() { came <- slowly(resp.Body, fast) }()
			d.expectReady(http.StatusOK)
			idle, err := client.DialContext(t.Context(), "tcp", "192.0.2.10:80")
			if err != nil {
				t.Fatal(err)
			}
			defer idle.Close()
			d.cmd.Process.Signal(unix.SIGTERM)
			if err := d.errs.await("draining: no new connections"); err != nil {
				t.Error(err)
			}
			switch {
			case c.second:
				d.cmd.Process.Signal(unix.SIGTERM)
			case c.whole:
				d.expectRefused(client, "80")
				d.expectReady(http.StatusServiceUnavailable)
			}
			if !c.whole {
				if err := d.errs.await("cut the connections"); err != nil {
					t.Error(err)
				}
			}
			if c.idle {
				d.asksTooLate(idle)
			}
			close(fast)
			if n := <-came; (n == size) != c.whole {
				t.Errorf("%d of %d bytes came", n, size)
			}
			resp.Body.Close()
			if err := d.cmd.Wait(); err != nil || !strings.Contains(d.errs.String(), c.said) {
				t.Errorf("it ended with %v: %s; want %q", err, d.errs, c.said)
			}
		})
	}
}

// asksTooLate sends a request to a connection that the server has ended.
func (d *drained) asksTooLate(conn net.Conn) {
	d.t.Helper()
	conn.SetDeadline(time.Now().Add(stepTime))
	if n, err := conn.Read(make([]byte, 1)); err != io.EOF {
		d.t.Errorf("the end of a connection without a request: %d, %v", n, err)
	}
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
		d.t.Error(err)
	}
	if _, err := io.Copy(conn, neverEnds{}); !errors.Is(err, syscall.EPIPE) &&
		!errors.Is(err, syscall.ECONNRESET) {
		d.t.Errorf("a request after the end: %v, want it reset", err)
	}
}

// neverEnds is a request that goes on and on.
type neverEnds struct{}

func (neverEnds) Read(b []byte) (int, error) { return min(len(b), 1), nil }

func clientFrom(n *lab.Net) *http.Client {
	return &http.Client{Timeout: stepTime, Transport: &http.Transport{DialContext: n.DialContext}}
}

// slowly reads 16 KiB every 20 ms, a rate that the server accepts, until fast is closed, and then
// as fast as it can. It returns how many bytes there were.
func slowly(r io.Reader, fast chan struct{}) (n int64) {
	for {
		m, err := io.CopyN(io.Discard, r, 16<<10)
		n += m
		if err != nil {
			return n
		}
		select {
		case <-fast:
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// expectRefused dials until the listener is away: a client may come before that.
func (d *drained) expectRefused(from *lab.Net, port string) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), stepTime)
	defer cancel()
	for {
		conn, err := from.DialContext(ctx, "tcp", "192.0.2.10:"+port)
		if err == nil {
			conn.Close()
			continue
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			d.t.Errorf("a new client: %v, want it refused", err)
		}
		return
	}
}

// expectReady asks /readyz of the admin endpoint.
func (d *drained) expectReady(want int) {
	d.t.Helper()
	client := http.Client{Timeout: stepTime, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix",
				filepath.Join(d.admin, fmt.Sprint(d.cmd.Process.Pid, ".sock")))
		}}}
	resp, err := client.Get("http://server/readyz")
	if err != nil {
		d.t.Error(err)
		return
	}
	resp.Body.Close()
	if resp.StatusCode != want {
		d.t.Errorf("ready: %d, want %d", resp.StatusCode, want)
	}
}
