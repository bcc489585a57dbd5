//go:build linux

package unmodified

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/internal/backing"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/stack/stacktest"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// programOn is a program whose stack is st.
func programOn(st *stack.Stack, change func(*Config)) *Program {
	cfg := &Config{}
	cfg.Stack.NIC.Device = "eth9"
	if change != nil {
		change(cfg)
	}
	return For(st, cfg, slog.New(slog.DiscardHandler))
}

// newFilters returns filters for stand-ins, which end with the test.
func newFilters(t *testing.T) func() *backing.Filters {
	t.Helper()
	f := newStandInFilters()
	t.Cleanup(func() { mustBeNil(t, f.Close()) })
	return func() *backing.Filters { return f }
}

func mustBeNil(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tcpPair is a connection of a program with a client's stack.
func tcpPair(t *testing.T) (Socket, net.Conn) {
	t.Helper()
	server, client := stacktest.Pair(t)
	p := programOn(server, nil)
	l, _, err := p.Open(t.Context(), "tcp", &net.TCPAddr{Port: 80}, nil, nil)
	mustBeNil(t, err)
	t.Cleanup(func() { l.Close() })
	c, err := client.Dial("tcp", net.JoinHostPort(server.Addrs()[0].Addr().String(), "80"))
	mustBeNil(t, err)
	t.Cleanup(func() { c.Close() })
	s, _, err := l.Accept()
	mustBeNil(t, err)
	return s.(Socket), c
}

// checkConn does what go-sql-driver/mysql and go-redis do before they use a connection again.
func checkConn(s Socket, peek bool) error {
	var found error
	err := s.RawRead(func(fd uintptr) bool {
		var b [1]byte
		var n int
		var err error
		if peek {
			n, _, err = unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		} else {
			n, err = unix.Read(int(fd), b[:])
		}
		switch {
		case n == 0 && err == nil:
			found = io.EOF
		case n > 0:
			found = errors.New("unexpected data")
		case err != unix.EAGAIN:
			found = err
		}
		return true
	})
	return errors.Join(err, found)
}

// waitForData waits until a connection has something to read, the end included.
func waitForData(t *testing.T, s Socket) {
	t.Helper()
	c := s.(*tcpSocket)
	var b [1]byte
	n, _ := c.c.Read(b[:])
	c.back = append(c.back, b[:n]...)
	c.hasBack.Store(n > 0)
}

// TestConnCheck: a connection that is alive, has data, is closed, is reset, as read(2) and recv(2)
// say of Linux's.
func TestConnCheck(t *testing.T) {
	for _, peek := range []bool{false, true} {
		s, c := tcpPair(t)
		if err := checkConn(s, peek); err != nil {
			t.Errorf("alive, peek %v: %v", peek, err)
		}
		_, err := io.WriteString(c, "data")
		mustBeNil(t, err)
		waitForData(t, s)
		if err := checkConn(s, peek); err == nil || err.Error() != "unexpected data" {
			t.Errorf("data, peek %v: %v", peek, err)
		}
		want := "data"
		if !peek {
			want = "ata" // the check has taken a byte, as it does of Linux's
		}
		b := make([]byte, 10)
		n, err := io.ReadAtLeast(readerOf(s), b, len(want))
		if string(b[:n]) != want || err != nil {
			t.Errorf("then, peek %v: %q, %v", peek, b[:n], err)
		}
		mustBeNil(t, c.Close())
		waitForData(t, s)
		if err := checkConn(s, peek); !errors.Is(err, io.EOF) {
			t.Errorf("closed, peek %v: %v, want EOF", peek, err)
		}
		s.Close()

		s, c = tcpPair(t)
		mustBeNil(t, c.(*stack.TCPConn).SetLinger(0))
		mustBeNil(t, c.Close())
		var got error
		for range 1000 { // the reset is not there at once
			if got = checkConn(s, peek); got != nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
		if !errors.Is(got, unix.ECONNRESET) {
			t.Errorf("reset, peek %v: %v, want ECONNRESET", peek, got)
		}
		s.Close()
		if err := checkConn(s, peek); !errors.Is(err, net.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	}
}

type socketReader struct{ s Socket }

func (r socketReader) Read(b []byte) (int, error) { return r.s.Read(b) }

func readerOf(s Socket) io.Reader { return socketReader{s} }

// TestRawReadWaits: a function that returns false is called again when there is data.
func TestRawReadWaits(t *testing.T) {
	s, c := tcpPair(t)
	calls := 0
	var got []byte
	errs := make(chan error, 1)
	go func() {
		errs <- s.RawRead(func(fd uintptr) bool {
			b := make([]byte, 10)
			n, err := unix.Read(int(fd), b)
			if calls++; calls == 1 {
				io.WriteString(c, "data")
			}
			if err == unix.EAGAIN {
				return false
			}
			got = b[:n]
			return true
		})
	}()
	mustBeNil(t, <-errs)
	rest := make([]byte, 4-len(got))
	_, err := io.ReadFull(readerOf(s), rest)
	if string(got)+string(rest) != "data" || err != nil || calls < 2 {
		t.Errorf("%q and %q after %d calls, %v", got, rest, calls, err)
	}
	mustBeNil(t, s.SetReadDeadline(time.Unix(1, 0)))
	err = s.RawRead(func(uintptr) bool { return false })
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("deadline: %v", err)
	}
}

func TestRawWrite(t *testing.T) {
	s, c := tcpPair(t)
	mustBeNil(t, s.RawWrite(func(fd uintptr) bool {
		_, err := unix.Write(int(fd), []byte("data"))
		return err != unix.EAGAIN
	}))
	b := make([]byte, 4)
	if _, err := io.ReadFull(c, b); err != nil || string(b) != "data" {
		t.Errorf("%q, %v", b, err)
	}
}

// TestControl: options set on the descriptor are the connection's, and are read back.
func TestControl(t *testing.T) {
	s, _ := tcpPair(t)
	var set error
	var timeout, noDelay int
	mustBeNil(t, s.Control(func(fd uintptr) {
		set = errors.Join(
			unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 5000),
			unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 300<<10))
		timeout, _ = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
		noDelay, _ = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NODELAY)
	}))
	if set != nil || timeout != 5000 || noDelay != 1 {
		t.Errorf("set %v, timeout %d, TCP_NODELAY %d", set, timeout, noDelay)
	}
	applied := map[sockOption]int{}
	other := newStandIn("tcp4", "eth9", newFilters(t), nil)
	mustBeNil(t, other.bindTo(appliedOptions(applied)))
	mustBeNil(t, other.Control(func(fd uintptr) {
		unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 70000)
		unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TOS, 0x20)
	}))
	if len(applied) != 2 || applied[sockOption{unix.SOL_SOCKET, unix.SO_RCVBUF}] != 70000 ||
		applied[sockOption{unix.IPPROTO_IP, unix.IP_TOS}] != 0x20 {
		t.Errorf("applied %v", applied)
	}
	other.closeDescriptor()
	if err := other.Control(func(uintptr) {}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	if _, err := s.File(); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("File: %v", err)
	}
}

