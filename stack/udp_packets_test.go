package stack

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/link/pipe"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/apps/dnsd"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/rdma"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/stack/packets"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/racing"
)

// packetHosts returns a server with two receive queues and two addresses of each version of IP, and
// a client: 192.0.2.1, 192.0.2.3 and 192.0.2.2, and likewise for IPv6.
func packetHosts(t *testing.T) (server, client *Stack) {
	t.Helper()
	a, b := wire.Pair()
	var all [2]*Stack
	for i, w := range []wire.Wire{a, b} {
		nic, err := simnic.New(simnic.Config{Seed: uint64(i + 1)})
		must(t, err)
		t.Cleanup(func() { nic.Close() })
		must(t, nic.ConnectWire(w))
		cfg := Config{
			NIC: dv.NIC{Model: dv.Model{Kernel: kernel.Opener(nic),
				Facts: dv.PortFacts{Name: "sim", MAC: nic.MAC(), MTU: nic.MTU()}},
				RxQueues: 2 - i},
			Uplink: UplinkOptions{Spread: SpreadAll},
			Addresses: []netip.Prefix{
				netip.MustParsePrefix(fmt.Sprintf("192.0.2.%d/24", i+1)),
				netip.MustParsePrefix(fmt.Sprintf("2001:db8::%d/64", i+1))},
			Addressing: AddressOptions{DuplicateDetection: -1, NoAnnounce: true},
		}
		if i == 0 {
			cfg.Addresses = append(cfg.Addresses, netip.MustParsePrefix("192.0.2.3/24"),
				netip.MustParsePrefix("2001:db8::3/64"))
		}
		all[i], err = Open(t.Context(), cfg)
		must(t, err)
		t.Cleanup(func() { all[i].Close() })
	}
	return all[0], all[1]
}

// serving is a socket on port 53 that is served, and what ServePackets returns.
type serving struct {
	*UDPConn
	ended chan error
}

func servePackets(t *testing.T, s *Stack, handler packets.Handler) *serving {
	t.Helper()
	c, err := s.ListenUDP("udp", &net.UDPAddr{Port: 53})
	must(t, err)
	v := &serving{c, make(chan error, 1)}
	v.serve(handler)
	return v
}

// serve calls ServePackets on a goroutine; a panic is an error.
func (v *serving) serve(handler packets.Handler) {
	started := v.rxq.server.Load()
	go func() {
		defer func() {
			if p := recover(); p != nil {
				v.ended <- fmt.Errorf("panic: %v", p)
			}
		}()
		v.ended <- v.ServePackets(handler)
	}()
	for v.rxq.server.Load() == started {
		time.Sleep(time.Millisecond)
	}
}

// wants requires that ServePackets returns this error, soon.
func (v *serving) wants(t *testing.T, want error) {
	t.Helper()
	select {
	case err := <-v.ended:
		if !errors.Is(err, want) {
			t.Errorf("ServePackets returned %v, want %v", err, want)
		}
	case <-time.After(time.Minute):
		t.Fatal("ServePackets has not returned")
	}
}

// ask sends b to a port 53 and returns the answer, which has to come from there.
func ask(t *testing.T, c *UDPConn, at string, b []byte) string {
	t.Helper()
	to := netip.AddrPortFrom(netip.MustParseAddr(at), 53)
	_, err := c.WriteToUDPAddrPort(b, to)
	must(t, err)
	must(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
	var buf [8192]byte
	n, from, err := c.ReadFromUDPAddrPort(buf[:])
	must(t, err)
	if from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port()); from != to {
		t.Errorf("asked %v, answered by %v", to, from)
	}
	return string(buf[:n])
}

// TestServePackets asks from many ports, at all addresses: each answer comes from the address that
// was asked, the shards of both queues answer without a lock, and the sender is as it is.
func TestServePackets(t *testing.T) {
	server, client := packetHosts(t)
	var answered [maxShards + 1]int // by shard; the race detector says if it needs a lock
	var wrong atomic.Int32
	var seen [maxShards + 1]atomic.Bool
	v := servePackets(t, server, func(shard int, ps []packets.Packet) {
		answered[shard] += len(ps)
		seen[shard].Store(true)
		for i := range ps {
			p := &ps[i]
			if p.To.Port() != 53 || p.TOS != 0x2a || len(p.Reply) != 0 ||
				cap(p.Reply) < packets.Room || p.From.Addr().Is4In6() || !p.At.IsZero() {
				wrong.Add(1)
			}
			p.Reply = fmt.Appendf(p.Reply, "%s asked %v", p.Payload, p.To.Addr())
		}
	})
	asked := 0
	for end := time.Now().Add(time.Minute); asked == 0 ||
		!seen[1].Load() || !seen[2].Load(); asked += 800 {
		if time.Now().After(end) {
			t.Fatalf("%d answered, not by both queues", asked)
		}
		askAll(t, client)
	}
	must(t, v.Close())
	v.wants(t, net.ErrClosed)
	if answered[0]+answered[1]+answered[2] != asked {
		t.Errorf("answered %v of %d", answered[:3], asked)
	}
	if n := wrong.Load(); n != 0 {
		t.Errorf("%d packets are wrong", n)
	}
}

