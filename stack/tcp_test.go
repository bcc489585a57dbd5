package stack_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/stack/stacktest"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/moving"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/netpair"
)

// TestBadCable moves data both ways over a cable that loses, duplicates, reorders and corrupts.
func TestBadCable(t *testing.T) {
	seed := netpair.Seed(t)
	everything := wire.FaultConfig{Drop: 0.03, Reorder: 0.05, Duplicate: 0.05}
	worst := everything
	worst.Corrupt, worst.Delay = 0.02, time.Millisecond
	for _, c := range []struct {
		name   string
		faults wire.FaultConfig
		mtu    int
		change func(*stack.Config)
	}{
		{"1 % loss", wire.FaultConfig{Drop: 0.01}, 0, nil},
		{"5 % loss", wire.FaultConfig{Drop: 0.05}, 0, nil},
		{"15 % loss", wire.FaultConfig{Drop: 0.15}, 0, nil},
		{"reordering", wire.FaultConfig{Reorder: 0.2}, 0, nil},
		{"duplicates", wire.FaultConfig{Duplicate: 0.3}, 0, nil},
		{"corruption", wire.FaultConfig{Corrupt: 0.05}, 0, nil},
		{"everything", worst, 0, nil},
		{"everything, reno without SACK and RACK", everything, 0, func(c *stack.Config) {
			c.TCP.CongestionControl = "reno"
			netstackTCP(c, new(tcpip.TCPSACKEnabled(false)), new(tcpip.TCPRecovery(0)))
		}},
		{"everything, no ACK delay, small buffers", everything, 1280, func(c *stack.Config) {
			c.TCP.ACKDelay = -1
			c.TCP.SendBuffer.Max, c.TCP.ReceiveBuffer.Max = 32<<10, 32<<10
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.faults.Seed = seed
			j := join(t, cable{queues: 1, mtu: c.mtu, faults: c.faults, change: c.change})
			s, conn := pair(t, j.server, j.client)
			limit, size := moving.Limit, 512<<10
			if c.faults.Drop > 0.1 { // five losses in a row are common
				limit, size = 6*limit, 32<<10
			}
			j.mustMove(t, limit)
			exchange(t, s, conn, size, seed)
		})
	}
}

// exchange sends size random bytes each way at the same time and compares. The ends half-close when
// both have all data: netstack sends SACK in ESTABLISHED only. A peer that gets none after that,
// while it still receives data, recovers from a loss after seconds.
func exchange(t *testing.T, a, b *stack.TCPConn, size int, seed uint64) {
	t.Helper()
	rnd := rand.NewChaCha8([32]byte{byte(seed)})
	data := [2][]byte{make([]byte, size), make([]byte, size)}
	rnd.Read(data[0])
	rnd.Read(data[1])
	var wg sync.WaitGroup
	for i, c := range []*stack.TCPConn{a, b} {
		wg.Go(func() {
			if _, err := c.Write(data[i]); err != nil {
				t.Errorf("write: %v", err)
			}
		})
		wg.Go(func() {
			got := make([]byte, size)
			n, err := io.ReadFull(c, got)
			if err != nil || !bytes.Equal(got, data[1-i]) {
				t.Errorf("got %d bytes of %d, same %t, %v", n, size,
					bytes.Equal(got, data[1-i]), err)
			}
		})
	}
	wg.Wait()
	for _, c := range []*stack.TCPConn{a, b} {
		must(t, c.CloseWrite())
	}
	for _, c := range []*stack.TCPConn{a, b} {
		if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Errorf("at the end: %d, %v, want EOF", n, err)
		}
	}
}

// cut is a cable that can be cut. It counts the segments sent while it is cut.
type cut struct {
	off  atomic.Bool
	lost atomic.Int64
}

// tap counts segments over IPv4 that the first end sends in vain.
func (c *cut) tap(end int, f []byte) bool {
	off := c.off.Load()
	if off && end == 0 && f[12] == 8 && f[13] == 0 && f[23] == 6 {
		c.lost.Add(1)
	}
	return off
}