// appliedOptions collects the options that are applied to a socket.
type appliedOptions map[sockOption]int

func (a appliedOptions) setSockOption(o sockOption, v int) error { a[o] = v; return nil }
func (appliedOptions) currentOptions() map[sockOption]int        { return nil }

// TestReadBack: what a socket of the slice has, by default or set by the methods of package net, is
// read on its descriptor.
func TestReadBack(t *testing.T) {
	s, _ := tcpPair(t)
	tcp := s.(*tcpSocket)
	mustBeNil(t, tcp.c.SetReadBuffer(3<<20))
	mustBeNil(t, s.SetOption(unix.IPPROTO_TCP, unix.TCP_NODELAY, 0))
	mustBeNil(t, s.SetOption(unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 77))
	mustBeNil(t, s.SetOption(unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 5))
	mustBeNil(t, s.SetOption(unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 4321))
	mustBeNil(t, s.SetOption(unix.IPPROTO_IP, unix.IP_TOS, 0x48))
	mustBeNil(t, s.SetOption(unix.IPPROTO_IP, unix.IP_TTL, 33))
	free := boundlessBuffers(t)
	read := func(s Socket, want map[sockOption]int) {
		t.Helper()
		for o, v := range want {
			if o.level == unix.SOL_SOCKET && !free {
				continue // the kernel bounds it
			}
			var got int
			var err error
			mustBeNil(t, s.Control(func(fd uintptr) {
				got, err = unix.GetsockoptInt(int(fd), o.level, o.name)
			}))
			if got != v || err != nil {
				t.Errorf("option %d of level %d: %d, %v, want %d", o.name, o.level, got, err, v)
			}
		}
	}
	read(s, map[sockOption]int{
		{unix.SOL_SOCKET, unix.SO_RCVBUF}:         2 * 3 << 20,
		{unix.IPPROTO_TCP, unix.TCP_NODELAY}:      0,
		{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE}:     77,
		{unix.IPPROTO_TCP, unix.TCP_KEEPCNT}:      5,
		{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT}: 4321,
		{unix.IPPROTO_IP, unix.IP_TOS}:            0x48,
		{unix.IPPROTO_IP, unix.IP_TTL}:            33,
	})
	if got := tcp.c.Settings().ReadBuffer; got != 3<<20 {
		t.Errorf("reading it has changed the socket's buffer to %d", got)
	}

	server, _ := stacktest.Pair(t)
	u, _, err := programOn(server, nil).Open(t.Context(), "udp4", &net.UDPAddr{}, nil, nil)
	mustBeNil(t, err)
	defer u.Close()
	mustBeNil(t, u.SetOption(unix.SOL_SOCKET, unix.SO_RCVBUF, 7<<20))
	mustBeNil(t, u.SetOption(unix.IPPROTO_IP, unix.IP_TTL, 9))
	mustBeNil(t, u.SetOption(unix.SOL_UDP, unix.UDP_SEGMENT, 1200))
	read(u, map[sockOption]int{
		{unix.SOL_SOCKET, unix.SO_RCVBUF}: 2 * 7 << 20,
		{unix.IPPROTO_IP, unix.IP_TTL}:    9,
		{unix.SOL_UDP, unix.UDP_SEGMENT}:  1200,
	})
	// A second setting that the kernel bounds below what the socket has leaves it as it is.
	mustBeNil(t, u.Control(func(fd uintptr) {
		mustBeNil(t, unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TTL, 10))
	}))
	settings := u.(*udpSocketConn).c.Settings()
	if settings.ReadBuffer != 7<<20 || settings.TTL != 10 {
		t.Errorf("the socket has %+v", settings)
	}
}

