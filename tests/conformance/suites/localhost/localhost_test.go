//go:build linux

package localhost

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/unmodified"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newHost(t *testing.T, slices int) *Host {
	t.Helper()
	h, err := Open(t.Context(), slices)
	must(t, err)
	t.Cleanup(func() { must(t, h.Close()) })
	h.notes.writeTo(t.TempDir())
	return h
}

// open makes a socket that is to be a slice's, as package net asks for it.
func open(t *testing.T, h *Host, network string, local, remote net.Addr) unmodified.Socket {
	t.Helper()
	s, c, err := h.OpenSocket(context.Background(), network, local, remote, nil)
	must(t, err)
	if s == nil || c != nil {
		t.Fatalf("%s from %v to %v: the socket is the kernel's", network, local, remote)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func udp(ip string, port int) *net.UDPAddr { return &net.UDPAddr{IP: net.ParseIP(ip), Port: port} }

// TestDatagrams sends from one socket to another, by each way to send, over both versions of IP:
// what a program is told are addresses of loopback, and each datagram crosses the wire.
func TestDatagrams(t *testing.T) {
	h := newHost(t, 4)
	for _, ip := range []string{"127.0.0.1", "::1"} {
		is := netip.MustParseAddr(ip)
		network := map[bool]string{true: "udp6", false: "udp4"}[is.Is6()]
		server := open(t, h, network, udp(ip, 0), nil)
		client := open(t, h, network, nil, server.LocalAddr())
		must(t, errors.Join(server.SetDeadline(time.Now().Add(time.Minute)),
			client.SetDeadline(time.Now().Add(time.Minute))))
		for _, a := range []net.Addr{server.LocalAddr(), client.LocalAddr(), client.RemoteAddr()} {
			if addressOf(a).Addr() != is {
				t.Errorf("%s: a program is told %v", ip, a)
			}
		}
		must(t, server.SetOption(unix.IPPROTO_IP, unix.IP_PKTINFO, 1))
		must(t, server.SetOption(unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1))
		before := h.fabric.carried.Load()
		_, err := client.Write([]byte("question"))
		must(t, err)
		b, oob := make([]byte, 100), make([]byte, 100)
		n, nn, _, from, err := server.ReadMsg(b, oob, 0)
		must(t, err)
		if string(b[:n]) != "question" || from != addressOf(client.LocalAddr()) ||
			!bytes.Contains(oob[:nn], is.AsSlice()) {
			t.Errorf("%s: %q from %v, client %v, control messages %x", ip, b[:n], from,
				client.LocalAddr(), oob[:nn])
		}
		_, _, err = server.WriteMsg([]byte("by message"), oob[:nn], from)
		must(t, err)
		_, err = server.WriteAddr([]byte("by address"), from)
		must(t, err)
		_, err = server.(batches).WriteBatch([]ipv4.Message{
			{Buffers: [][]byte{[]byte("in a batch")}, Addr: client.LocalAddr()}}, 0)
		must(t, err)
		for _, want := range []string{"by message", "by address", "in a batch"} {
			ms := []ipv4.Message{{Buffers: [][]byte{b}, OOB: oob}}
			_, err := client.(batches).ReadBatch(ms, 0)
			must(t, err)
			if got := string(b[:ms[0].N]); got != want {
				t.Errorf("%s: %q, want %q", ip, got, want)
			}
			if a := ms[0].Addr; a != nil && addressOf(a) != addressOf(server.LocalAddr()) {
				t.Errorf("%s: from %v, want %v", ip, a, server.LocalAddr())
			}
		}
		if n := h.fabric.carried.Load() - before; n != 4 {
			t.Errorf("%s: %d frames crossed the wire, want 4", ip, n)
		}
	}
	if own := h.own.Load(); own != 0 {
		t.Errorf("%d datagrams stayed on a slice", own)
	}
}

// TestSourceOfAnswer names the source address of a datagram, which is loopback's, by a control
// message, in the forms of both versions of IP.
func TestSourceOfAnswer(t *testing.T) {
	h := newHost(t, 2)
	for _, c := range []struct {
		network, ip string
		control     []byte
	}{
		{"udp4", "127.0.0.1", (&ipv4.ControlMessage{Src: net.IPv4(127, 0, 0, 1)}).Marshal()},
		{"udp6", "::1", (&ipv6.ControlMessage{Src: net.IPv6loopback}).Marshal()},
	} {
		to, from := open(t, h, c.network, udp(c.ip, 0), nil), open(t, h, c.network, nil, nil)
		must(t, to.SetDeadline(time.Now().Add(time.Minute)))
		was := slices.Clone(c.control)
		_, _, err := from.WriteMsg([]byte("x"), c.control, addressOf(to.LocalAddr()))
		must(t, err)
		if !bytes.Equal(was, c.control) {
			t.Error("the program's control message was changed")
		}
		_, source, err := to.ReadAddr(make([]byte, 10))
		must(t, err)
		if source.Addr() != netip.MustParseAddr(c.ip) {
			t.Errorf("from %v", source)
		}
	}
}

// TestPeersApart connects to sockets while all slices have as many: no peer is on the slice of the
// socket that it connects to.
func TestPeersApart(t *testing.T) {
	h := newHost(t, 2)
	for _, a := range []unmodified.Socket{open(t, h, "udp4", udp("127.0.0.1", 0), nil),
		open(t, h, "udp4", udp("127.0.0.1", 0), nil)} {
		must(t, a.SetDeadline(time.Now().Add(time.Minute)))
		b := open(t, h, "udp4", nil, a.LocalAddr())
		_, err := b.Write([]byte("x"))
		must(t, err)
		_, _, err = a.ReadAddr(make([]byte, 1))
		must(t, err)
		must(t, b.Close())
	}
	if own := h.own.Load(); own != 0 {
		t.Errorf("%d datagrams stayed on a slice", own)
	}
}

// TestVersionsOfIP makes a port one slice's over IPv4, without a socket any more, and another's
// over IPv6: a socket over both is refused.
func TestVersionsOfIP(t *testing.T) {
	h := newHost(t, 2)
	four := open(t, h, "udp4", udp("127.0.0.1", 0), nil)
	at := four.LocalAddr().(*net.UDPAddr).Port
	open(t, h, "udp6", udp("::1", at), nil)
	must(t, four.Close())
	_, _, err := h.OpenSocket(t.Context(), "udp", &net.UDPAddr{Port: at}, nil, nil)
	if !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("both versions: %v", err)
	}
}

// TestConnections connects, and looks what either end is told.
func TestConnections(t *testing.T) {
	h := newHost(t, 3)
	l := open(t, h, "tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}, nil)
	c := open(t, h, "tcp4", nil, l.LocalAddr())
	got, _, err := l.Accept()
	must(t, err)
	accepted := got.(unmodified.Socket)
	defer accepted.Close()
	if accepted.RemoteAddr().String() != c.LocalAddr().String() ||
		accepted.LocalAddr().String() != c.RemoteAddr().String() ||
		!addressOf(c.LocalAddr()).Addr().IsLoopback() {
		t.Errorf("%v to %v; accepted at %v from %v", c.LocalAddr(), c.RemoteAddr(),
			accepted.LocalAddr(), accepted.RemoteAddr())
	}
	if h.fabric.carried.Load() < 3 {
		t.Error("the handshake did not cross the wire")
	}
}

// TestPorts wants what one host does: a port that is taken is refused whichever slice the socket
// would be on, and one without a socket refuses datagrams and connections.
func TestPorts(t *testing.T) {
	h := newHost(t, 4)
	first := open(t, h, "udp4", udp("127.0.0.1", 0), nil)
	_, _, err := h.OpenSocket(t.Context(), "udp4", first.LocalAddr(), nil, nil)
	if !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a taken port: %v", err)
	}
	must(t, first.Close())
	again := open(t, h, "udp4", first.LocalAddr(), nil)
	if again.LocalAddr().String() != first.LocalAddr().String() {
		t.Errorf("the port anew: %v", again.LocalAddr())
	}
	nobody := open(t, h, "udp4", nil, udp("127.0.0.1", 9))
	must(t, nobody.SetDeadline(time.Now().Add(time.Minute)))
	_, err = nobody.Write([]byte("x"))
	must(t, err)
	if _, err := nobody.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a port that nobody has: %v", err)
	}
	late := open(t, h, "udp4", udp("127.0.0.1", 9), nil)
	must(t, late.SetDeadline(time.Now().Add(time.Minute)))
	_, err = nobody.Write([]byte("now"))
	must(t, err)
	if _, _, err := late.ReadAddr(make([]byte, 10)); err != nil {
		t.Errorf("who binds the port later: %v", err)
	}
	_, _, err = h.OpenSocket(t.Context(), "tcp4", nil, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1),
		Port: 9}, nil)
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a connection to nobody: %v", err)
	}
}