// TestKeepAlive: an idle connection detects that its peer has vanished.
func TestKeepAlive(t *testing.T) {
	var cable cut
	fast := net.KeepAliveConfig{Enable: true, Idle: 20 * time.Millisecond,
		Interval: 10 * time.Millisecond, Count: 3}
	server, client := netpair.New(t, netpair.Faults{Tap: cable.tap})
	s, c := pair(t, server, client)
	must(t, c.SetKeepAlive(false))
	cable.off.Store(true)
	must(t, s.SetKeepAliveConfig(fast))
	errs := background(func() error { _, err := s.Read(make([]byte, 1)); return err })
	if err := result(t, "Read", errs); !errors.Is(err, syscall.ETIMEDOUT) {
		t.Errorf("%v, want ETIMEDOUT", err)
	}
	if n := cable.lost.Load(); n != int64(fast.Count) {
		t.Errorf("%d probes, want %d", n, fast.Count)
	}
}

// TestKeepAliveDefaults checks the options that Accept and Dial set.
func TestKeepAliveDefaults(t *testing.T) {
	for _, c := range []struct {
		name  string
		opts  stack.TCPOptions
		probe bool
	}{
		{"default", stack.TCPOptions{}, true},
		{"off", stack.TCPOptions{KeepAlive: &net.KeepAliveConfig{}}, false},
		{"short", stack.TCPOptions{KeepAlive: &net.KeepAliveConfig{Enable: true,
			Idle: 10 * time.Millisecond}}, true},
	} {
		var probes atomic.Int64
		server, client := netpair.New(t, netpair.Faults{Tap: func(_ int, f []byte) bool {
			if len(f) == 66 && f[23] == 6 && f[47] == byte(header.TCPFlagAck) {
				probes.Add(1)
			}
			return false
		}}, netpair.Both(func(cfg *stack.Config) { cfg.TCP = c.opts }))
		s, _ := pair(t, server, client)
		if c.name == "short" {
			before := probes.Load()
			for end := time.Now().Add(hangs); probes.Load() < before+3; {
				if time.Now().After(end) {
					t.Fatal("no probes")
				}
				s.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
				s.Read(make([]byte, 1))
			}
		}
		ep := server.Netstack().RegisteredEndpoints()
		on := false
		for _, e := range ep {
			if e, ok := e.(tcpip.Endpoint); ok &&
				tcp.EndpointState(e.State()) == tcp.StateEstablished {
				on = on || e.SocketOptions().GetKeepAlive()
			}
		}
		if on != c.probe {
			t.Errorf("%s: keep-alive on %t, want %t", c.name, on, c.probe)
		}
	}
}

// TestRetransmissionTimeout: a connection with data to send detects that its peer has vanished.
func TestRetransmissionTimeout(t *testing.T) {
	var cable cut
	server, client := netpair.New(t, netpair.Faults{Tap: cable.tap},
		netpair.Both(func(c *stack.Config) {
			quick(c)
			netstackTCP(c, new(tcpip.TCPMaxRetriesOption(3)))
		}))
	s, _ := pair(t, server, client)
	cable.off.Store(true)
	_, err := s.Write([]byte("into the void"))
	must(t, err)
	errs := background(func() error { _, err := s.Read(make([]byte, 1)); return err })
	if err := result(t, "Read", errs); !errors.Is(err, syscall.ETIMEDOUT) {
		t.Errorf("%v, want ETIMEDOUT", err)
	}
	if _, err := s.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("then: %v, want EPIPE", err)
	}
}

// TestUserTimeout: a connection whose peer is gone ends after TCP_USER_TIMEOUT, long before its
// retransmissions do.
func TestUserTimeout(t *testing.T) {
	var cable cut
	v := newVirtualTime(t)
	server, client := netpair.New(t, netpair.Faults{Tap: cable.tap}, netpair.Both(v.option))
	s, _ := pair(t, server, client)
	if err := s.SetUserTimeout(-1); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("negative: %v, want EINVAL", err)
	}
	must(t, s.SetUserTimeout(5*time.Second))
	cable.off.Store(true)
	began := v.Clock.Clock().Now()
	_, err := s.Write([]byte("into the void"))
	must(t, err)
	errs := background(func() error { _, err := s.Read(make([]byte, 1)); return err })
	if err := result(t, "Read", errs); !errors.Is(err, syscall.ETIMEDOUT) {
		t.Errorf("%v, want ETIMEDOUT", err)
	}
	if took := v.Clock.Clock().Now().Sub(began); took < 5*time.Second || took > 20*time.Second {
		t.Errorf("ended after %v, want soon after 5 s", took)
	}
}