// TestPacingRate: SO_MAX_PACING_RATE that is set on the descriptor of a socket, a connection or
// their listener, in either length, is the rate of the slice's, and is read there.
func TestPacingRate(t *testing.T) {
	set := func(rate uint64) func(fd uintptr) {
		return func(fd uintptr) {
			mustBeNil(t, unix.SetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE,
				rate))
		}
	}
	read := func(c interface{ Control(func(uintptr)) error }) (rate uint64) {
		t.Helper()
		mustBeNil(t, c.Control(func(fd uintptr) {
			var err error
			rate, err = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE)
			mustBeNil(t, err)
		}))
		return rate
	}
	const none = 1<<64 - 1
	check := func(s Socket, want uint64) {
		t.Helper()
		of, shown := ratesOf(s), want
		if want == 0 {
			shown = none
		}
		if got := read(s); of != want || got != shown {
			t.Errorf("the slice's has %d, the descriptor shows %d, want %d", of, got, want)
		}
	}
	server, client := stacktest.Pair(t)
	p := programOn(server, nil)
	l, _, err := p.Open(t.Context(), "tcp", &net.TCPAddr{Port: 80}, nil, nil)
	mustBeNil(t, err)
	defer l.Close()
	accept := func() Socket {
		c, err := client.Dial("tcp", net.JoinHostPort(server.Addrs()[0].Addr().String(), "80"))
		mustBeNil(t, err)
		t.Cleanup(func() { c.Close() })
		s, _, err := l.Accept()
		mustBeNil(t, err)
		return s.(Socket)
	}
	s := accept()
	check(s, 0)
	mustBeNil(t, l.Control(set(5_000_000_000)))
	check(accept(), 5_000_000_000)
	check(s, 0)
	mustBeNil(t, l.Control(set(0)))
	check(accept(), 0)

	u, _, err := p.Open(t.Context(), "udp4", &net.UDPAddr{}, nil, func(c syscall.RawConn) error {
		return c.Control(set(1000))
	})
	mustBeNil(t, err)
	defer u.Close()
	check(u, 1000)
	for _, s := range []Socket{s, u} {
		mustBeNil(t, s.Control(set(4_999_999_999)))
		check(s, 4_999_999_999)
		mustBeNil(t, s.Control(func(fd uintptr) {
			mustBeNil(t, unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE,
				77))
		}))
		check(s, 77)
		mustBeNil(t, s.Control(set(none)))
		check(s, 0)
		mustBeNil(t, s.SetOption(unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, 88))
		check(s, 88)
	}
}

// ratesOf returns the rate of a slice's socket.
func ratesOf(s Socket) uint64 {
	if c, ok := s.(*tcpSocket); ok {
		return c.c.Settings().Pacing
	}
	return s.(*udpSocketConn).c.Settings().Pacing
}

// boundlessBuffers reports whether this process may set buffers beyond net.core.rmem_max.
func boundlessBuffers(t *testing.T) bool {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	mustBeNil(t, err)
	defer unix.Close(fd)
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20) == nil
}

// TestKeptOption: an option that the slice does not have is kept, and logged once.
func TestKeptOption(t *testing.T) {
	server, _ := stacktest.Pair(t)
	p := programOn(server, nil)
	var log bytes.Buffer
	p.log = slog.New(slog.NewTextHandler(&log, nil))
	for port := range 2 {
		l, _, err := p.Open(t.Context(), "tcp4", &net.TCPAddr{Port: 8000 + port}, nil,
			func(c syscall.RawConn) error {
				return c.Control(func(d uintptr) {
					fd := int(d)
					mustBeNil(t, unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_FASTOPEN, 5))
					mustBeNil(t, unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TOS, 0x20))
				})
			})
		mustBeNil(t, err)
		defer l.Close()
	}
	if n := strings.Count(log.String(), "option=TCP_FASTOPEN"); n != 1 ||
		strings.Count(log.String(), "\n") != 1 {
		t.Errorf("log:\n%s", log.String())
	}
}