// TestOthersAreTheKernels leaves what is not on loopback to the kernel, and says so.
func TestOthersAreTheKernels(t *testing.T) {
	h := newHost(t, 1)
	s, c, err := h.OpenSocket(t.Context(), "udp4", nil, udp("198.51.100.1", 9), nil)
	if s != nil || c != nil || err != nil {
		t.Errorf("%v, %v, %v", s, c, err)
	}
	if h.notes.said.Kernel != 1 {
		t.Errorf("notes: %v", &h.notes.said)
	}
}

// TestNotes reads back what a process writes.
func TestNotes(t *testing.T) {
	h := newHost(t, 2)
	dir := t.TempDir()
	h.notes.writeTo(dir)
	a := open(t, h, "udp4", udp("127.0.0.1", 0), nil)
	b := open(t, h, "udp4", nil, a.LocalAddr())
	must(t, a.SetDeadline(time.Now().Add(time.Minute)))
	_, err := b.Write([]byte("x"))
	must(t, err)
	_, _, err = a.ReadAddr(make([]byte, 1))
	must(t, errors.Join(err, a.Close(), b.Close()))
	n, err := ReadNotes(dir)
	must(t, err)
	if n.Sockets != 2 || n.Tests["TestNotes"] != 2 || n.Sent != 1 || n.Frames != 1 || n.Own != 0 {
		t.Errorf("%v, tests %v", n, n.Tests)
	}
}