// TestTimedOutByLink: a connection that the link ends, as its peer is silent for longer than its
// retransmissions or its user timeout take, fails with ETIMEDOUT, once what has come is read.
func TestTimedOutByLink(t *testing.T) {
	server, client := netpair.New(t, netpair.Faults{}, netpair.Both(func(c *stack.Config) {
		netstackTCP(c, new(tcpip.TCPMaxRetriesOption(15)))
	}))
	s, c := pair(t, server, client)
	if got, want := s.TimeOut(0), 924600*time.Millisecond; got != want {
		t.Errorf("limit %v, want %v", got, want)
	}
	must(t, s.SetUserTimeout(5*time.Second))
	if got, want := s.TimeOut(4999*time.Millisecond), 5*time.Second; got != want {
		t.Errorf("limit %v, want %v", got, want)
	}
	_, err := c.Write([]byte("data"))
	must(t, err)
	for s.Buffered() < 4 {
		runtime.Gosched()
	}
	s.TimeOut(5 * time.Second)
	must(t, c.SetLinger(0))
	must(t, c.Close()) // a reset, as the link delivers one
	b := make([]byte, 10)
	if n, err := s.Read(b); string(b[:n]) != "data" || err != nil {
		t.Errorf("read %q, %v", b[:n], err)
	}
	if _, err := s.Read(b); !errors.Is(err, syscall.ETIMEDOUT) {
		t.Errorf("then: %v, want ETIMEDOUT", err)
	}
	if _, err := s.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("then: %v, want EPIPE", err)
	}
}

// TestTryRead: what read(2) of a descriptor that does not block returns.
func TestTryRead(t *testing.T) {
	server, client := netpair.New(t, netpair.Faults{})
	s, c := pair(t, server, client)
	b := make([]byte, 10)
	if n, err := s.TryRead(b); n != 0 || err != syscall.EAGAIN {
		t.Errorf("nothing there: %d, %v, want EAGAIN", n, err)
	}
	_, err := c.Write([]byte("data"))
	must(t, err)
	must(t, c.CloseWrite())
	one := make([]byte, 1)
	_, err = s.Read(one) // waits
	must(t, err)
	if n, err := s.TryRead(b); err != nil || string(one)+string(b[:n]) != "data" {
		t.Errorf("got %q and %q, %v", one, b[:n], err)
	}
	if n, err := s.Read(b); n != 0 || err != io.EOF { // waits
		t.Errorf("Read: %d, %v", n, err)
	}
	if n, err := s.TryRead(b); n != 0 || err != io.EOF {
		t.Errorf("after the FIN: %d, %v, want EOF", n, err)
	}
	must(t, s.SetReadDeadline(time.Unix(1, 0)))
	if _, err := s.TryRead(b); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the deadline: %v", err)
	}
	s.Close()
	if _, err := s.TryRead(b); !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// TestTCPTimeToLive looks at the packets.
func TestTCPTimeToLive(t *testing.T) {
	var last atomic.Uint32
	tap := func(side int, f []byte) bool {
		if side == 0 && f[12] == 8 && f[13] == 0 && f[23] == 6 {
			last.Store(uint32(f[22]))
		}
		return false
	}
	server, client := netpair.New(t, netpair.Faults{Tap: tap})
	s, c := pair(t, server, client)
	for _, tt := range []struct{ set, want int }{{7, 7}, {-1, 64}} {
		must(t, s.SetTTL(tt.set))
		_, err := s.Write([]byte("x"))
		must(t, err)
		_, err = c.Read(make([]byte, 1))
		must(t, err)
		if got := last.Load(); got != uint32(tt.want) {
			t.Errorf("TTL %d: sent with %d, want %d", tt.set, got, tt.want)
		}
	}
	for _, wrong := range []int{0, 256, -2} {
		if err := s.SetTTL(wrong); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("TTL %d: %v, want EINVAL", wrong, err)
		}
	}
}

// TestNoNeighbour dials an address of the link that no host has.
func TestNoNeighbour(t *testing.T) {
	_, client := netpair.New(t, netpair.Faults{}, netpair.Both(newVirtualTime(t).option))
	errs := background(func() error { _, err := client.Dial("tcp", "192.0.2.99:80"); return err })
	if err := result(t, "Dial", errs); !errors.Is(err, syscall.EHOSTUNREACH) {
		t.Errorf("%v, want EHOSTUNREACH", err)
	}
}