// TestInherited: a socket that is made of a descriptor is the kernel's, which is counted, logged
// once, and not so for the project's own.
func TestInherited(t *testing.T) {
	server, _ := stacktest.Pair(t)
	p := programOn(server, nil)
	var log bytes.Buffer
	p.log = slog.New(slog.NewTextHandler(&log, nil))
	tcp, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	mustBeNil(t, err)
	defer tcp.Close()
	udp, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	mustBeNil(t, err)
	defer udp.Close()
	for _, c := range []interface{ File() (*os.File, error) }{tcp, udp, udp} {
		f, err := c.File()
		mustBeNil(t, err)
		if _, ok := p.FromFile(f); ok {
			t.Error("a socket of the kernel is the slice's")
		}
		fd, err := unix.Dup(int(f.Fd()))
		mustBeNil(t, err)
		own := os.NewFile(uintptr(fd), ownFiles+"port")
		p.FromFile(own)
		mustBeNil(t, errors.Join(own.Close(), f.Close()))
	}
	got := map[string]uint64{}
	for _, c := range p.Counts() {
		got[c.Kind+" "+c.Way] = c.Count
	}
	if got["tcp_listener kernel"] != 1 || got["udp kernel"] != 2 ||
		strings.Count(log.String(), "made of a descriptor") != 2 {
		t.Errorf("counts %v; log:\n%s", got, log.String())
	}
}

// TestStandInSendsNothing: what a program sends on the descriptor goes nowhere.
func TestStandInSendsNothing(t *testing.T) {
	l, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	mustBeNil(t, err)
	defer l.Close()
	s := newStandIn("udp4", "eth9", newFilters(t), nil)
	defer s.closeDescriptor()
	mustBeNil(t, s.Control(func(fd uintptr) {
		if sa, err := unix.Getsockname(int(fd)); err != nil || sa.(*unix.SockaddrInet4).Port != 0 {
			t.Errorf("bound to %+v, %v", sa, err)
		}
		if device, err := unix.GetsockoptString(int(fd), unix.SOL_SOCKET,
			unix.SO_BINDTODEVICE); device != "lo" {
			t.Errorf("bound to device %q, %v", device, err)
		}
	}))
}

// TestStandInsShareFilters: no stand-in has a classic filter, which Linux 6.18 cannot free by the
// thousand.
func TestStandInsShareFilters(t *testing.T) {
	need.Root(t)
	filters := newFilters(t)
	mustBeNil(t, filters().Refused())
	for _, network := range []string{"udp4", "udp6", "tcp4"} {
		s := newStandIn(network, "eth9", filters, nil)
		mustBeNil(t, s.Control(func(fd uintptr) {
			n, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_GET_FILTER)
			want := error(nil) // and no filter
			if s.kind == unix.SOCK_DGRAM {
				want = unix.EACCES // sk_get_filter of Linux, of a filter that is not classic
			}
			if !errors.Is(err, want) || n != 0 {
				t.Errorf("%s: a classic filter of %d instructions, %v; want %v", network, n, err,
					want)
			}
		}))
		s.closeDescriptor()
	}
	if n := filters().Own(); n != 0 {
		t.Errorf("%d have filters of their own", n)
	}
}

// TestWays: which sockets are the kernel's, and why.
func TestWays(t *testing.T) {
	server, _ := stacktest.Pair(t)
	own := server.Addrs()[0].Addr().AsSlice()
	limited := func(c *Config) {
		c.Listen = []Port{{"tcp", 80}}
		c.KernelPorts = []Port{{"", 9090}}
		c.KernelPrefixes = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	}
	for _, tt := range []struct {
		name, network string
		local, remote net.Addr
		change        func(*Config)
		want          string // a part of the reason, "" for the slice
	}{
		{"any address", "tcp", &net.TCPAddr{Port: 80}, nil, nil, ""},
		{"own address", "tcp4", &net.TCPAddr{IP: own, Port: 80}, nil, nil, ""},
		{"localhost", "tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80}, nil, nil,
			"localhost"},
		{"localhost, IPv6", "udp6", &net.UDPAddr{IP: net.IPv6loopback, Port: 53}, nil, nil,
			"localhost"},
		{"another's address", "tcp4", &net.TCPAddr{IP: net.IPv4(192, 0, 2, 99), Port: 80}, nil, nil,
			"not an address of the slice"},
		{"to localhost", "tcp4", nil, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80}, nil,
			"localhost"},
		{"to nowhere", "tcp", nil, &net.TCPAddr{Port: 80}, nil, "dials this host"},
		{"listed port", "tcp", &net.TCPAddr{Port: 80}, nil, limited, ""},
		{"other port", "tcp", &net.TCPAddr{Port: 81}, nil, limited, "LISTEN"},
		{"a client's socket", "udp", &net.UDPAddr{}, nil, limited, ""},
		{"other protocol", "udp", &net.UDPAddr{Port: 80}, nil, limited, "LISTEN"},
		{"kernel's port", "tcp", &net.TCPAddr{Port: 9090}, nil, limited, "port in"},
		{"to the kernel's port", "tcp", nil, &net.TCPAddr{IP: own, Port: 9090}, limited, "port in"},
		{"to the kernel's prefix", "tcp", nil, &net.TCPAddr{IP: net.IPv4(10, 1, 1, 1), Port: 80},
			limited, "address in"},
		{"group", "udp4", &net.UDPAddr{IP: net.IPv4(239, 1, 1, 1), Port: 5353}, nil, nil, ""},
		{"group on the host", "udp4", &net.UDPAddr{IP: net.IPv4(239, 1, 1, 1), Port: 5353}, nil,
			func(c *Config) { c.Stack.Host = true }, "groups"},
	} {
		p := programOn(server, tt.change)
		q := request{network: tt.network, local: addrPortOf(tt.local),
			remote: addrPortOf(tt.remote), dials: tt.remote != nil}
		why := p.kernelsBy(q)
		if why == "" {
			why = p.kernelsByAddress(server, q)
		}
		if (why == "") != (tt.want == "") || !strings.Contains(why, tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, why, tt.want)
		}
	}
}