// askAll asks 800 questions from 8 ports.
func askAll(t *testing.T, client *Stack) {
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			c, err := client.ListenUDP("udp", nil)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			if err := c.SetTrafficClass(0x2a); err != nil {
				t.Error(err)
			}
			for j := range 100 {
				at := []string{"192.0.2.1", "2001:db8::1", "192.0.2.3", "2001:db8::3"}[j%4]
				want := fmt.Sprintf("%d.%d asked %s", i, j, at)
				if got := ask(t, c, at, fmt.Appendf(nil, "%d.%d", i, j)); got != want {
					t.Errorf("got %q, want %q", got, want)
				}
			}
		})
	}
	all.Wait()
}

// TestServePacketsShardZero: what does not come whole from a ring is handled, too: fragments, and
// all on a link that has no rings.
func TestServePacketsShardZero(t *testing.T) {
	echo := func(own *atomic.Int32) packets.Handler {
		return func(shard int, ps []packets.Packet) {
			if shard == 0 {
				own.Add(int32(len(ps)))
			}
			for i := range ps {
				ps[i].Reply = ps[i].Payload
			}
		}
	}
	server, client := packetHosts(t)
	var own atomic.Int32
	v := servePackets(t, server, echo(&own))
	c, err := client.ListenUDP("udp", nil)
	must(t, err)
	for _, at := range []string{"192.0.2.3", "2001:db8::3"} {
		for _, n := range []int{0, 5000, 1472} {
			b := bytes.Repeat([]byte{7}, n)
			if n == 0 {
				b = []byte("-") // an empty answer is none
			}
			if got := ask(t, c, at, b); got != string(b) {
				t.Errorf("%s: %d bytes of %d", at, len(got), len(b))
			}
		}
	}
	if own.Load() < 2 {
		t.Errorf("%d fragmented ones handled", own.Load())
	}
	must(t, v.Close())
	v.wants(t, net.ErrClosed)

	x, y := pipe.New("\x02\x00\x00\x00\x00\x0a", "\x02\x00\x00\x00\x00\x0b", 1500)
	var ends [2]*Stack
	for i, l := range []*pipe.Endpoint{x, y} {
		ends[i], err = New(l, Config{
			Addressing: AddressOptions{DuplicateDetection: -1, NoAnnounce: true},
			Addresses:  []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("192.0.2.%d/24", i+1))}})
		must(t, err)
		t.Cleanup(func() { ends[i].Close() })
	}
	own.Store(0)
	v = servePackets(t, ends[0], echo(&own))
	c, err = ends[1].ListenUDP("udp", nil)
	must(t, err)
	for range 3 {
		if got := ask(t, c, "192.0.2.1", []byte("hello")); got != "hello" {
			t.Errorf("got %q", got)
		}
	}
	if own.Load() != 3 {
		t.Errorf("%d handled", own.Load())
	}
	must(t, v.SetReceiveSegments(true))
	ask(t, c, "192.0.2.1", []byte("hello"))
	must(t, v.Close())
	v.wants(t, net.ErrClosed)
}

