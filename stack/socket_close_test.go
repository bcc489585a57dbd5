package stack_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/moving"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/netpair"
)

// hangs is the time limit of a call that should return at once.
const hangs = 30 * time.Second

// result waits for an error that must come soon.
func result(t *testing.T, what string, errs <-chan error) error {
	t.Helper()
	select {
	case err := <-errs:
		return err
	case <-time.After(hangs):
		t.Fatalf("%s hangs", what)
		return nil
	}
}

// background runs f and returns where its error will be.
func background(f func() error) <-chan error {
	errs := make(chan error, 1)
	go func() { errs <- f() }()
	return errs
}

// redial dials until it is connected: on a bad cable the three ARP or neighbour requests may be
// lost, or several SYNs, between which the delay grows. A client then dials again.
func redial(client *stack.Stack, to string) (conn net.Conn, err error) {
	for end := time.Now().Add(2 * hangs); ; {
		conn, err = client.DialTimeout("tcp", to, 2*time.Second)
		again := errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, os.ErrDeadlineExceeded)
		if !again || time.Now().After(end) {
			return conn, err
		}
	}
}

// pair is a connection between two stacks.
func pair(t *testing.T, server, client *stack.Stack) (s, c *stack.TCPConn) {
	t.Helper()
	l, err := server.Listen("tcp", ":0")
	must(t, err)
	defer l.Close()
	conn, err := redial(client, at(netpair.ServerIP4, l.Addr()))
	must(t, err)
	accepted, err := l.Accept()
	must(t, err)
	t.Cleanup(func() { conn.Close(); accepted.Close() })
	return accepted.(*stack.TCPConn), conn.(*stack.TCPConn)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// at joins an address and the port of a.
func at(ip netip.Addr, a net.Addr) string { return net.JoinHostPort(ip.String(), port(a)) }

// TestStackCloseWakesEverybody blocks in every kind of call and closes the stack.
func TestStackCloseWakesEverybody(t *testing.T) {
	blackhole := netip.MustParseAddr("192.0.2.99")
	server, client := netpair.New(t, netpair.Faults{}, netpair.Both(func(c *stack.Config) {
		c.DNS = []netip.Addr{blackhole}
	}))
	l, err := server.Listen("tcp", ":0")
	must(t, err)
	p, err := server.ListenPacket("udp", ":0")
	must(t, err)
	_, c := pair(t, server, client)
	_, full := pair(t, server, client)
	_, copied := pair(t, server, client)

	calls := map[string]<-chan error{
		"Accept":        background(func() error { _, err := l.Accept(); return err }),
		"second Accept": background(func() error { _, err := l.Accept(); return err }),
		"ReadFrom": background(func() error {
			_, _, err := p.ReadFrom(make([]byte, 1))
			return err
		}),
		"Read": background(func() error { _, err := c.Read(make([]byte, 1)); return err }),
		"Write": background(func() error {
			_, err := full.Write(make([]byte, 64<<20))
			return err
		}),
		"WriteTo": background(func() error {
			_, err := copied.WriteTo(io.Discard)
			return err
		}),
		"Dial": background(func() error {
			_, err := client.Dial("tcp", net.JoinHostPort(blackhole.String(), "80"))
			return err
		}),
		"DialTCP": background(func() error {
			_, err := client.DialTCP("tcp", nil, &net.TCPAddr{IP: blackhole.AsSlice(), Port: 80})
			return err
		}),
		"Dial of a name": background(func() error {
			_, err := client.Dial("tcp", "example.com:80")
			return err
		}),
	}
	time.AfterFunc(20*time.Millisecond, func() {
		client.Close() // first: the server's resets would be another answer
		server.Close()
	})
	for name, errs := range calls {
		if err := result(t, name, errs); !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s: %v, want net.ErrClosed", name, err)
		}
	}
}

// TestAfterStackClose requires every call on a closed stack to return.
func TestAfterStackClose(t *testing.T) {
	server, client := netpair.New(t, netpair.Faults{})
	l, err := server.Listen("tcp", ":0")
	must(t, err)
	p, err := server.ListenPacket("udp", ":0")
	must(t, err)
	s, c := pair(t, server, client)
	must(t, server.Close())
	must(t, server.Close())

	_, acceptErr := l.Accept()
	_, readErr := s.Read(make([]byte, 1))
	_, writeErr := s.Write([]byte("x"))
	_, _, fromErr := p.ReadFrom(make([]byte, 1))
	_, toErr := p.WriteTo([]byte("x"), &net.UDPAddr{IP: net.IPv4(192, 0, 2, 2), Port: 1})
	_, listenErr := server.Listen("tcp", ":0")
	_, packetErr := server.ListenPacket("udp", ":0")
	_, dialErr := server.Dial("tcp", "192.0.2.2:1")
	_, dialUDPErr := server.Dial("udp", "192.0.2.2:1")
	for name, err := range map[string]error{
		"Accept": acceptErr, "Read": readErr, "Write": writeErr, "ReadFrom": fromErr,
		"WriteTo": toErr, "Listen": listenErr,
		"ListenPacket": packetErr, "Dial": dialErr, "Dial udp": dialUDPErr,
		"SetDeadline": s.SetDeadline(time.Time{}),
		"CloseWrite":  s.CloseWrite(), "SetNoDelay": s.SetNoDelay(true),
	} {
		var op *net.OpError
		if !errors.Is(err, net.ErrClosed) || name != "SetDeadline" && !errors.As(err, &op) {
			t.Errorf("%s: %v, want an OpError of net.ErrClosed", name, err)
		}
	}
	must(t, s.Close()) // the program's own first Close
	must(t, l.Close())
	must(t, p.Close())
	if server.Err() != nil {
		t.Errorf("Err after Close: %v", server.Err())
	}
	server.Announce() // does nothing
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("the peer of a closed stack reads on")
	}
}