// TestKernelSocketsAreToldOnce: counted each time, logged once for each reason.
func TestKernelSocketsAreToldOnce(t *testing.T) {
	server, _ := stacktest.Pair(t)
	p := programOn(server, nil)
	var log bytes.Buffer
	p.log = slog.New(slog.NewTextHandler(&log, nil))
	for range 3 {
		s, c, err := p.Open(t.Context(), "tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}, nil, nil)
		if s != nil || c != nil || err != nil {
			t.Fatalf("%v, %v, %v, want the kernel", s, c, err)
		}
	}
	p.NoteRaw("ip4:icmp")
	p.NoteRaw("ip4:icmp")
	if n := strings.Count(log.String(), "\n"); n != 2 {
		t.Errorf("%d lines: %s", n, log.String())
	}
	got := map[string]uint64{}
	for _, c := range p.Counts() {
		got[c.Kind+" "+c.Way] = c.Count
	}
	if got["tcp_listener kernel"] != 3 || got["other kernel"] != 2 ||
		got["tcp_listener slice"] != 0 {
		t.Errorf("counts %v", got)
	}
}

// TestControlFunction runs before the socket is there: its error is the program's, SO_REUSEPORT
// holds, and another device is left to the kernel.
func TestControlFunction(t *testing.T) {
	server, _ := stacktest.Pair(t)
	p := programOn(server, nil)
	at := &net.TCPAddr{Port: 80}
	_, _, err := p.Open(t.Context(), "tcp", at, nil, func(syscall.RawConn) error {
		return io.ErrNoProgress
	})
	if err != io.ErrNoProgress {
		t.Errorf("error of Control: %v", err)
	}
	share := func(c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		})
	}
	a, _, err := p.Open(t.Context(), "tcp", at, nil, share)
	mustBeNil(t, err)
	defer a.Close()
	b, _, err := p.Open(t.Context(), "tcp", at, nil, share)
	mustBeNil(t, err)
	defer b.Close()
	if _, _, err := p.Open(t.Context(), "tcp", at, nil, nil); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("third: %v, want EADDRINUSE", err)
	}
}

// TestV6Only: IPV6_V6ONLY of Control leaves the port of IPv4 to others, also on localhost.
func TestV6Only(t *testing.T) {
	server, _ := stacktest.Pair(t)
	p := programOn(server, nil)
	port := freePort(t)
	only := func(v int) func(c syscall.RawConn) error {
		return func(c syscall.RawConn) error {
			return c.Control(func(fd uintptr) {
				mustBeNil(t, unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, v))
			})
		}
	}
	l, _, err := p.Open(t.Context(), "tcp", &net.TCPAddr{Port: port}, nil, only(1))
	mustBeNil(t, err)
	four, _, err := p.Open(t.Context(), "tcp4", &net.TCPAddr{Port: port}, nil, nil)
	mustBeNil(t, err)
	if n := len(four.(*tcpListenSocket).shared.local); n != 1 {
		t.Errorf("%d listeners on 127.0.0.1", n)
	}
	mustBeNil(t, errors.Join(l.Close(), four.Close()))

	both, _, err := p.Open(t.Context(), "tcp6", &net.TCPAddr{Port: port}, nil, only(0))
	mustBeNil(t, err)
	defer both.Close()
	_, _, err = p.Open(t.Context(), "tcp4", &net.TCPAddr{Port: port}, nil, nil)
	if !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("beside one of both versions of IP: %v, want EADDRINUSE", err)
	}
}

