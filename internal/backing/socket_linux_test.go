package backing

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// world is a host and a peer on the offloaded device, eth0.
type world struct {
	host, peer *lab.Net
	device     Device
	at         netip.Addr
	filters    *Filters
}

func newWorld(t testing.TB) *world {
	t.Helper()
	need.NetNS(t)
	w := &world{at: netip.MustParseAddr("192.0.2.1")}
	for name, n := range map[string]**lab.Net{"host": &w.host, "peer": &w.peer} {
		made, err := lab.New(name)
		must(t, err)
		t.Cleanup(func() { made.Close() })
		*n = made
	}
	must(t, lab.Cable(w.host, "eth0", w.peer, "eth0"))
	for addr, n := range map[string]*lab.Net{"192.0.2.1/24": w.host, "192.0.2.2/24": w.peer} {
		must(t, n.Do(func() error {
			return lab.Up("eth0", lab.Setup{Addresses: []netip.Prefix{netip.MustParsePrefix(addr)}})
		}))
	}
	must(t, w.host.Do(func() error {
		i, err := net.InterfaceByName("eth0")
		if err == nil {
			w.device = Device{Index: i.Index}
		}
		return err
	}))
	w.filters = NewFilters(w.device, clock.Clock{})
	t.Cleanup(func() { must(t, w.filters.Close()) })
	return w
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// open opens a socket in the host's namespace.
func (w *world) open(t *testing.T, p Protocol, port uint16) (s *Socket) {
	t.Helper()
	must(t, w.host.Do(func() (err error) {
		s, err = Open(p, netip.AddrPortFrom(w.at, port), w.filters)
		return err
	}))
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

const (
	patience = 20 * time.Second       // until there is an answer
	moment   = 500 * time.Millisecond // in which none is to come
)

func connect(n *lab.Net, port uint16, limit time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return n.DialContext(ctx, "tcp", fmt.Sprintf("192.0.2.1:%d", port))
}

// TestTCP requires silence for who comes by the device, in every state of a socket, and service for
// others while there is a listener.
func TestTCP(t *testing.T) { onBoth(t, testTCP) }

func testTCP(t *testing.T, w *world) {
	s := w.open(t, TCP, 8080)
	silent := func(what string, from *lab.Net) {
		t.Helper()
		if c, err := connect(from, 8080, moment); !errors.Is(err, context.DeadlineExceeded) &&
			!errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: %v, %v; want silence", what, c, err)
		}
	}
	silent("by the device", w.peer)
	silent("by lo, without a listener", w.host)
	for range 2 {
		l, err := s.Listener(16)
		must(t, err)
		silent("by the device, with a listener", w.peer)
		c, err := connect(w.host, 8080, patience)
		must(t, err)
		served, err := l.Accept()
		must(t, err)
		if got, want := served.RemoteAddr().String(), c.LocalAddr().String(); got != want {
			t.Errorf("from %s, want %s", got, want)
		}
		served.Close()
		if _, err := io.ReadAll(c); err != nil {
			t.Error(err)
		}
		c.Close()
		must(t, l.Close())
		must(t, s.Silence())
	}
	silent("by lo, silenced", w.host)
	l, err := s.Listener(16)
	must(t, err)
	c, err := connect(w.host, 8080, patience)
	must(t, err)
	must(t, l.Close())
	must(t, s.Silence())
	if n, err := c.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("nobody has accepted it: %d bytes, %v", n, err)
	}
	c.Close()
	must(t, s.Close())
	must(t, s.Close())
	if c, err := connect(w.peer, 8080, patience); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("closed: %v, %v", c, err)
	}
	if _, err := s.Listener(1); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

// TestBoundIsNotEnough shows why a port of TCP listens: the kernel resets what finds a socket that
// is bound only.
func TestBoundIsNotEnough(t *testing.T) {
	w := newWorld(t)
	must(t, w.host.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		t.Cleanup(func() { unix.Close(fd) })
		return errors.Join(attach(fd, dropAll.classic(w.device)),
			unix.Bind(fd, &unix.SockaddrInet4{Port: 8080, Addr: w.at.As4()}))
	}))
	if _, err := connect(w.peer, 8080, patience); !errors.Is(err, unix.ECONNREFUSED) {
		t.Error(err)
	}
}

// TestUDP requires that nothing comes by the device, in fragments or not, no error goes back, and
// others are served.
func TestUDP(t *testing.T) { onBoth(t, testUDP) }

func testUDP(t *testing.T, w *world) {
	s := w.open(t, UDP, 5300)
	conn, err := s.Conn()
	must(t, err)
	defer conn.Close()
	send := func(from *lab.Net, size int) net.Conn {
		t.Helper()
		c, err := from.DialContext(t.Context(), "udp", "192.0.2.1:5300")
		must(t, err)
		t.Cleanup(func() { c.Close() })
		_, err = c.Write(make([]byte, size))
		must(t, err)
		return c
	}
	c := send(w.peer, 10)
	for _, size := range []int{11, 3000, 65507} {
		send(w.peer, size-1)
		send(w.host, size)
		b := make([]byte, 65536)
		must(t, conn.SetReadDeadline(time.Now().Add(20*time.Second)))
		if n, err := conn.Read(b); err != nil || n != size {
			t.Errorf("%d bytes, %v; want %d", n, err, size)
		}
	}
	if _, err := c.Write([]byte("again")); err != nil {
		t.Errorf("an ICMP error came: %v", err)
	}
}

// TestUDPDiscards: who serves a port anew does not get what was sent to the one before.
func TestUDPDiscards(t *testing.T) { onBoth(t, testUDPDiscards) }

func testUDPDiscards(t *testing.T, w *world) {
	s := w.open(t, UDP, 5300)
	client, err := w.host.DialContext(t.Context(), "udp", "192.0.2.1:5300")
	must(t, err)
	defer client.Close()
	for i := range 3 {
		conn, err := s.Conn()
		must(t, err)
		for _, text := range []string{fmt.Sprint("first ", i), "", "left"} {
			_, err = client.Write([]byte(text))
			must(t, err)
		}
		must(t, conn.SetReadDeadline(time.Now().Add(patience)))
		b := make([]byte, 100)
		if n, err := conn.Read(b); string(b[:n]) != fmt.Sprint("first ", i) {
			t.Errorf("read %q, %v", b[:n], err)
		}
		must(t, conn.Close())
		must(t, s.Silence())
		_, err = client.Write([]byte("to nobody"))
		must(t, err)
	}
}

// TestTaken requires EADDRINUSE between processes of both kinds, in one sentence.
func TestTaken(t *testing.T) {
	w := newWorld(t)
	for _, p := range []Protocol{TCP, UDP} {
		w.open(t, p, 8080)
		must(t, w.host.Do(func() error {
			_, err := Open(p, netip.AddrPortFrom(w.at, 8080), w.filters)
			want := fmt.Sprintf("take port %s of 192.0.2.1:8080 from the kernel: bind: %v", p,
				unix.EADDRINUSE)
			if !errors.Is(err, unix.EADDRINUSE) || err.Error() != want {
				t.Errorf("%v, want %s", err, want)
			}
			return nil
		}))
	}
	if ln, err := w.host.Listen("tcp", ":8080"); !errors.Is(err, unix.EADDRINUSE) {
		t.Error(ln, err)
	}
	must(t, w.host.Do(func() error {
		_, err := Open(TCP, netip.MustParseAddrPort("192.0.2.77:80"), w.filters)
		if !errors.Is(err, unix.EADDRNOTAVAIL) {
			t.Errorf("another host's address: %v", err)
		}
		return nil
	}))
}