// TestSYNRetries: a host that answers ARP but no IP packet.
func TestSYNRetries(t *testing.T) {
	deaf := func(_ int, f []byte) bool { return f[12] == 8 && f[13] == 0 } // no IPv4, but ARP
	_, client := netpair.New(t, netpair.Faults{Tap: deaf},
		netpair.Both(newVirtualTime(t).option),
		netpair.Both(func(c *stack.Config) { netstackTCP(c, new(tcpip.TCPSynRetriesOption(1))) }))
	errs := background(func() error {
		_, err := client.Dial("tcp", at(netpair.ServerIP4, &net.TCPAddr{Port: 80}))
		return err
	})
	var ne net.Error
	if err := result(t, "Dial", errs); !errors.Is(err, syscall.ETIMEDOUT) ||
		!errors.As(err, &ne) || !ne.Timeout() {
		t.Errorf("%v, want ETIMEDOUT", err)
	}
}

// TestBacklog fills a listener; the stack counts what it drops, and Accept makes room.
func TestBacklog(t *testing.T) {
	server, client := netpair.New(t, netpair.Faults{}, netpair.Both(newVirtualTime(t).option),
		netpair.Server(func(c *stack.Config) { c.TCP.Backlog = 4 }))
	l, err := server.Listen("tcp", ":0")
	must(t, err)
	to := at(netpair.ServerIP4, l.Addr())
	connected := 0
	for ; connected < 8; connected++ {
		c, err := client.DialTimeout("tcp", to, 5*time.Second)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		must(t, err)
		defer c.Close()
		// The client has the SYN-ACK; the next SYN may overtake its ACK at a busy server.
		eventually(t, "the end of the handshake at the server", func() bool {
			return connected >= 5 || !hasState(server, "SYN-RECV")
		})
	}
	if connected < 5 || connected > 6 || server.Stats().TCPListenDrops == 0 {
		t.Errorf("%d connected with a backlog of 4, %d drops counted", connected,
			server.Stats().TCPListenDrops)
	}
	go func() { // more than one: a sixth may be half open, and take the room of the first
		for s, err := l.Accept(); err == nil; s, err = l.Accept() {
			s.Close()
		}
	}()
	c, err := client.DialTimeout("tcp", to, hangs)
	must(t, err)
	c.Close()
}

// hasState says whether a TCP socket is in that state.
func hasState(st *stack.Stack, state string) bool {
	return slices.ContainsFunc(st.Sockets(),
		func(s stack.Socket) bool { return s.State == state })
}