// TestLocalhost: a socket on any address is on localhost as well, by the kernel.
func TestLocalhost(t *testing.T) {
	server, _ := stacktest.Pair(t)
	p := programOn(server, nil)
	port := freePort(t)
	l, _, err := p.Open(t.Context(), "tcp4", &net.TCPAddr{Port: port}, nil, nil)
	mustBeNil(t, err)
	defer l.Close()
	mustBeNil(t, l.SetDeadline(time.Unix(1, 0)))
	if _, _, err := l.Accept(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("deadline: %v", err)
	}
	mustBeNil(t, l.SetDeadline(time.Time{}))
	c, err := net.DialTCP("tcp4", nil, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	mustBeNil(t, err)
	defer c.Close()
	_, k, err := l.Accept()
	mustBeNil(t, err)
	if k == nil || k.RemoteAddr().String() != c.LocalAddr().String() {
		t.Errorf("accepted %v", k)
	}
	mustBeNil(t, l.Close())
	if _, _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}

	u, _, err := p.Open(t.Context(), "udp4", &net.UDPAddr{Port: port}, nil, nil)
	mustBeNil(t, err)
	defer u.Close()
	d, err := net.DialUDP("udp4", nil, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	mustBeNil(t, err)
	defer d.Close()
	_, err = io.WriteString(d, "question")
	mustBeNil(t, err)
	b := make([]byte, 100)
	n, from, err := u.ReadAddr(b)
	if err != nil || string(b[:n]) != "question" ||
		from != d.LocalAddr().(*net.UDPAddr).AddrPort() {
		t.Fatalf("%q from %v, %v", b[:n], from, err)
	}
	_, err = u.WriteAddr([]byte("answer"), from)
	mustBeNil(t, err)
	mustBeNil(t, d.SetReadDeadline(time.Now().Add(10*time.Second)))
	if n, err := d.Read(b); err != nil || string(b[:n]) != "answer" {
		t.Errorf("%q, %v", b[:n], err)
	}
}

// TestLocalhostHeader: datagrams on localhost have the traffic class and the time to live that the
// sender has set, in both directions, as on the host's own sockets.
func TestLocalhostHeader(t *testing.T) {
	server, _ := stacktest.Pair(t)
	p := programOn(server, nil)
	for _, v := range []struct {
		network                        string
		ip                             net.IP
		level, class, ttl              int
		receiveClass, receiveTTL, size int
	}{
		{"udp4", net.IPv4(127, 0, 0, 1), unix.IPPROTO_IP, unix.IP_TOS, unix.IP_TTL,
			unix.IP_RECVTOS, unix.IP_RECVTTL, 1},
		{"udp6", net.IPv6loopback, unix.IPPROTO_IPV6, unix.IPV6_TCLASS, unix.IPV6_UNICAST_HOPS,
			unix.IPV6_RECVTCLASS, unix.IPV6_RECVHOPLIMIT, 4},
	} {
		t.Run(v.network, func(t *testing.T) {
			port := freePort(t)
			set := func(c interface {
				Control(func(uintptr)) error
			}, options map[int]int) {
				t.Helper()
				var failed error
				mustBeNil(t, c.Control(func(fd uintptr) {
					for name, value := range options {
						failed = errors.Join(failed, unix.SetsockoptInt(int(fd), v.level, name,
							value))
					}
				}))
				mustBeNil(t, failed)
			}
			check := func(what string, oob []byte, class, ttl int) {
				t.Helper()
				ms, err := unix.ParseSocketControlMessage(oob)
				mustBeNil(t, err)
				got := map[int]int{}
				for _, m := range ms {
					got[int(m.Header.Type)] = int(m.Data[0])
				}
				ttlKind := v.ttl
				if v.network == "udp6" {
					ttlKind = unix.IPV6_HOPLIMIT
				}
				if got[v.class] != class || got[ttlKind] != ttl {
					t.Errorf("%s: control messages %v, want class %d and TTL %d", what, got, class,
						ttl)
				}
			}
			u, _, err := p.Open(t.Context(), v.network, &net.UDPAddr{Port: port}, nil, nil)
			mustBeNil(t, err)
			defer u.Close()
			d, err := net.DialUDP(v.network, nil, &net.UDPAddr{IP: v.ip, Port: port})
			need.That(t, "localhost of "+v.network, err)
			defer d.Close()
			raw, err := d.SyscallConn()
			mustBeNil(t, err)
			set(raw, map[int]int{v.class: 0x2a, v.ttl: 9, v.receiveClass: 1, v.receiveTTL: 1})
			set(u, map[int]int{v.receiveClass: 1, v.receiveTTL: 1})
			_, err = io.WriteString(d, "question")
			mustBeNil(t, err)
			b, oob := make([]byte, 100), make([]byte, 200)
			_, oobn, _, from, err := u.ReadMsg(b, oob, 0)
			mustBeNil(t, err)
			check("received", oob[:oobn], 0x2a, 9)

			mustBeNil(t, d.SetReadDeadline(time.Now().Add(10*time.Second)))
			answer := func(what string, class, ttl int) {
				t.Helper()
				_, err = u.WriteAddr([]byte(what), from)
				mustBeNil(t, err)
				n, oobn, _, _, err := d.ReadMsgUDP(b, oob)
				mustBeNil(t, err)
				if string(b[:n]) != what {
					t.Errorf("%q, want %q", b[:n], what)
				}
				check(what, oob[:oobn], class, ttl)
			}
			answer("by default", 0, 64)
			set(u, map[int]int{v.class: 0x48, v.ttl: 7})
			answer("as set", 0x48, 7)
		})
	}
}

// freePort is a port that is free on localhost.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	mustBeNil(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// TestSegments cuts a datagram as UDP_SEGMENT asks.
func TestSegments(t *testing.T) {
	server, client := stacktest.Pair(t)
	p := programOn(server, nil)
	u, _, err := p.Open(t.Context(), "udp4", &net.UDPAddr{Port: 9000}, nil, nil)
	mustBeNil(t, err)
	defer u.Close()
	c, err := client.Dial("udp", net.JoinHostPort(server.Addrs()[0].Addr().String(), "9000"))
	mustBeNil(t, err)
	defer c.Close()
	_, err = io.WriteString(c, "x")
	mustBeNil(t, err)
	b := make([]byte, 3000)
	_, from, err := u.ReadAddr(b)
	mustBeNil(t, err)
	oob := make([]byte, unix.CmsgSpace(2))
	oob[0], oob[8], oob[12] = byte(unix.CmsgLen(2)), unix.SOL_UDP, unix.UDP_SEGMENT
	oob[16], oob[17] = 0xe8, 3 // 1000
	n, _, err := u.WriteMsg(make([]byte, 2500), oob, from)
	if n != 2500 || err != nil {
		t.Fatalf("sent %d, %v", n, err)
	}
	for _, want := range []int{1000, 1000, 500} {
		mustBeNil(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
		if n, err := c.Read(b); n != want || err != nil {
			t.Errorf("datagram of %d bytes, %v, want %d", n, err, want)
		}
	}
}

// TestJoinedSegments makes a program that set UDP_GRO read what came in segments as one.
func TestJoinedSegments(t *testing.T) {
	server, client := stacktest.Pair(t)
	p := programOn(server, nil)
	u, _, err := p.Open(t.Context(), "udp4", &net.UDPAddr{Port: 9000}, nil, nil)
	mustBeNil(t, err)
	defer u.Close()
	mustBeNil(t, u.Control(func(fd uintptr) {
		mustBeNil(t, unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_GRO, 1))
	}))
	c, err := client.Dial("udp", net.JoinHostPort(server.Addrs()[0].Addr().String(), "9000"))
	mustBeNil(t, err)
	defer c.Close()
	mustBeNil(t, c.(*stack.UDPConn).SetSegmentSize(1000))
	mustBeNil(t, u.SetReadDeadline(time.Now().Add(time.Minute)))
	for range 50 { // segments that come while it reads are read apart
		_, err = c.Write(make([]byte, 2500))
		mustBeNil(t, err)
		for left := 2500; left > 0; {
			b, oob := make([]byte, 1<<16), make([]byte, 64)
			n, oobn, _, _, err := u.ReadMsg(b, oob, 0)
			mustBeNil(t, err)
			if left -= n; n == 2500 {
				want := unix.CmsgSpace(4)
				if oobn != want || oob[8] != unix.SOL_UDP || oob[12] != unix.UDP_GRO ||
					binary.NativeEndian.Uint32(oob[unix.CmsgLen(0):]) != 1000 {
					t.Errorf("control messages %x", oob[:oobn])
				}
				return
			}
		}
	}
	t.Error("never read as one")
}

// TestMistakesFailTheFirstSocket: not the program's start.
func TestMistakesFailTheFirstSocket(t *testing.T) {
	var log bytes.Buffer
	p := FromEnvironment([]string{"RDMA_NETSTACK_DEVICE=none9", "RDMA_NETSTACK_ADRESS=host"}, &log,
		nil)
	_, _, err := p.Open(context.Background(), "tcp", &net.TCPAddr{Port: 80}, nil, nil)
	if err == nil || !strings.Contains(err.Error(), "RDMA_NETSTACK_ADRESS is not known") ||
		!strings.Contains(log.String(), "RDMA_NETSTACK_ADRESS") {
		t.Errorf("got %v; log %s", err, log.String())
	}
	p = FromEnvironment([]string{"RDMA_NETSTACK_DEVICE=none9",
		"RDMA_NETSTACK_ADDRESS=192.0.2.9/24"}, io.Discard, nil)
	_, _, err = p.Open(context.Background(), "tcp", &net.TCPAddr{Port: 80}, nil, nil)
	if err == nil || !strings.Contains(err.Error(), "none9") {
		t.Errorf("a device that is not there: %v", err)
	}
	if p := FromEnvironment([]string{"RDMA_NETSTACK_DEVICE=eth0", "RDMA_NETSTACK_PID=1"}, &log,
		nil); p != nil || !strings.Contains(log.String(), "another process's") {
		t.Errorf("a child has the slice: %v, log %s", p, log.String())
	}
	if p := FromEnvironment(nil, &log, nil); p != nil {
		t.Error("nothing set, but a program")
	}
}

func TestResolvesByC(t *testing.T) {
	for _, tt := range []struct {
		cgo, built, variable string
		want                 bool
	}{
		{"1", "netdns=go", "", false},
		{"1", "netdns=go", "GODEBUG=http2debug=1,netdns=cgo+1", true},
		{"1", "panicnil=1,netdns=cgo", "GODEBUG=netdns=go", false}, {"1", "netdns=cgo", "", true},
		{"0", "netdns=cgo", "GODEBUG=netdns=cgo", false}, {"1", "", "", false},
	} {
		settings := []debug.BuildSetting{{Key: "CGO_ENABLED", Value: tt.cgo},
			{Key: "DefaultGODEBUG", Value: tt.built}}
		if got := resolvesByC(settings, []string{"A=b", tt.variable}); got != tt.want {
			t.Errorf("%+v: %v", tt, got)
		}
	}
}

// TestFileOfListener: a listener made of another's File in this process accepts, also once the
// other one, with an Accept that waits, is closed; deadlines are each one's own.
func TestFileOfListener(t *testing.T) {
	server, client := stacktest.Pair(t)
	p := programOn(server, nil)
	first, _, err := p.Open(t.Context(), "tcp", &net.TCPAddr{Port: 80}, nil, nil)
	mustBeNil(t, err)
	accepted := make(chan error)
	go func() {
		_, _, err := first.Accept()
		accepted <- err
	}()
	f, err := first.File()
	mustBeNil(t, err)
	second, ok := p.FromFile(f)
	if !ok {
		t.Fatal("no socket of the file")
	}
	mustBeNil(t, f.Close())
	mustBeNil(t, second.SetDeadline(time.Now()))
	if _, _, err := second.Accept(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Accept after its deadline: %v", err)
	}
	mustBeNil(t, second.SetDeadline(time.Time{}))
	mustBeNil(t, first.Close())
	if err := <-accepted; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept of the closed listener: %v", err)
	}
	at := net.JoinHostPort(server.Addrs()[0].Addr().String(), "80")
	c, err := client.Dial("tcp", at)
	mustBeNil(t, err)
	defer c.Close()
	s, _, err := second.Accept()
	mustBeNil(t, err)
	mustBeNil(t, s.(Socket).Close())
	third, err := second.File()
	mustBeNil(t, err)
	defer third.Close()
	mustBeNil(t, second.Close())
	if _, ok := p.FromFile(third); ok {
		t.Error("a socket of the file of one that is closed")
	}
	if _, err := client.Dial("tcp", at); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial after both are closed: %v", err)
	}
	other, err := os.Open(os.DevNull)
	mustBeNil(t, err)
	defer other.Close()
	if _, ok := p.FromFile(other); ok {
		t.Error("a socket of /dev/null")
	}
}

