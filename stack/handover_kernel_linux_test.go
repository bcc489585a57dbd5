package stack_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// onHost runs a test with the host's own address, on packet sockets and on rings.
func onHost(t *testing.T, test func(*testing.T, *handoverWorld)) {
	for name, h := range map[string]*handoverWorld{"packet sockets": {host: true},
		"rings": {host: true, nic: card(t, "sim", 1)}} {
		t.Run(name, func(t *testing.T) {
			h.t = t
			h.make()
			test(t, h)
		})
	}
}

// serveKernel echoes what comes to the kernel's sockets of TCP, and answers kernel at those of UDP.
func (h *handoverWorld) serveKernel(sockets []stack.KernelSocket) {
	for _, s := range sockets {
		defer s.File.Close()
		if s.Network == "udp" {
			c, err := net.FilePacketConn(s.File)
			must(h.t, err)
			h.t.Cleanup(func() { c.Close() })
			go func() {
				b := make([]byte, 100)
				for _, from, err := c.ReadFrom(b); err == nil; _, from, err = c.ReadFrom(b) {
					c.WriteTo([]byte("kernel"), from)
				}
			}()
			continue
		}
		l, err := net.FileListener(s.File)
		must(h.t, err)
		h.t.Cleanup(func() { l.Close() })
		go func() {
			for c, err := l.Accept(); err == nil; c, err = l.Accept() {
				go io.Copy(c, c)
			}
		}()
	}
}

// resets is how many the kernel of the host has sent.
func (h *handoverWorld) resets() (n string) {
	must(h.t, h.nets[0].Do(func() error {
		text, err := os.ReadFile("/proc/thread-self/net/snmp")
		_, tcp, _ := strings.Cut(string(text), "\nTcp: ")
		_, tcp, _ = strings.Cut(tcp, "\nTcp: ")
		n = strings.Fields(tcp)[13] // OutRsts
		return err
	}))
	return n
}

// filtered says whether a socket of the kernel has a filter.
func filtered(t *testing.T, f *os.File) bool {
	t.Helper()
	n, err := unix.GetsockoptInt(int(f.Fd()), unix.SOL_SOCKET, unix.SO_GET_FILTER)
	must(t, err)
	return n != 0
}

// TestHandOverToKernel: connections stay, new clients are Linux's, by the netdev and from the host,
// and none is reset; once those that stayed are over nothing is left of us.
func TestHandOverToKernel(t *testing.T) { onHost(t, testHandOverToKernel) }

func testHandOverToKernel(t *testing.T, h *handoverWorld) {
	before := h.open("before", nil, 53)
	var old []net.Conn
	for i := range 8 {
		old = append(old, h.dialFrom(h.nets[1-i%2], "tcp", 7))
		echoed(t, old[i])
	}
	if got := h.who(53); got != "before" {
		t.Errorf("port 53 is %q's", got)
	}
	sockets, err := before.HandOverToKernel(t.Context())
	must(t, err)
	var files []*os.File // serveKernel closes those of sockets
	for _, s := range sockets {
		fd, err := unix.Dup(int(s.File.Fd()))
		must(t, err)
		files = append(files, os.NewFile(uintptr(fd), s.Network))
		defer files[len(files)-1].Close()
	}
	h.serveKernel(sockets)
	var late []net.Conn
	for range 3 {
		for i := range 8 {
			late = append(late, h.dialFrom(h.nets[1-i%2], "tcp", 7))
		}
		for _, c := range append(late, old...) {
			echoed(t, c)
		}
	}
	if got := h.who(53); got != "kernel" {
		t.Errorf("port 53 is %q's, want the kernel's", got)
	}
	if got, want := before.Conns(), 4; got != want {
		t.Errorf("the stack has %d connections, want %d", got, want)
	}
	for _, c := range old {
		echoed(t, c)
		must(t, c.(*net.TCPConn).CloseWrite())
		if b, err := io.ReadAll(c); err != nil || len(b) > 0 {
			t.Errorf("the end of a connection that stayed: %q, %v", b, err)
		}
	}
	if got := h.resets(); got != "0" {
		t.Errorf("the kernel has sent %s RSTs", got)
	}
	if n := before.Netstack().Stats().TCP.ResetsSent.Value(); n != 0 {
		t.Errorf("the stack has sent %d RSTs", n)
	}
	must(t, before.Close())
	for _, f := range files {
		if filtered(t, f) {
			t.Errorf("the socket of %s still has a filter", f.Name())
		}
	}
	for _, c := range append(late, h.dial("tcp", 7)) {
		echoed(t, c)
	}
}

// TestKernelBeginsAnew: a client uses the port of a connection again that is over, but not
// forgotten here.
func TestKernelBeginsAnew(t *testing.T) {
	onHost(t, func(t *testing.T, h *handoverWorld) {
		s := h.open("before", nil)
		var l net.Listener
		must(t, h.nets[0].Do(func() (err error) {
			l, err = s.Listen("tcp", ":80")
			return err
		}))
		from := func() net.Conn {
			var c net.Conn
			eventually(t, "the port is free again", func() bool {
				err := h.nets[1].Do(func() (err error) {
					d := net.Dialer{Timeout: hangs, LocalAddr: &net.TCPAddr{
						IP: net.IPv4(10, 9, 0, 2), Port: 20000}}
					c, err = d.DialContext(t.Context(), "tcp", "10.9.0.1:80")
					return err
				})
				if !errors.Is(err, syscall.EADDRINUSE) {
					must(t, err)
				}
				return err == nil
			})
			must(t, c.SetDeadline(time.Now().Add(hangs)))
			return c
		}
		c := from()
		served, err := l.Accept()
		must(t, err)
		must(t, served.Close()) // first: TIME-WAIT is ours
		_, err = io.ReadAll(c)
		must(t, err)
		must(t, c.Close())
		sockets, err := s.HandOverToKernel(t.Context())
		must(t, err)
		h.serveKernel(sockets)
		c = from()
		defer c.Close()
		echoed(t, c)
		if got := h.resets(); got != "0" {
			t.Errorf("the kernel has sent %s RSTs", got)
		}
	})
}

// TestHandOverToKernelRefused: nothing changes if it cannot be.
func TestHandOverToKernelRefused(t *testing.T) {
	own := newHandoverWorld(t)
	s := own.open("own address", nil)
	if _, err := s.HandOverToKernel(t.Context()); err == nil {
		t.Error("a stack with an address of its own hands over to the kernel")
	}
	echoed(t, own.dial("tcp", 7))
	onHost(t, func(t *testing.T, h *handoverWorld) {
		s := h.open("host", nil, 53)
		old := h.dial("tcp", 7)
		echoed(t, old)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := s.HandOverToKernel(ctx); err == nil {
			t.Error("it hands over in no time")
		}
		echoed(t, old)
		for i := range 4 {
			echoed(t, h.dialFrom(h.nets[i%2], "tcp", 7))
		}
		if got := h.who(53); got != "host" {
			t.Errorf("port 53 is %q's", got)
		}
	})
}