// TestServePacketsReplies: a reply may be in the room that it is given, in part of it, in another
// packet's, in the question or elsewhere, and longer than there is room. All are sent as they are,
// with the socket's class.
func TestServePacketsReplies(t *testing.T) {
	server, client := packetHosts(t)
	long := strings.Repeat("l", packets.Room+1)
	v := servePackets(t, server, func(_ int, ps []packets.Packet) {
		for i := range ps {
			p := &ps[i]
			switch room := p.Reply; string(p.Payload) {
			case "own room":
				p.Reply = append(room, "yes"...)
			case "full room":
				p.Reply = append(room, long[:packets.Room]...)
			case "part of it":
				p.Reply = append(room, "no, yes"...)[4:]
			case "another's":
				p.Reply = append(ps[len(ps)-1].Reply[:0:packets.Room], "yes"...)
			case "question":
				p.Reply = p.Payload[:3]
			case "elsewhere":
				p.Reply = []byte("yes")
			default:
				p.Reply = append(room, long...)
			}
		}
	})
	must(t, v.SetTrafficClass(0x2c))
	c, err := client.ListenUDP("udp", nil)
	must(t, err)
	must(t, c.SetReceiveTOS(true))
	for range 3 {
		for _, at := range []string{"192.0.2.1", "2001:db8::3"} {
			for question, want := range map[string]string{"own room": "yes",
				"full room": long[:packets.Room], "part of it": "yes", "another's": "yes",
				"question": "que", "elsewhere": "yes", "longer": long} {
				_, err := c.WriteToUDPAddrPort([]byte(question),
					netip.AddrPortFrom(netip.MustParseAddr(at), 53))
				must(t, err)
				must(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
				var buf, oob [8192]byte
				n, m, _, from, err := c.ReadMsgUDPAddrPort(buf[:], oob[:])
				must(t, err)
				if string(buf[:n]) != want || from.Addr().Unmap().String() != at ||
					from.Port() != 53 {
					t.Errorf("%s: %.20q (%d bytes) of %v", question, buf[:n], n, from)
				}
				if !bytes.Contains(oob[:m], []byte{0x2c}) {
					t.Errorf("%s: class % x", question, oob[:m])
				}
			}
		}
	}
}

// TestServePacketsEnds: by a deadline, after which what comes is read and the socket can be served
// again; by Close in the handler; by a panic in it, which other sockets do not notice.
func TestServePacketsEnds(t *testing.T) {
	server, client := packetHosts(t)
	handler := func(what string) packets.Handler {
		return func(_ int, ps []packets.Packet) {
			for i := range ps {
				ps[i].Reply = append(ps[i].Reply, what...)
			}
		}
	}
	v := servePackets(t, server, handler("one"))
	c, err := client.ListenUDP("udp", nil)
	must(t, err)
	for range 3 {
		if got := ask(t, c, "192.0.2.1", []byte("x")); got != "one" {
			t.Errorf("got %q", got)
		}
	}
	if err := v.ServePackets(handler("")); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("served twice: %v", err)
	}
	must(t, v.SetReadDeadline(time.Unix(1, 0)))
	v.wants(t, os.ErrDeadlineExceeded)
	must(t, v.SetReadDeadline(time.Now().Add(time.Minute)))
	_, err = c.WriteToUDPAddrPort([]byte("read"), netip.MustParseAddrPort("192.0.2.1:53"))
	must(t, err)
	var b [16]byte
	if n, _, err := v.ReadFrom(b[:]); err != nil || string(b[:n]) != "read" {
		t.Errorf("read %q, %v", b[:n], err)
	}
	must(t, v.SetReadDeadline(time.Time{}))
	v.serve(handler("two"))
	if got := ask(t, c, "192.0.2.1", []byte("x")); got != "two" {
		t.Errorf("got %q", got)
	}
	must(t, v.SetReadDeadline(time.Unix(1, 0)))
	v.wants(t, os.ErrDeadlineExceeded)
	must(t, v.SetReadDeadline(time.Time{}))

	other, err := server.ListenUDP("udp", &net.UDPAddr{Port: 54})
	must(t, err)
	ended := make(chan error, 1)
	go func() {
		ended <- other.ServePackets(func(_ int, ps []packets.Packet) {
			if string(ps[0].Payload) == "close" {
				if err := other.Close(); err != nil {
					t.Error(err)
				}
				return
			}
			handler("other")(0, ps)
		})
	}()
	v.serve(func(int, []packets.Packet) { panic("the handler's fault") })
	to := netip.MustParseAddrPort("192.0.2.1:53")
	_, err = c.WriteToUDPAddrPort([]byte("x"), to)
	must(t, err)
	select {
	case err := <-v.ended:
		if err == nil || !strings.Contains(err.Error(), "the handler's fault") ||
			!strings.Contains(err.Error(), "udp_packets_test.go") {
			t.Errorf("the handler panicked: %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the handler panicked, ServePackets goes on")
	}
	to = netip.MustParseAddrPort("192.0.2.1:54")
	for range 3 {
		_, err := c.WriteToUDPAddrPort([]byte("x"), to)
		must(t, err)
		must(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
		if n, _, err := c.ReadFrom(b[:]); err != nil || string(b[:n]) != "other" {
			t.Errorf("another socket after a panic: %q, %v", b[:n], err)
		}
	}
	_, err = c.WriteToUDPAddrPort([]byte("close"), to)
	must(t, err)
	select {
	case err := <-ended:
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("closed in the handler: %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("closed in the handler, ServePackets goes on")
	}
}

// resolvingLink is an end of a pipe on which neighbours are asked for.
type resolvingLink struct{ *pipe.Endpoint }

func (resolvingLink) Capabilities() gstack.LinkEndpointCapabilities {
	return gstack.CapabilityResolutionRequired
}

// heardLink is a link with a fast path that delivers and sends nothing by itself.
type heardLink struct {
	resolvingLink
	find    func(queue int, v6 bool, port uint16) rdma.DatagramSink
	replies atomic.Int64
	queues  atomic.Int64 // that replies went to, a bit each
	full    atomic.Bool
}

func (l *heardLink) SetLocalAddresses([]netip.Prefix)           {}
func (l *heardLink) SetLocalPrefixes([]netip.Prefix)            {}
func (l *heardLink) BindStack(*gstack.Stack, tcpip.NICID) error { return nil }
func (l *heardLink) SetDatagramSinks(find func(int, bool, uint16) rdma.DatagramSink) {
	l.find = find
}

func (l *heardLink) WriteDatagram(_, _ []byte) tcpip.Error {
	l.replies.Add(1)
	return nil
}

func (l *heardLink) WriteDatagrams(ds []rdma.Datagram) (int, tcpip.Error) {
	l.replies.Add(int64(len(ds)))
	return len(ds), nil
}

func (l *heardLink) WriteReplies(queue int, ds []rdma.Datagram) (int, tcpip.Error) {
	l.queues.Or(1 << queue)
	if l.full.Load() {
		return 0, &tcpip.ErrNoBufferSpace{}
	}
	return l.WriteDatagrams(ds)
}

// newHeardLink returns a server on such a link; the other end of the pipe answers ARP.
func newHeardLink(t testing.TB) (*heardLink, *Stack) {
	t.Helper()
	x, y := pipe.New("\x02\x00\x00\x00\x00\x0a", "\x02\x00\x00\x00\x00\x0b", 1500)
	l := &heardLink{resolvingLink: resolvingLink{x}}
	var ends [2]*Stack
	for i, link := range []gstack.LinkEndpoint{l, resolvingLink{y}} {
		s, err := New(link, Config{
			Addressing: AddressOptions{DuplicateDetection: -1, NoAnnounce: true},
			Addresses:  []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("192.0.2.%d/24", i+1))}})
		must(t, err)
		t.Cleanup(func() { s.Close() })
		ends[i] = s
	}
	return l, ends[0]
}

// frameOf returns the headers and the payload of a datagram from 192.0.2.2 to 192.0.2.1:53.
func frameOf(payload []byte) (ip, udp []byte) {
	ip = []byte{0x45, 8: 64, 9: 17, 12: 192, 0, 2, 2, 192, 0, 2, 1}
	n := 8 + len(payload)
	return ip, append([]byte{4, 0, 0, 53, byte(n >> 8), byte(n), 0, 0}, payload...)
}

// deliver has a receive queue deliver a batch of n datagrams.
func (l *heardLink) deliver(t testing.TB, queue, n int, ip, udp []byte) {
	sink := l.find(queue, false, 53)
	for range n {
		if !sink.Deliver(ip, udp, time.Time{}) {
			t.Fatal("not taken")
		}
	}
	sink.Flush()
}

// resolve has replies go to the link directly. Header templates are renewed every 100 ms.
func (l *heardLink) resolve(t testing.TB, ip, udp []byte) {
	for end := time.Now().Add(time.Minute); l.replies.Load() == 0; {
		l.deliver(t, 2, 1, ip, udp)
		time.Sleep(time.Millisecond)
		if time.Now().After(end) {
			t.Fatal("no reply went to the link directly")
		}
	}
}

// TestServePacketsCosts: a batch of 64 is one call of the handler and one of the link, of the
// queue's own sender, and allocates nothing; replies that find no room are lost and counted.
func TestServePacketsCosts(t *testing.T) {
	l, server := newHeardLink(t)
	calls := 0
	servePackets(t, server, func(_ int, ps []packets.Packet) {
		calls++
		for i := range ps {
			ps[i].Reply = append(ps[i].Reply, ps[i].Payload...)
		}
	})
	ip, udp := frameOf([]byte("hello"))
	l.resolve(t, ip, udp)
	if got := l.queues.Load(); got != 1<<2 {
		t.Errorf("replies went to queues %b", got)
	}
	calls = 0
	l.deliver(t, 2, maxBatch, ip, udp)
	l.deliver(t, 2, maxBatch+1, ip, udp)
	if calls != 3 {
		t.Errorf("%d calls", calls)
	}
	if n := testing.AllocsPerRun(100, func() { l.deliver(t, 2, maxBatch, ip, udp) }); n >= 1 &&
		!racing.Detector {
		t.Errorf("%v allocations", n)
	}
	l.full.Store(true)
	errors := server.udp.stats.PacketSendErrors
	for end, before := time.Now().Add(time.Minute), errors.Value(); errors.Value() == before; {
		l.deliver(t, 2, maxBatch, ip, udp) // one batch of 100 ms renews a template
		if time.Now().After(end) {
			t.Fatal("no reply is counted as lost")
		}
	}
}

// TestServePacketsShareSlot: peers that have one place in a shard's table of paths, in one batch,
// are who they are, and a reply to one does not go by the headers for the other.
func TestServePacketsShareSlot(t *testing.T) {
	l, server := newHeardLink(t)
	var froms []netip.Addr
	servePackets(t, server, func(_ int, ps []packets.Packet) {
		for i := range ps {
			froms = append(froms, ps[i].From.Addr())
			ps[i].Reply = append(ps[i].Reply, ps[i].Payload...)
		}
	})
	ip, udp := frameOf([]byte("hello"))
	l.resolve(t, ip, udp)
	known, other := pairOf(ip), bytes.Clone(ip)
	for i := 3; ; i++ {
		other[14], other[15] = byte(i>>8), byte(i)
		if p := pairOf(other); p.slot() == known.slot() {
			break
		}
	}
	froms = nil
	for sent, end := l.replies.Load(), time.Now().Add(time.Minute); ; {
		sink := l.find(2, false, 53)
		for _, h := range [][]byte{ip, other, ip} {
			if !sink.Deliver(h, udp, time.Time{}) {
				t.Fatal("not taken")
			}
		}
		sink.Flush()
		n := l.replies.Load() - sent
		if n == 2 {
			break
		}
		if n > 2 || time.Now().After(end) { // 0: the template was to be renewed
			t.Fatalf("%d replies went to the link directly, want those to one peer", n)
		}
	}
	a, b := netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(other[12:]))
	if got, want := froms[len(froms)-3:], []netip.Addr{a, b, a}; !slices.Equal(got, want) {
		t.Errorf("datagrams of %v, want %v", got, want)
	}
}