// TestFileOfUDP: as TestFileOfListener, of a UDP socket.
func TestFileOfUDP(t *testing.T) {
	server, client := stacktest.Pair(t)
	p := programOn(server, nil)
	first, _, err := p.Open(t.Context(), "udp", &net.UDPAddr{Port: 53}, nil, nil)
	mustBeNil(t, err)
	read := make(chan error)
	go func() {
		_, _, err := first.ReadAddr(make([]byte, 10))
		read <- err
	}()
	f, err := first.File()
	mustBeNil(t, err)
	second, ok := p.FromFile(f)
	if !ok {
		t.Fatal("no socket of the file")
	}
	mustBeNil(t, f.Close())
	for _, late := range []time.Time{time.Now().Add(-time.Hour), time.Now().Add(time.Millisecond)} {
		mustBeNil(t, second.SetReadDeadline(late))
		if _, _, err := second.ReadAddr(make([]byte, 10)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read after its deadline: %v", err)
		}
	}
	mustBeNil(t, second.SetReadDeadline(time.Time{}))
	select {
	case err := <-read:
		t.Fatalf("the other's deadline ended a read: %v", err)
	default:
	}
	mustBeNil(t, first.Close())
	if err := <-read; !errors.Is(err, net.ErrClosed) {
		t.Errorf("read of the closed socket: %v", err)
	}
	c, err := client.Dial("udp", net.JoinHostPort(server.Addrs()[0].Addr().String(), "53"))
	mustBeNil(t, err)
	defer c.Close()
	_, err = c.Write([]byte("hello"))
	mustBeNil(t, err)
	b := make([]byte, 10)
	n, _, err := second.ReadAddr(b)
	if err != nil || string(b[:n]) != "hello" {
		t.Errorf("read %q, %v", b[:n], err)
	}
	mustBeNil(t, second.Close())
}

