package hostmode

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// TestTwoProcesses has two servers on one address: the same port is refused, others are not, and so
// it is between a server and the kernel's own.
func TestTwoProcesses(t *testing.T) {
	w := newWorld(t)
	echoServer(t, w.host, ":9000")
	a := w.start(t, "tcp :8080", "udp :5300")
	b := w.start(t, "tcp :8081", "udp :5301")
	for _, line := range []string{"tcp :8080", "tcp " + hostIP + ":8080",
		"udp :5300", "tcp :9000"} {
		answer := b.do(line)
		if !strings.HasPrefix(answer, "error listen") ||
			strings.Count(answer, syscall.EADDRINUSE.Error()) != 1 ||
			!strings.Contains(answer, "another process of this host has the port") {
			t.Errorf("%s, which another has: %q", line, answer)
		}
	}
	if ln, err := w.host.Listen("tcp", hostIP+":8080"); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a kernel's listener on our port: %v, %v", ln, err)
	}
	for port, s := range map[int]*server{8080: a, 8081: b} {
		must(t, each(20, 4, func(i int) error {
			c, err := dial(w.outside, fmt.Sprintf("%s:%d", hostIP, port))
			if err != nil {
				return err
			}
			return visit(c, "stack", i, 5000)
		}))
		echoServer(t, w.outside, fmt.Sprintf(":%d", 9100+port))
		if got := s.ok(fmt.Sprintf("dial %s:%d 20", outsideIP, 9100+port)); got !=
			"dialled: stack 20, kernel 0" {
			t.Error(got)
		}
	}
	if x, y := a.ok("stats"), b.ok("stats"); !strings.Contains(x, `"FirstPort":61440`) ||
		!strings.Contains(y, `"FirstPort":61696`) {
		t.Errorf("the blocks of ports: %s, %s", x, y)
	}
}

// TestRestart ends a server under connections and starts it again.
func TestRestart(t *testing.T) {
	w := newWorld(t)
	s := w.start(t, "tcp :8080")
	for range 3 {
		c, err := dial(w.outside, hostIP+":8080")
		must(t, err)
		local, err := dial(w.host, hostIP+":8080")
		must(t, err)
		s.stop()
		began := time.Now()
		s = w.start(t, "tcp :8080")
		next, err := dial(w.outside, hostIP+":8080")
		must(t, err)
		must(t, visit(next, "stack", 1, 1000))
		need.Note(t, fmt.Sprintf("host mode: served again after %v",
			time.Since(began).Round(time.Millisecond)))
		c.Close()
		local.Close()
	}
}

// TestKilled kills a server: the kernel answers for its ports at once, and gives them to others.
func TestKilled(t *testing.T) {
	w := newWorld(t)
	s := w.start(t, "tcp :8080", "udp :5300")
	c, err := dial(w.outside, hostIP+":8080")
	must(t, err)
	defer c.Close()
	s.kill()
	if _, err := dial(w.outside, hostIP+":8080"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a new connection: %v, want %v", err, syscall.ECONNREFUSED)
	}
	if _, err := c.Write([]byte("more")); err != nil {
		t.Error(err)
	}
	c.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.Copy(io.Discard, c); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a connection from before: %v, want %v", err, syscall.ECONNRESET)
	}
	for _, port := range []int{8080, 61440, 61695} {
		ln, err := w.host.Listen("tcp", fmt.Sprintf("%s:%d", hostIP, port))
		if err != nil {
			t.Errorf("a port of the server that is gone: %v", err)
			continue
		}
		ln.Close()
	}
}

// TestPortsAgain connects to one port more often than there are ports to connect from: those in
// TIME-WAIT are used again after a second.
func TestPortsAgain(t *testing.T) {
	w := newWorld(t)
	echoServer(t, w.outside, ":9100")
	s := w.start(t)
	for range 2 {
		// between attempts the ports of the last one come to be free again
		for end := time.Now().Add(time.Minute); ; time.Sleep(1500 * time.Millisecond) {
			got := s.do("dial " + outsideIP + ":9100 200")
			if got == "dialled: stack 200, kernel 0" {
				break
			}
			if time.Now().After(end) {
				t.Fatal(got)
			}
		}
	}
}