// BenchmarkDNS answers queries that come in batches of a receive queue, without link and NIC: a
// DNS server that reads the socket, and one whose socket calls it.
func BenchmarkDNS(b *testing.B) {
	query, err := new(dns.Msg).SetQuestion("www.example.org.", dns.TypeA).Pack()
	must(b, err)
	const zone = "$ORIGIN example.org.\n$TTL 60\n@ SOA ns.example.org. root.example.org. " +
		"1 60 60 60 60\n@ NS ns\nns A 192.0.2.1\nwww A 192.0.2.1\n"
	for _, n := range []int{1, 32} {
		for _, read := range []bool{true, false} {
			name := fmt.Sprintf("batch=%d/handler", n)
			if read {
				name = fmt.Sprintf("batch=%d/read", n)
			}
			b.Run(name, func(b *testing.B) {
				l, server := newHeardLink(b)
				app, err := dnsd.New(dnsd.Config{Zones: []dnsd.Zone{{Text: zone}}, UDPWorkers: 1,
					ResponseRate: -1})
				must(b, err)
				c, err := server.ListenUDP("udp", &net.UDPAddr{Port: 53})
				must(b, err)
				var pc net.PacketConn = c
				if read {
					pc = struct{ readSocket }{c}
				}
				go app.ServeUDP(pc)
				for !read && c.rxq.server.Load() == nil {
					time.Sleep(time.Millisecond)
				}
				ip, udp := frameOf(query)
				l.resolve(b, ip, udp)
				for _, p := range c.routes.routes { // no template is renewed
					p.template.Load().built = time.Now().Add(time.Hour)
				}
				b.ReportAllocs()
				for b.Loop() {
					want := l.replies.Load() + int64(n)
					l.deliver(b, 0, n, ip, udp)
					for read && l.replies.Load() < want {
						runtime.Gosched()
					}
				}
				b.ReportMetric(float64(b.Elapsed())/float64(b.N*n), "ns/query")
			})
		}
	}
}

// readSocket has the methods by which dnsd reads a socket.
type readSocket interface {
	net.PacketConn
	ReadBatch(ms []Message, flags int) (int, error)
	WriteBatch(ms []Message, flags int) (int, error)
	ReadFromUDPAddrPort(b []byte) (int, netip.AddrPort, error)
	WriteToUDPAddrPort(b []byte, to netip.AddrPort) (int, error)
}
