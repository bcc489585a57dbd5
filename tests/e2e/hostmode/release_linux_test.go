package hostmode

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

// sockets is how many sockets a server has open. (io.Copy keeps pipes open.)
func (s *server) sockets() (n int) {
	s.t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", s.cmd.Process.Pid)
	all, err := os.ReadDir(dir)
	must(s.t, err)
	for _, fd := range all {
		target, err := os.Readlink(filepath.Join(dir, fd.Name()))
		if err == nil && strings.HasPrefix(target, "socket:") {
			n++
		}
	}
	return n
}

// eventually waits until something is so.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not so: %s", what)
		}
	}
}

// free says whether a server of the kernel can have a port of the host's address.
func (w *world) free(t *testing.T, port int) bool {
	t.Helper()
	ln, err := w.host.Listen("tcp", fmt.Sprintf("%s:%d", hostIP, port))
	if err == nil {
		ln.Close()
	} else if !errors.Is(err, syscall.EADDRINUSE) {
		t.Fatal(err)
	}
	return err == nil
}

// TestPortGivenBack closes listeners: everybody is refused at once, as by the kernel, which has the
// port again, and no descriptors are left.
func TestPortGivenBack(t *testing.T) { onBoth(t, portGivenBack) }

func portGivenBack(t *testing.T, w *world) {
	s := w.start(t)
	everywhere := []string{hostIP, "[" + hostIPv6 + "]", "127.0.0.1", "[::1]"}
	eventually(t, "256 ports of TCP and UDP of each address, a link-local one among them, are held",
		func() bool { return s.sockets() > 3*512 })
	before := s.sockets()
	for i := range 5 {
		s.ok("tcp :8080")
		of := s.ok("tcp :0")
		port := of[strings.LastIndex(of, ":")+1:] // of the block
		for _, to := range everywhere {
			c, err := dial(w.host, to+":8080")
			must(t, err)
			must(t, visit(c, "kernel", i, 100))
		}
		s.ok("close")
		for _, to := range everywhere {
			if c, err := dial(w.host, to+":8080"); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("the kernel to %s: %v, %v", to, c, err)
			}
			for _, port := range []string{"8080", port} {
				got := s.do("dial " + to + ":" + port + " 1")
				if !strings.Contains(got, syscall.ECONNREFUSED.Error()) {
					t.Errorf("the stack to %s:%s: %s", to, port, got)
				}
			}
		}
		if c, err := dial(w.outside, hostIP+":8080"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("from outside: %v, %v", c, err)
		}
		if !w.free(t, 8080) {
			t.Error("a server of the kernel does not get the port")
		}
	}
	eventually(t, "as many sockets as before", func() bool { return s.sockets() == before })
	s.stop()
}

// TestPortOutlived closes a listener under connections: they go on, and for as long as one of the
// stack's is left, in TIME-WAIT, too, nobody else gets the port.
func TestPortOutlived(t *testing.T) { onBoth(t, portOutlived) }

func portOutlived(t *testing.T, w *world) {
	s := w.start(t)
	s.ok("timewait 4s")
	resets := w.kernelCounter(t, "Tcp", "OutRsts")
	s.ok("tcp :8080")
	met := map[string]*buffered{}
	for owner, from := range map[string]*lab.Net{"stack": w.outside, "kernel": w.host} {
		c, err := dial(from, hostIP+":8080")
		must(t, err)
		met[owner], err = meet(c, owner)
		must(t, err)
	}
	s.ok("close")
	if w.free(t, 8080) {
		t.Error("a server of the kernel gets a port that has connections of ours")
	}
	if got := s.do("dial " + hostIP + ":8080 1"); !strings.Contains(got,
		syscall.ECONNREFUSED.Error()) {
		t.Errorf("the stack to its own silent port: %s", got)
	}
	if at := s.connections(8080); len(at) != 2 {
		t.Errorf("both connections are not listed: %+v", at)
	}
	must(t, echo(met["stack"], payload(1, 100000)))
	eventually(t, "the port is given back", func() bool { return w.free(t, 8080) })
	if at := s.connections(8080); len(at) != 1 || !at[0].Kernel {
		t.Errorf("the kernel's connection is not listed: %+v", at)
	}
	must(t, echo(met["kernel"], payload(2, 100000)))

	s.ok(fmt.Sprintf("tcp :%d", bulkPort))
	c, err := dial(w.outside, fmt.Sprintf("%s:%d", hostIP, bulkPort))
	must(t, err)
	bytes, err := io.Copy(io.Discard, c) // the server closes first
	must(t, errors.Join(err, c.Close()))
	if bytes != bulkSize {
		t.Errorf("%d bytes", bytes)
	}
	s.ok("close")
	echoServer(t, w.outside, ":9100")
	if got, want := s.ok("dialfrom 5555 "+outsideIP+":9100"), "from "+hostIP+":5555"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	w.waitFor(t, s, bulkPort, 5555)
	if got := s.do("dialfrom 5556 " + outsideIP + ":1"); !strings.Contains(got,
		syscall.ECONNREFUSED.Error()) {
		t.Error(got)
	}
	if !w.free(t, 5556) {
		t.Error("a port stays taken from which a dial has failed")
	}
	if w.rings {
		for _, r := range s.rules() {
			if !strings.Contains(r, " ports ") {
				t.Errorf("a rule is left: %s", r)
			}
		}
	}
	if got := w.kernelCounter(t, "Tcp", "OutRsts") - resets; got != 0 {
		t.Errorf("the kernel has sent %d RSTs", got)
	}
	s.stop()
}

// waitFor requires that nobody gets ports before their connections, in TIME-WAIT, are over.
func (w *world) waitFor(t *testing.T, s *server, ports ...int) {
	t.Helper()
	states := map[string]bool{}
	eventually(t, fmt.Sprintf("ports %v are given back", ports), func() bool {
		ports = slices.DeleteFunc(ports, func(port int) bool {
			for _, c := range s.connections(port) {
				states[fmt.Sprintf("%d %s", port, c.State)] = true
			}
			if !w.free(t, port) {
				return false
			}
			if left := s.connections(port); !states[fmt.Sprintf("%d TIME-WAIT", port)] ||
				len(left) > 0 {
				t.Errorf("port %d is free; its states were %v, and there is %+v", port, states,
					left)
			}
			return true
		})
		return len(ports) == 0
	})
}

// connections are those that a server's Sockets has at a port.
func (s *server) connections(port int) (at []stack.Socket) {
	s.t.Helper()
	var all []stack.Socket
	must(s.t, json.Unmarshal([]byte(s.ok("sockets")), &all))
	for _, so := range all {
		if so.Network == "tcp" && int(so.Local.Port()) == port && so.State != "LISTEN" {
			at = append(at, so)
		}
	}
	return at
}
