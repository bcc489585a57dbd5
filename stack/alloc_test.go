package stack

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/racing"
)

// fullEndpoint replaces netstack where only our own allocations are counted: every second call
// would block, and wakes the caller at once.
type fullEndpoint struct {
	tcpip.Endpoint
	q       *waiter.Queue
	payload []byte
	blocks  bool
	tuned   int
}

func (e *fullEndpoint) wouldBlock(events waiter.EventMask) bool {
	e.blocks = !e.blocks
	if e.blocks {
		e.q.Notify(events)
	}
	return e.blocks
}

func (e *fullEndpoint) Read(w io.Writer, _ tcpip.ReadOptions) (tcpip.ReadResult, tcpip.Error) {
	if e.wouldBlock(waiter.ReadableEvents) {
		return tcpip.ReadResult{}, &tcpip.ErrWouldBlock{}
	}
	n, _ := w.Write(e.payload)
	from := tcpip.FullAddress{Addr: tcpip.AddrFrom4([4]byte{192, 0, 2, 9}), Port: 9}
	return tcpip.ReadResult{Count: n, Total: len(e.payload), RemoteAddr: from}, nil
}

func (e *fullEndpoint) Write(p tcpip.Payloader, _ tcpip.WriteOptions) (int64, tcpip.Error) {
	if e.wouldBlock(waiter.WritableEvents) {
		return 0, &tcpip.ErrWouldBlock{}
	}
	return int64(min(p.Len(), 1000)), nil
}

func (e *fullEndpoint) ModerateRecvBuf(n int) { e.tuned += n }

func (*fullEndpoint) SocketOptions() *tcpip.SocketOptions {
	return new(tcpip.SocketOptions)
}
func (*fullEndpoint) LastError() tcpip.Error                        { return nil }
func (*fullEndpoint) Readiness(m waiter.EventMask) waiter.EventMask { return m }

func newFull() (*Stack, *fullEndpoint) {
	return &Stack{name: "test"}, &fullEndpoint{q: new(waiter.Queue), payload: make([]byte, 1000)}
}