// TestOptions checks that every option reaches netstack.
func TestOptions(t *testing.T) {
	server, _ := netpair.New(t, netpair.Faults{}, netpair.Server(func(c *stack.Config) {
		c.TCP = stack.TCPOptions{
			CongestionControl: "reno",
			SendBuffer:        stack.BufferRange{Min: 1, Default: 2, Max: 3},
			ReceiveBuffer:     stack.BufferRange{Min: 4, Default: 5, Max: 6},
		}
		netstackTCP(c, new(tcpip.TCPSACKEnabled(false)), new(tcpip.TCPRecovery(0)),
			new(tcpip.TCPAlwaysUseSynCookies(true)), new(tcpip.TCPMinRTOOption(7*time.Millisecond)),
			new(tcpip.TCPMaxRetriesOption(8)), new(tcpip.TCPTimeWaitTimeoutOption(10*time.Second)),
			new(tcpip.TCPLingerTimeoutOption(11*time.Second)),
			new(tcpip.TCPSynRetriesOption(3)), new(tcpip.TCPTimeWaitReuseGlobal))
		c.UDPBuffer = stack.BufferRange{Default: 5000, Max: 7000}
	}))
	defaults, _ := netpair.New(t, netpair.Faults{})
	for _, c := range []struct {
		name           string
		get            func(*stack.Stack) any
		want, default_ any
	}{
		{"congestion", option(new(tcpip.CongestionControlOption)),
			tcpip.CongestionControlOption("reno"), tcpip.CongestionControlOption("cubic")},
		{"SACK", option(new(tcpip.TCPSACKEnabled)), tcpip.TCPSACKEnabled(false),
			tcpip.TCPSACKEnabled(true)},
		{"RACK", option(new(tcpip.TCPRecovery)), tcpip.TCPRecovery(0), tcpip.TCPRACKLossDetection},
		{"cookies", option(new(tcpip.TCPAlwaysUseSynCookies)), tcpip.TCPAlwaysUseSynCookies(true),
			tcpip.TCPAlwaysUseSynCookies(false)},
		{"send", option(new(tcpip.TCPSendBufferSizeRangeOption)),
			tcpip.TCPSendBufferSizeRangeOption{Min: 1, Default: 2, Max: 3},
			tcpip.TCPSendBufferSizeRangeOption{Min: 4 << 10, Default: 1 << 20, Max: 8 << 20}},
		{"receive", option(new(tcpip.TCPReceiveBufferSizeRangeOption)),
			tcpip.TCPReceiveBufferSizeRangeOption{Min: 4, Default: 5, Max: 6},
			tcpip.TCPReceiveBufferSizeRangeOption{Min: 4 << 10, Default: 1 << 20, Max: 8 << 20}},
		{"minimum RTO", option(new(tcpip.TCPMinRTOOption)),
			tcpip.TCPMinRTOOption(7 * time.Millisecond),
			tcpip.TCPMinRTOOption(120 * time.Millisecond)},
		{"retries", option(new(tcpip.TCPMaxRetriesOption)), tcpip.TCPMaxRetriesOption(8),
			tcpip.TCPMaxRetriesOption(15)},
		{"TIME-WAIT", option(new(tcpip.TCPTimeWaitTimeoutOption)),
			tcpip.TCPTimeWaitTimeoutOption(10 * time.Second),
			tcpip.TCPTimeWaitTimeoutOption(time.Minute)},
		{"FIN-WAIT-2", option(new(tcpip.TCPLingerTimeoutOption)),
			tcpip.TCPLingerTimeoutOption(11 * time.Second),
			tcpip.TCPLingerTimeoutOption(time.Minute)},
		{"SYN retries", option(new(tcpip.TCPSynRetriesOption)), tcpip.TCPSynRetriesOption(3),
			tcpip.TCPSynRetriesOption(6)},
		{"reuse", option(new(tcpip.TCPTimeWaitReuseOption)), tcpip.TCPTimeWaitReuseGlobal,
			tcpip.TCPTimeWaitReuseLoopbackOnly},
		{"UDP read", udpRead, tcpip.ReceiveBufferSizeOption{Min: 4 << 10, Default: 5000, Max: 7000},
			tcpip.ReceiveBufferSizeOption{Min: 4 << 10, Default: 4 << 20, Max: 16 << 20}},
		{"UDP write", udpWrite, tcpip.SendBufferSizeOption{Min: 4 << 10, Default: 5000, Max: 7000},
			tcpip.SendBufferSizeOption{Min: 4 << 10, Default: 4 << 20, Max: 16 << 20}},
	} {
		if got := c.get(server); got != c.want {
			t.Errorf("%s is %v, want %v", c.name, got, c.want)
		}
		if got := c.get(defaults); got != c.default_ {
			t.Errorf("%s is %v by default, want %v", c.name, got, c.default_)
		}
	}
}

// option reads one of TCP's options into p.
func option[P interface {
	*T
	tcpip.GettableTransportProtocolOption
}, T any](p P) func(*stack.Stack) any {
	return func(s *stack.Stack) any {
		if err := s.Netstack().TransportProtocolOption(header.TCPProtocolNumber, p); err != nil {
			return fmt.Sprint(err)
		}
		return *p
	}
}

func udpRead(s *stack.Stack) any {
	var o tcpip.ReceiveBufferSizeOption
	s.Netstack().Option(&o)
	return o
}

func udpWrite(s *stack.Stack) any {
	var o tcpip.SendBufferSizeOption
	s.Netstack().Option(&o)
	return o
}

// TestManyConnections opens and uses connections from many goroutines.
func TestManyConnections(t *testing.T) {
	server, client := netpair.New(t, netpair.Faults{})
	l, err := server.Listen("tcp", ":0")
	must(t, err)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				io.Copy(c, c)
				c.Close()
			}()
		}
	}()
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for j := range 20 {
				msg := fmt.Appendf(nil, "connection %d of %d", j, i)
				c, err := client.Dial("tcp",
					at([]netip.Addr{netpair.ServerIP4, netpair.ServerIP6}[j%2], l.Addr()))
				if err != nil {
					t.Error(err)
					return
				}
				c.Write(msg)
				c.(*stack.TCPConn).CloseWrite()
				if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, msg) {
					t.Errorf("%q, %v", got, err)
				}
				c.Close()
			}
		})
	}
	wg.Wait()
	if n := server.Stats().TCPAccepted; n != 320 {
		t.Errorf("%d connections accepted, want 320", n)
	}
}