// TestConcurrentClose closes a stack from many goroutines while it works.
func TestConcurrentClose(t *testing.T) {
	server, client := netpair.New(t, netpair.Faults{})
	l, err := server.Listen("tcp", ":0")
	must(t, err)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go io.Copy(c, c)
		}
	}()
	var wg sync.WaitGroup
	var once sync.Once
	busy := make(chan struct{})
	for range 8 {
		wg.Go(func() {
			for {
				c, err := client.Dial("tcp", at(netpair.ServerIP4, l.Addr()))
				if err != nil {
					return
				}
				c.Write(make([]byte, 10000))
				_, err = io.ReadFull(c, make([]byte, 10000))
				c.Close()
				if err != nil {
					return
				}
				once.Do(func() { close(busy) })
			}
		})
	}
	<-busy
	for range 4 {
		wg.Go(func() { server.Close() })
		wg.Go(func() { client.Close() })
	}
	if !within(hangs, wg.Wait) {
		t.Fatal("closing hangs")
	}
}

func within(d time.Duration, f func()) bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
		return true
	case <-time.After(d):
		return false
	}
}

// TestShutdownDelivers closes a connection with unsent data and shuts the stack down.
func TestShutdownDelivers(t *testing.T) {
	j := join(t, cable{queues: 1, faults: wire.FaultConfig{Drop: 0.05, Seed: netpair.Seed(t)},
		clock: newVirtualTime(t).Clock.Clock()})
	s, c := pair(t, j.server, j.client)
	j.mustMove(t, moving.Limit)
	const size = 1 << 20
	got := background(func() error {
		n, err := io.Copy(io.Discard, c)
		if err == nil && n != size {
			err = io.ErrUnexpectedEOF
		}
		return err
	})
	_, err := s.Write(make([]byte, size))
	must(t, err)
	must(t, s.Close())
	must(t, j.server.Shutdown(context.Background()))
	if err := result(t, "peer", got); err != nil {
		t.Errorf("the peer did not get everything: %v", err)
	}
}

// quick makes lost segments cheap.
func quick(c *stack.Config) { netstackTCP(c, new(tcpip.TCPMinRTOOption(10*time.Millisecond))) }

// netstackTCP sets options of netstack's TCP.
func netstackTCP(c *stack.Config, options ...tcpip.SettableTransportProtocolOption) {
	c.TCP.Netstack = append(c.TCP.Netstack, options...)
}

// TestShutdownGivesUp: a peer that does not read cannot delay a shutdown forever.
func TestShutdownGivesUp(t *testing.T) {
	server, client := netpair.New(t, netpair.Faults{})
	s, _ := pair(t, server, client)
	// Both buffers are full when two writes in a row take nothing; on a busy machine the deadline
	// may pass before a Write begins, or before the peer's is full.
	for written, full := 0, 0; full < 2; {
		must(t, s.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
		n, _ := s.Write(make([]byte, 64<<20))
		if written += n; n > 0 || written == 0 {
			full = 0
		} else {
			full++
		}
	}
	must(t, s.Close())
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := server.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Shutdown: %v, want the context's error", err)
	}
	if _, err := server.Listen("tcp", ":0"); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the stack is not closed: %v", err)
	}
}

// TestNewFailureClosesLink: New owns the link also when it fails.
func TestNewFailureClosesLink(t *testing.T) {
	for name, cfg := range map[string]stack.Config{
		"configuration": {Addresses: []netip.Prefix{netip.MustParsePrefix("224.0.0.1/24")}},
		"resolv.conf":   {ResolvConf: "/does/not/exist"},
	} {
		a, b := netpair.NewPorts(netpair.Faults{})
		closed := make(chan struct{})
		a.SetOnCloseAction(func() { close(closed) })
		if _, err := stack.New(a, cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
		<-closed
		b.Close()
	}
}

// TestBuffered: a connection says what a read would return without waiting, whatever its deadline.
func TestBuffered(t *testing.T) {
	server, client := netpair.New(t, netpair.Faults{}, netpair.Both(func(*stack.Config) {}))
	s, c := pair(t, server, client)
	check := func(want int) {
		t.Helper()
		if got := s.Buffered(); got != want {
			t.Errorf("%d bytes are buffered, want %d", got, want)
		}
	}
	check(0)
	_, err := io.WriteString(c, "hello")
	must(t, err)
	_, err = io.ReadFull(s, make([]byte, 1))
	must(t, err)
	check(4)
	must(t, s.SetReadDeadline(time.Unix(1, 0)))
	if _, err := s.Read(make([]byte, 9)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a read after its deadline: %v", err)
	}
	check(4)
	must(t, s.SetReadDeadline(time.Time{}))
	_, err = io.ReadFull(s, make([]byte, 4))
	must(t, err)
	check(0)
	s.Close()
	check(0)
}