// TestTCPAllocatesNothing reads and writes with a wait in every call.
func TestTCPAllocatesNothing(t *testing.T) {
	s, ep := newFull()
	c := &TCPConn{ep: ep, laddr: &net.TCPAddr{}, raddr: &net.TCPAddr{}}
	c.stack = s
	register(ep.q, &c.events, tcpEvents{c}, readEvents|writeEvents)
	c.SetDeadline(time.Now().Add(time.Hour))
	buf := make([]byte, 2500)
	for name, call := range map[string]func() error{
		"Read":        func() error { _, err := c.Read(buf); return err },
		"Write":       func() error { _, err := c.Write(buf); return err },
		"SetDeadline": func() error { return c.SetDeadline(time.Now().Add(time.Hour)) },
	} {
		if n := testing.AllocsPerRun(200, func() { must(t, call()) }); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
	if ep.tuned == 0 {
		t.Error("buffer tuning was never told of the bytes read")
	}
	c.setDeadline(time.Time{}, &c.rd, &c.wr)
}

// TestUDPReadAllocatesNothing: ReadFromUDPAddrPort not at all, ReadFrom one address.
func TestUDPReadAllocatesNothing(t *testing.T) {
	s, ep := newFull()
	c := &UDPConn{ep: ep, laddr: &net.UDPAddr{}}
	c.stack, c.rxq.conn = s, c
	register(ep.q, &c.events, &c.rd, readEvents)
	buf := make([]byte, 2500)
	if n := testing.AllocsPerRun(200, func() {
		_, _, err := c.ReadFromUDPAddrPort(buf)
		must(t, err)
	}); n != 0 {
		t.Errorf("ReadFromUDPAddrPort allocates %v times", n)
	}
	if n := testing.AllocsPerRun(200, func() {
		_, _, err := c.ReadFrom(buf)
		must(t, err)
	}); n != 1 {
		t.Errorf("ReadFrom allocates %v times, want 1", n)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// sink is a link that discards packets; neighbours need no resolution.
type sink struct {
	gstack.LinkEndpoint
	sent int
}

func (*sink) MTU() uint32                    { return 1500 }
func (*sink) MaxHeaderLength() uint16        { return 14 }
func (*sink) LinkAddress() tcpip.LinkAddress { return "" }
func (*sink) Capabilities() gstack.LinkEndpointCapabilities {
	return gstack.CapabilityTXChecksumOffload
}
func (*sink) Attach(gstack.NetworkDispatcher)         {}
func (*sink) IsAttached() bool                        { return true }
func (*sink) Wait()                                   {}
func (*sink) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareNone }
func (*sink) AddHeader(*gstack.PacketBuffer)          {}
func (*sink) ParseHeader(*gstack.PacketBuffer) bool   { return true }
func (*sink) Close()                                  {}
func (*sink) SetOnCloseAction(func())                 {}
func (l *sink) WritePackets(p gstack.PacketBufferList) (int, tcpip.Error) {
	l.sent += p.Len()
	return p.Len(), nil
}

func onSink(t testing.TB) (*Stack, *sink) {
	l := new(sink)
	s, err := New(l, Config{Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")},
		Addressing: AddressOptions{DuplicateDetection: -1}})
	must(t, err)
	t.Cleanup(func() { s.Close() })
	return s, l
}

// TestUDPWriteAllocates once at most: netstack's list of one packet, if nothing of ours.
func TestUDPWriteAllocates(t *testing.T) {
	s, l := onSink(t)
	c, err := s.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 53})
	must(t, err)
	to := netip.MustParseAddrPort("192.0.2.9:5353")
	b := make([]byte, 64)
	before := l.sent
	if n := testing.AllocsPerRun(200, func() {
		_, err := c.WriteToUDPAddrPort(b, to)
		must(t, err)
	}); n > 1 && !racing.Detector {
		t.Errorf("WriteToUDPAddrPort allocates %v times, want 1 at most", n)
	}
	if l.sent-before < 200 {
		t.Errorf("only %d datagrams went out", l.sent-before)
	}
}

// TestRouteCache: after a change of addresses or routes, sockets find their routes again.
func TestRouteCache(t *testing.T) {
	s, _ := onSink(t)
	var c routeCache
	key := routeKey{remote: tcpip.AddrFrom4([4]byte{192, 0, 2, 9})}
	var used []*gstack.Route
	use := func() {
		if err := c.use(s, key, func(p *peerPath) tcpip.Error {
			used = append(used, p.route)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	use()
	use()
	s.epoch.Add(1)
	use()
	if used[0] != used[1] || used[1] == used[2] {
		t.Errorf("routes %p", used)
	}
	c.drop()
	use() // a send that races with Close
	if len(c.routes) != 0 {
		t.Error("a closed socket keeps a route")
	}
	key.remote = tcpip.AddrFrom4([4]byte{203, 0, 113, 9})
	if err := c.use(s, key, nil); err == nil {
		t.Error("no error without a route")
	}
}

func BenchmarkUDPWriteTo(b *testing.B) {
	s, _ := onSink(b)
	c, err := s.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 53})
	must(b, err)
	to := net.UDPAddrFromAddrPort(netip.MustParseAddrPort("192.0.2.9:5353"))
	payload := make([]byte, 64)
	b.Run("cached/64B", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			c.WriteTo(payload, to)
		}
	})
	b.Run("endpoint/64B", func(b *testing.B) { // netstack alone
		b.ReportAllocs()
		full := tcpip.FullAddress{Addr: tcpip.AddrFrom4([4]byte{192, 0, 2, 9}), Port: 5353}
		for b.Loop() {
			c.sendEndpoint(payload, full, "sendto")
		}
	})
}