// TestNoPortLeft has four ports for what binds or connects to five: the errors are those of Linux
// with the same ip_local_port_range.
func TestNoPortLeft(t *testing.T) {
	for _, c := range []struct {
		name string
		open func(s *stack.Stack) (io.Closer, error)
		want error
		call string
	}{
		{"TCP connect", func(s *stack.Stack) (io.Closer, error) {
			return s.Dial("tcp", "192.0.2.2:80")
		}, syscall.EADDRNOTAVAIL, "connect"},
		{"TCP bind and connect", func(s *stack.Stack) (io.Closer, error) {
			d := s.Dialer()
			d.LocalAddr = &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)}
			return d.DialContext(t.Context(), "tcp", "192.0.2.2:80")
		}, syscall.EADDRINUSE, "bind"},
		{"TCP listen", func(s *stack.Stack) (io.Closer, error) {
			return s.Listen("tcp", "192.0.2.1:0")
		}, syscall.EADDRINUSE, "bind"},
		{"UDP connect", func(s *stack.Stack) (io.Closer, error) {
			return s.Dial("udp", "192.0.2.2:80")
		}, syscall.EAGAIN, "connect"},
		{"UDP bind", func(s *stack.Stack) (io.Closer, error) {
			return s.ListenPacket("udp", "192.0.2.1:0")
		}, syscall.EADDRINUSE, "bind"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, peer := stacktest.Pair(t)
			s.Netstack().SetPortRange(40000, 40003)
			ln, err := peer.Listen("tcp4", ":80")
			must(t, err)
			defer ln.Close()
			for range 4 {
				c, err := c.open(s)
				must(t, err)
				defer c.Close()
			}
			_, err = c.open(s)
			var call *os.SyscallError
			if !errors.Is(err, c.want) || !errors.As(err, &call) || call.Syscall != c.call {
				t.Errorf("%v, want %s: %v", err, c.call, c.want)
			}
		})
	}
}

// TestManyListeners: what it costs to open, list and close a listener does not grow with their
// number. On Linux, 8,000 listeners more change nothing.
func TestManyListeners(t *testing.T) {
	s, _ := stacktest.Pair(t)
	const some, many = 500, 8000
	port := 10000
	open := func(n int) (all []net.Listener) {
		for range n {
			l, err := s.Listen("tcp4", fmt.Sprintf("192.0.2.1:%d", port))
			must(t, err)
			all = append(all, l)
			port++
		}
		return all
	}
	closeAll := func(all []net.Listener) {
		for _, l := range all {
			must(t, l.Close())
		}
	}
	measure := func() time.Duration { // of the thread's processor time, for a listener
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		best := time.Hour
		for range 5 {
			begin := threadTime(t)
			all := open(some)
			closeAll(all)
			took := (threadTime(t) - begin) / some
			port -= some
			begin = threadTime(t)
			if n := len(s.Sockets()); n > 0 {
				took += (threadTime(t) - begin) / time.Duration(n)
			}
			best = min(best, took)
		}
		return best
	}
	defer closeAll(open(some)) // listing them is measured, too
	few := measure()
	defer closeAll(open(many))
	lots := measure()
	t.Logf("a listener costs %v beside %d others, %v beside %d", few, some, lots, many)
	if lots > 5*few {
		t.Errorf("a listener costs %v beside %d others, %v beside %d", few, some, lots, many)
	}
}

// threadTime returns the processor time of the calling thread.
func threadTime(t *testing.T) time.Duration {
	t.Helper()
	const thread = 1 // RUSAGE_THREAD
	var used syscall.Rusage
	must(t, syscall.Getrusage(thread, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// TestTCPWorkersServe serves connections with each number of TCP goroutines.
func TestTCPWorkersServe(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	for _, workers := range []int{1, 3, 4} {
		server, client := netpair.New(t, netpair.Faults{}, netpair.Both(func(c *stack.Config) {
			c.TCP.Workers = workers
		}))
		l, err := server.Listen("tcp4", ":9")
		must(t, err)
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					io.Copy(c, c)
					c.Close()
				}()
			}
		}()
		for range 20 {
			c, err := client.DialTimeout("tcp4", "192.0.2.1:9", time.Minute)
			must(t, err)
			want := bytes.Repeat([]byte("served"), 1000)
			_, err = c.Write(want)
			must(t, err)
			must(t, c.(*stack.TCPConn).CloseWrite())
			got, err := io.ReadAll(c)
			if err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%d workers: %d bytes came back: %v", workers, len(got), err)
			}
			must(t, c.Close())
		}
		must(t, l.Close())
	}
}