// TestDontFragment: IP_MTU_DISCOVER set on the stand-in is the slice's socket's, as on Linux.
func TestDontFragment(t *testing.T) {
	server, client := stacktest.Pair(t)
	p := programOn(server, nil)
	peer, err := client.ListenUDP("udp4", &net.UDPAddr{Port: 9}) // else it answers by ICMP errors
	mustBeNil(t, err)
	defer peer.Close()
	s, _, err := p.Open(t.Context(), "udp4", nil, &net.UDPAddr{
		IP: client.Addrs()[0].Addr().AsSlice(), Port: 9}, nil)
	mustBeNil(t, err)
	defer s.Close()
	large := make([]byte, 3000)
	for _, tt := range []struct {
		set  int
		want error
	}{{unix.IP_PMTUDISC_WANT, nil}, {unix.IP_PMTUDISC_DO, syscall.EMSGSIZE},
		{unix.IP_PMTUDISC_OMIT, nil}, {unix.IP_PMTUDISC_PROBE, syscall.EMSGSIZE}} {
		mustBeNil(t, s.Control(func(fd uintptr) {
			mustBeNil(t, unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, tt.set))
		}))
		if _, err := s.Write(large); !errors.Is(err, tt.want) {
			t.Errorf("IP_MTU_DISCOVER %d: %v, want %v", tt.set, err, tt.want)
		}
	}
}
