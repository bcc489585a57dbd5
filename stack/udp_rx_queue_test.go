package stack

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/rdma-netstack/rdma-netstack/stack/packets"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/racing"
)

// queued is the number of datagrams that came through netstack.
func (c *UDPConn) queued() uint64 {
	return c.ep.Stats().(*tcpip.TransportEndpointStats).PacketsReceived.Value()
}

// put delivers a datagram for c as the link does.
func put(t testing.TB, c *UDPConn, from string, payload []byte) bool {
	t.Helper()
	a := netip.MustParseAddrPort(from)
	to := netip.MustParseAddr("192.0.2.2").As4()
	source := a.Addr().As4()
	ip := append(append(make([]byte, 12), source[:]...), to[:]...)
	ip[0] = 0x45
	udp := append([]byte{byte(a.Port() >> 8), byte(a.Port()), 0, 53, byte((8 + len(payload)) >> 8),
		byte(8 + len(payload)), 0, 0}, payload...)
	return c.rxq.Deliver(ip, udp, time.Time{})
}

// putSegments delivers datagrams for c as one, as the link does.
func putSegments(t testing.TB, c *UDPConn, from string, payloads [][]byte) bool {
	t.Helper()
	a := netip.MustParseAddrPort(from)
	to, source := netip.MustParseAddr("192.0.2.2").As4(), a.Addr().As4()
	ip := append(append(make([]byte, 12), source[:]...), to[:]...)
	ip[0] = 0x45
	n := 8 + len(payloads[0])
	udp := append([]byte{byte(a.Port() >> 8), byte(a.Port()), 0, 53, byte(n >> 8), byte(n), 0, 0},
		payloads[0]...)
	return c.rxq.DeliverSegments(ip, udp, payloads, time.Time{})
}

// TestRxQueueAndEndpointAreAlike sends the same datagrams with the queue in use and with all of
// them through netstack, and requires the same results for readers.
func TestRxQueueAndEndpointAreAlike(t *testing.T) {
	for _, network := range []struct{ of, local, remote string }{
		{"udp4", "192.0.2.1:7", "192.0.2.2:53"}, {"udp4", "0.0.0.0:7", "0.0.0.0:53"},
		{"udp6", "[2001:db8::1]:7", "[2001:db8::2]:53"}, {"udp", "[::]:7", "[::]:53"},
	} {
		var saw [2][]string
		for i := range saw {
			r := newDirectRig(t, i == 1)
			from, to, at := r.conns(t, network.of, network.local, network.remote)
			must(t, to.SetControl(true))
			for _, target := range []string{"192.0.2.2", "2001:db8::2"} {
				if a := netip.MustParseAddr(target); at.Addr().IsUnspecified() &&
					(at.Addr().Is6() || a.Is4()) || at.Addr() == a {
					saw[i] = append(saw[i], r.converse(t, from, to, netip.AddrPortFrom(a, 53))...)
				}
			}
			if n := to.queued(); i == 0 && n != 0 || i == 1 && n == 0 {
				t.Errorf("%s %s: %d datagrams came through netstack", network.of, network.remote, n)
			}
		}
		if !slices.Equal(saw[0], saw[1]) || len(saw[0]) == 0 {
			t.Errorf("%s %s: saw %q\nthrough netstack %q", network.of,
				network.remote, saw[0], saw[1])
		}
	}
}

// converse sends datagrams and returns the results of reading them.
func (r *directRig) converse(t *testing.T, from, to *UDPConn, at netip.AddrPort) (saw []string) {
	t.Helper()
	must(t, to.SetReadDeadline(time.Now().Add(time.Minute)))
	say := func(what string, b []byte, more ...any) {
		saw = append(saw, fmt.Sprintf("%s %d %.8x %v", what, len(b), b, more))
	}
	for _, size := range []int{0, 1, 63, 1000, 1452} {
		b, room, oob := bytes.Repeat([]byte{byte(size), 0xa5}, size)[:size],
			bytes.Repeat([]byte{0x5a}, 1000), make([]byte, 64)
		for range 3 {
			_, err := from.WriteToUDPAddrPort(b, at)
			must(t, err)
		}
		n, addr, err := to.ReadFrom(room)
		must(t, err)
		say("ReadFrom", room[:n], addr)
		n, oobn, flags, peer, err := to.ReadMsgUDPAddrPort(room, oob)
		must(t, err)
		say("ReadMsg", room[:n], oob[:oobn], flags, peer)
		ms := []Message{{Buffers: [][]byte{room}, OOB: oob}}
		_, err = to.ReadBatch(ms, 0)
		must(t, err)
		say("ReadBatch", room[:ms[0].N], ms[0].Addr, ms[0].Flags, oob[:ms[0].NN])
	}
	return saw
}

// TestRxQueueKeepsOrder mixes fragmented datagrams, which netstack reassembles, with others.
func TestRxQueueKeepsOrder(t *testing.T) {
	r := newDirectRig(t, false)
	from, to, at := r.conns(t, "udp4", "192.0.2.1:7", "192.0.2.2:53")
	send(t, from, to, at, []byte("resolved"))
	sizes := []int{1, 2, 3000, 3, 4, 9000, 5}
	for range 3 {
		for _, n := range sizes {
			_, err := from.WriteToUDPAddrPort(make([]byte, n), at)
			must(t, err)
		}
		must(t, to.SetReadDeadline(time.Now().Add(time.Minute)))
		for i, want := range sizes {
			n, _, err := to.ReadFromUDPAddrPort(make([]byte, 1<<14))
			must(t, err)
			if n != want {
				t.Fatalf("datagram %d has %d bytes, want %d", i, n, want)
			}
		}
	}
	before := to.queued()
	if before == 0 {
		t.Error("nothing came through netstack")
	}
	send(t, from, to, at, []byte("a"))
	send(t, from, to, at, []byte("b"))
	if got := to.queued() - before; got != 0 {
		t.Errorf("%d datagrams came through netstack when nothing else waited there", got)
	}
}

// TestRxQueueIsForItsSocket: a socket that is bound to an address, or connected to a peer, gets no
// other's datagrams.
func TestRxQueueIsForItsSocket(t *testing.T) {
	r := newDirectRig(t, false)
	at := net.UDPAddrFromAddrPort(netip.MustParseAddrPort("192.0.2.2:53"))
	peer := net.UDPAddrFromAddrPort(netip.MustParseAddrPort("192.0.2.1:7"))
	connected, err := r.receiver.DialUDP("udp4", at, peer)
	must(t, err)
	for from, want := range map[string]bool{"192.0.2.1:7": true,
		"192.0.2.1:8": false, "192.0.2.9:7": false} {
		if got := put(t, connected, from, []byte("x")); got != want {
			t.Errorf("connected to %v, from %s: taken %v", peer, from, got)
		}
	}
	must(t, connected.Close())
	connected.rxq.endpointEmpty = true // netstack has reported the end
	if put(t, connected, "192.0.2.1:7", nil) {
		t.Error("taken by a closed socket")
	}
	other, err := r.receiver.ListenUDP("udp4",
		net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:53")))
	must(t, err)
	if put(t, other, "192.0.2.1:7", []byte("x")) {
		t.Error("taken by a socket of another address")
	}
}

// TestUDPPortTable: a port's only socket is found, wherever it is bound, until it is closed;
// sockets that share a port are not.
func TestUDPPortTable(t *testing.T) {
	r := newDirectRig(t, false)
	s := r.receiver
	found := func(v6 bool) *UDPConn {
		if b, ok := s.udp.ports.find(0, v6, 53).(*udpRxQueue); ok {
			return b.conn
		}
		return nil
	}
	want := func(v4, v6 *UDPConn) {
		t.Helper()
		if found(false) != v4 || found(true) != v6 {
			t.Errorf("found %v and %v, want %v and %v", found(false), found(true), v4, v6)
		}
	}
	listen := func(network, at string) *UDPConn {
		t.Helper()
		c, err := s.ListenUDP(network, net.UDPAddrFromAddrPort(netip.MustParseAddrPort(at)))
		must(t, err)
		return c
	}
	want(nil, nil)
	four, six := listen("udp4", "0.0.0.0:53"), listen("udp6", "[::]:53")
	want(four, six)
	must(t, four.Close())
	want(nil, six)
	must(t, six.Close())
	both := listen("udp", "[::]:53")
	want(both, both)
	must(t, both.Close())
	one, two := listen("udp4", "192.0.2.2:53"), listen("udp4", "127.0.0.1:53")
	want(nil, nil)
	must(t, two.Close())
	want(one, nil)
	must(t, one.Close())
	lc := s.ListenConfig()
	lc.ReusePort = true
	for range 2 {
		c, err := lc.listenUDP("udp4", &net.UDPAddr{Port: 53})
		must(t, err)
		want(nil, nil)
		defer c.Close()
	}
	if n := len(s.udp.ports.sockets); n != 0 {
		t.Errorf("%d ports are left", n)
	}
}

// TestRxQueueLimit: a datagram that does not fit the receive buffer is lost and counted, and there
// is room again after a read.
func TestRxQueueLimit(t *testing.T) {
	r := newDirectRig(t, false)
	_, c, _ := r.conns(t, "udp4", "192.0.2.1:7", "192.0.2.2:53")
	must(t, c.SetReadBuffer(8<<10))
	must(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
	limit := int(c.ep.SocketOptions().GetReceiveBufferSize())
	for _, size := range []int{0, 1, 64, 1000} {
		before := r.receiver.Stats()
		fits := (limit + max(size, chargeLeast) - 1) / max(size, chargeLeast)
		for range fits + 5 {
			if !put(t, c, "192.0.2.1:7", make([]byte, size)) {
				t.Fatal("not taken")
			}
		}
		after := r.receiver.Stats()
		if lost := after.UDPReceiveBufferErr - before.UDPReceiveBufferErr; lost != 5 ||
			after.UDPReceived-before.UDPReceived != uint64(fits+5) {
			t.Errorf("%d bytes: %d lost of %d", size, lost, after.UDPReceived-before.UDPReceived)
		}
		for range fits {
			n, err := c.Read(make([]byte, 2000))
			must(t, err)
			if n != size {
				t.Fatalf("%d bytes, want %d", n, size)
			}
		}
		if left := c.rxq.charged.Load(); left != 0 {
			t.Errorf("%d bytes: %d left when all was read", size, left)
		}
	}
	if put(t, c, "192.0.2.1:7", make([]byte, blockBytes+1)) {
		t.Error("longer than a block: taken")
	}
}

// TestRxQueueReportsRefusal: an ICMP error is read before the waiting datagrams.
func TestRxQueueReportsRefusal(t *testing.T) {
	r := newDirectRig(t, false)
	c, err := r.sender.DialUDP("udp4", nil,
		net.UDPAddrFromAddrPort(netip.MustParseAddrPort("192.0.2.2:53")))
	must(t, err)
	must(t, c.SetDeadline(time.Now().Add(time.Minute)))
	_, err = c.Write([]byte("anybody?"))
	must(t, err)
	if _, err := c.Read(make([]byte, 10)); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("read: %v", err)
	}
}

// TestRxQueueConcurrently reads, puts and closes at once; it checks that everything ends, and runs
// for the race detector.
func TestRxQueueConcurrently(t *testing.T) {
	r := newDirectRig(t, false)
	_, c, _ := r.conns(t, "udp4", "192.0.2.1:7", "192.0.2.2:53")
	const each = 2000
	var writers, readers sync.WaitGroup
	var mu sync.Mutex
	seen := map[string]bool{}
	for w := range 3 {
		writers.Go(func() {
			for i := range each {
				put(t, c, fmt.Sprintf("192.0.2.1:%d", w+1), fmt.Append(nil, w, i))
				c.rxq.Flush()
			}
		})
		readers.Go(func() {
			for b := make([]byte, 100); ; {
				n, from, err := c.ReadFromUDPAddrPort(b)
				if err != nil {
					if !errors.Is(err, net.ErrClosed) {
						t.Errorf("read: %v", err)
					}
					return
				}
				mu.Lock()
				if seen[string(b[:n])] || fmt.Sprint(from.Port()-1) != string(b[:1]) {
					t.Errorf("%q from %v", b[:n], from)
				}
				seen[string(b[:n])] = true
				mu.Unlock()
			}
		})
	}
	writers.Wait()
	for deadline := time.Now().Add(30 * time.Second); c.rxq.charged.Load() > 0 &&
		time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	must(t, c.Close())
	readers.Wait()
	if len(seen) != 3*each {
		t.Errorf("%d datagrams of %d", len(seen), 3*each)
	}
}

func TestRxQueueDoesNotAllocate(t *testing.T) {
	r := newDirectRig(t, false)
	_, c, _ := r.conns(t, "udp4", "192.0.2.1:7", "192.0.2.2:53")
	var ip [20]byte
	copy(ip[:], []byte{0x45, 12: 192, 0, 2, 1, 192, 0, 2, 2})
	udp := [12]byte{1: 7, 3: 53, 5: 12}
	b := make([]byte, 100)
	if n := testing.AllocsPerRun(1000, func() {
		for range 3 {
			if !c.rxq.Deliver(ip[:], udp[:], time.Time{}) {
				t.Fatal("not taken")
			}
		}
		c.rxq.Flush()
		for range 3 {
			_, _, err := c.ReadFromUDPAddrPort(b)
			must(t, err)
		}
	}); n != 0 && !racing.Detector {
		t.Errorf("%v allocations", n)
	}
}

// TestReceiveSegments reads datagrams of which some lie one behind the other: those of one sender
// and size come as one, with the size in a control message, up to 64 and to the room there is;
// nothing changes for a reader that has not asked.
func TestReceiveSegments(t *testing.T) {
	type read struct{ n, size int }
	const a, b = "192.0.2.1:7", "192.0.2.1:8"
	type datagram struct {
		from string
		n    int
	}
	repeat := func(from string, n, count int) []datagram {
		return slices.Repeat([]datagram{{from, n}}, count)
	}
	for name, c := range map[string]struct {
		in   []datagram
		room int
		want []read
	}{
		"one":            {repeat(a, 100, 1), 1 << 16, []read{{100, 0}}},
		"several":        {repeat(a, 100, 5), 1 << 16, []read{{500, 100}}},
		"a shorter last": {append(repeat(a, 100, 5), datagram{a, 1}), 1 << 16, []read{{501, 100}}},
		"more behind that": {[]datagram{{a, 9}, {a, 9}, {a, 8}, {a, 8}}, 1 << 16,
			[]read{{26, 9}, {8, 0}}},
		"a longer one": {[]datagram{{a, 9}, {a, 9}, {a, 10}, {a, 9}}, 1 << 16,
			[]read{{18, 9}, {19, 10}}},
		"other senders": {[]datagram{{a, 9}, {a, 9}, {b, 9}, {b, 9}, {a, 9}}, 1 << 16,
			[]read{{18, 9}, {18, 9}, {9, 0}}},
		"empty ones": {[]datagram{{a, 0}, {a, 0}, {a, 9}, {a, 0}}, 1 << 16,
			[]read{{0, 0}, {0, 0}, {9, 0}, {0, 0}}},
		"64 and one":    {repeat(a, 100, 65), 1 << 16, []read{{6400, 100}, {100, 0}}},
		"64 KiB":        {repeat(a, 9000, 9), 1 << 17, []read{{63000, 9000}, {18000, 9000}}},
		"little room":   {repeat(a, 100, 5), 250, []read{{200, 100}, {200, 100}, {100, 0}}},
		"less than one": {repeat(a, 100, 2), 99, []read{{99, 0}, {99, 0}}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newDirectRig(t, false)
			_, to, _ := r.conns(t, "udp4", "192.0.2.1:7", "192.0.2.2:53")
			for _, asked := range []bool{true, false} {
				must(t, to.SetReceiveSegments(asked))
				want := c.want
				if !asked {
					want = nil
				}
				var all, got []byte
				for i, d := range c.in {
					payload := bytes.Repeat([]byte{byte(i + 1)}, d.n)
					if !put(t, to, d.from, payload) {
						t.Fatal("the datagram was not taken")
					}
					all = append(all, payload[:min(d.n, c.room)]...)
					if !asked {
						want = append(want, read{min(d.n, c.room), 0})
					}
				}
				for i, w := range want {
					buf, oob := make([]byte, c.room), make([]byte, 64)
					must(t, to.SetReadDeadline(time.Now().Add(time.Minute)))
					n, nn, flags, from, err := to.ReadMsgUDP(buf, oob)
					must(t, err)
					size := 0
					if nn > 0 {
						if nn != alignControl(controlHeader+4) || oob[8] != 17 || oob[12] != 104 {
							t.Errorf("control message %x", oob[:nn])
						}
						size = int(binary.NativeEndian.Uint32(oob[controlHeader:]))
					}
					if n != w.n || size != w.size || (flags != 0) != (c.room < 100) {
						t.Errorf("asked %v, read %d: %d bytes of %d each from %v, flags %#x; "+
							"want %v", asked, i, n, size, from, flags, w)
					}
					got = append(got, buf[:n]...)
				}
				if !bytes.Equal(got, all) {
					t.Errorf("asked %v: not what was sent", asked)
				}
				if left := to.rxq.charged.Load(); left != 0 {
					t.Errorf("%d bytes stay charged", left)
				}
			}
		})
	}
}

// TestDeliverSegments makes the link deliver datagrams as one, with others, to a socket that joins
// what it reads and to one that does not, or does not any more: both read what was sent.
func TestDeliverSegments(t *testing.T) {
	r := newDirectRig(t, false)
	_, to, _ := r.conns(t, "udp4", "192.0.2.1:7", "192.0.2.2:53")
	must(t, to.SetReadDeadline(time.Now().Add(time.Minute)))
	for _, size := range []int{1, 63, 1200, 9000} {
		var want [][]byte
		next := func(n, size int) [][]byte {
			for range n {
				want = append(want, bytes.Repeat([]byte{byte(len(want) + 1)}, size))
			}
			return want[len(want)-n:]
		}
		for _, asked := range []bool{true, false} {
			want = nil
			must(t, to.SetReceiveSegments(asked))
			for _, n := range []int{2, 5} {
				if !putSegments(t, to, "192.0.2.1:7", next(n, size)) ||
					!put(t, to, "192.0.2.1:7", next(1, size)[0]) {
					t.Fatal("the datagrams were not taken")
				}
			}
			short := next(3, size)
			short[2] = short[2][:size/2+1]
			if !putSegments(t, to, "192.0.2.1:7", short) {
				t.Fatal("the datagrams were not taken")
			}
			reads := 0
			buf := make([]byte, 1<<16)
			for left := want; len(left) > 0; reads++ {
				n, _, _, _, err := to.ReadMsgUDP(buf, make([]byte, 64))
				must(t, err)
				for got := buf[:n]; len(got) > 0 && len(left) > 0; left = left[1:] {
					if !bytes.HasPrefix(got, left[0]) {
						t.Fatalf("%d bytes each, asked %v: not what was sent", size, asked)
					}
					got = got[len(left[0]):]
				}
			}
			if wanted := (len(want)*size + 65506) / 65507; asked && reads > wanted+1 ||
				!asked && reads != len(want) {
				t.Errorf("%d bytes each, asked %v: %d reads", size, asked, reads)
			}
			if left := to.rxq.charged.Load(); left != 0 {
				t.Errorf("%d bytes each, asked %v: %d stay charged", size, asked, left)
			}
		}
	}
}

// TestDeliverSegmentsLimit: as many datagrams of a delivery are lost as would be lost one by one,
// and those are its last.
func TestDeliverSegmentsLimit(t *testing.T) {
	r := newDirectRig(t, false)
	_, c, _ := r.conns(t, "udp4", "192.0.2.1:7", "192.0.2.2:53")
	must(t, c.SetReadBuffer(8<<10))
	must(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
	limit := int(c.ep.SocketOptions().GetReceiveBufferSize())
	for _, size := range []int{1, 64, 1000} {
		before := r.receiver.Stats()
		fits := (limit + max(size, chargeLeast) - 1) / max(size, chargeLeast)
		var payloads [][]byte
		for i := range fits + 5 {
			payloads = append(payloads, bytes.Repeat([]byte{byte(i)}, size))
		}
		for part := range slices.Chunk(payloads, maxJoined) {
			if !putSegments(t, c, "192.0.2.1:7", part) {
				t.Fatal("not taken")
			}
		}
		after := r.receiver.Stats()
		if lost := after.UDPReceiveBufferErr - before.UDPReceiveBufferErr; lost != 5 ||
			after.UDPReceived-before.UDPReceived != uint64(fits+5) {
			t.Errorf("%d bytes: %d lost of %d", size, lost, after.UDPReceived-before.UDPReceived)
		}
		b := make([]byte, 2000)
		for i := range fits {
			n, err := c.Read(b)
			must(t, err)
			if !bytes.Equal(b[:n], payloads[i]) {
				t.Fatalf("%d bytes: datagram %d is another one", size, i)
			}
		}
		if left := c.rxq.charged.Load(); left != 0 {
			t.Errorf("%d bytes: %d left when all was read", size, left)
		}
	}
	must(t, c.Close())
	if putSegments(t, c, "192.0.2.1:7", [][]byte{{1}, {2}}) {
		t.Error("taken by a closed socket")
	}
}

// TestJoinedByTheLink: datagrams that one call sends arrive joined, at a socket that asks and only
// there, unless a handler has the socket: that gets each.
func TestJoinedByTheLink(t *testing.T) {
	r := newDirectRig(t, false)
	from, to, at := r.conns(t, "udp4", "192.0.2.1:7", "192.0.2.2:53")
	send(t, from, to, at, []byte("resolved"))
	const size, count = 1200, 40
	payload := make([]byte, size*count-7)
	for i := range payload {
		payload[i] = byte(i * i >> 7)
	}
	must(t, from.SetSegmentSize(size))
	must(t, to.SetReadBuffer(1<<20))
	b := make([]byte, 1<<16)
	exchange := func() (joined uint64) {
		before := r.receiver.link.Stats().RxMerged
		_, err := from.WriteToUDPAddrPort(payload, at)
		must(t, err)
		for got := []byte(nil); len(got) < len(payload); {
			n, err := to.Read(b)
			must(t, err)
			if got = append(got, b[:n]...); !bytes.HasPrefix(payload, got) {
				t.Fatal("not what was sent")
			}
		}
		return r.receiver.link.Stats().RxMerged - before
	}
	for range 3 {
		if n := exchange(); n != 0 {
			t.Errorf("nobody asked: %d datagrams were joined", n)
		}
	}
	must(t, to.SetReceiveSegments(true))
	for end := time.Now().Add(time.Minute); exchange() < count/2; { // they may come in many batches
		if time.Now().After(end) {
			t.Fatal("datagrams are not joined")
		}
	}
	must(t, to.SetReceiveSegments(false))
	if n := exchange(); n != 0 {
		t.Errorf("nobody asks any more: %d datagrams were joined", n)
	}
	must(t, to.SetReceiveSegments(true))
	served := &serving{to, make(chan error, 1)}
	served.serve(func(_ int, ps []packets.Packet) {
		for i := range ps {
			ps[i].Reply = append(ps[i].Reply, fmt.Sprint(len(ps[i].Payload))...)
		}
	})
	_, err := from.WriteToUDPAddrPort(payload, at)
	must(t, err)
	must(t, from.SetReadDeadline(time.Now().Add(time.Minute)))
	for i := range count {
		n, err := from.Read(b)
		must(t, err)
		if want := fmt.Sprint(min(size, len(payload)-i*size)); string(b[:n]) != want {
			t.Errorf("the handler had %s bytes, want %s", b[:n], want)
		}
	}
	must(t, to.Close())
	served.wants(t, net.ErrClosed)
}

// TestReceiveSegmentsOfClasses: what differs in class is read apart; batches join as single reads
// do.
func TestReceiveSegmentsOfClasses(t *testing.T) {
	r := newDirectRig(t, false)
	from, to, at := r.conns(t, "udp6", "[2001:db8::1]:7", "[2001:db8::2]:53")
	send(t, from, to, at, []byte("resolved"))
	must(t, to.SetReceiveSegments(true))
	must(t, to.SetReceiveTOS(true))
	for i, class := range []int{0, 0, 2, 2, 2, 0} {
		must(t, from.SetECN(class))
		_, err := from.WriteToUDPAddrPort([]byte{byte(i), 1}, at)
		must(t, err)
	}
	until := time.Now().Add(time.Minute)
	for to.rxq.waiting() < 6 && time.Now().Before(until) {
		time.Sleep(time.Millisecond)
	}
	must(t, to.SetReadDeadline(until))
	ms := make([]Message, 6)
	for i := range ms {
		ms[i].Buffers, ms[i].OOB = [][]byte{make([]byte, 100)}, make([]byte, 64)
	}
	n, err := to.ReadBatch(ms, 0)
	must(t, err)
	var sizes, sums []int
	for _, m := range ms[:n] {
		sizes, sums = append(sizes, m.N), append(sums, m.NN)
	}
	one, both := alignControl(controlHeader+4), 2*alignControl(controlHeader+4)
	if !slices.Equal(sizes, []int{4, 6, 2}) || !slices.Equal(sums, []int{both, both, one}) {
		t.Errorf("read %v bytes, %v of control messages", sizes, sums)
	}
}

// waiting counts the datagrams that have not been read.
func (q *udpRxQueue) waiting() (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for b := q.incoming.first; b != nil; b = b.next {
		for _, l := range b.metas[b.read:b.written] {
			n += max(1, (int(l.n)+int(l.segment)-1)/max(1, int(l.segment)))
		}
	}
	return n
}

// TestReceiveTimestamps: what comes by the link has the NIC's stamp and the system's, what comes
// through netstack the latter only; both lie between sending and reading.
func TestReceiveTimestamps(t *testing.T) {
	for _, closed := range []bool{false, true} {
		r := newDirectRig(t, closed)
		for network, at := range map[string][2]string{
			"udp4": {"192.0.2.1:7", "192.0.2.2:53"},
			"udp6": {"[2001:db8::1]:7", "[2001:db8::2]:53"},
		} {
			from, to, remote := r.conns(t, network, at[0], at[1])
			send(t, from, to, remote, []byte("resolved"))
			for _, asked := range []bool{true, false, true} {
				must(t, to.SetReceiveTimestamps(asked))
				before := time.Now()
				_, err := from.WriteToUDPAddrPort([]byte("x"), remote)
				must(t, err)
				oob := make([]byte, 100)
				_, nn, _, _, err := to.ReadMsgUDP(make([]byte, 10), oob)
				must(t, err)
				after := time.Now()
				if !asked {
					if nn != 0 {
						t.Errorf("%x without being asked", oob[:nn])
					}
					continue
				}
				m, rest, ok, e := nextControl(oob[:nn])
				if !ok || e != 0 || len(rest) != 0 || m.level != 1 || m.kind != 37 ||
					len(m.data) != 48 {
					t.Fatalf("control messages %x", oob[:nn])
				}
				stamp := func(at int) time.Time {
					native := binary.NativeEndian
					return time.Unix(int64(native.Uint64(m.data[at:])),
						int64(native.Uint64(m.data[at+8:])))
				}
				software, none, nic := stamp(0), stamp(16), stamp(32)
				if software.Before(before.Round(0)) || software.After(after) || none.Unix() != 0 {
					t.Errorf("%s: software stamp %v, sent at %v and read at %v", network, software,
						before, after)
				}
				if closed {
					if !nic.Equal(time.Unix(0, 0)) {
						t.Errorf("%s, through netstack: the NIC's stamp is %v", network, nic)
					}
				} else if nic.Before(before.Add(-time.Millisecond)) || nic.After(software) {
					t.Errorf("%s: NIC's stamp %v, sent at %v, software stamp %v", network, nic,
						before, software)
				}
			}
		}
	}
}

// BenchmarkRxQueue delivers 32 datagrams of 1,200 bytes to a socket, each by itself or as one, and
// reads them by one call.
func BenchmarkRxQueue(b *testing.B) {
	_, server := newHeardLink(b)
	c, err := server.ListenUDP("udp4", &net.UDPAddr{Port: 53})
	must(b, err)
	must(b, c.SetReceiveSegments(true))
	payloads := slices.Repeat([][]byte{make([]byte, 1200)}, 32)
	ip, udp := frameOf(payloads[0])
	for name, joined := range map[string]bool{"each": false, "joined": true} {
		b.Run(name, func(b *testing.B) {
			buf, oob := make([]byte, 1<<16), make([]byte, 64)
			for b.Loop() {
				if joined {
					c.rxq.DeliverSegments(ip, udp, payloads, time.Time{})
				}
				for range len(payloads) {
					if !joined {
						c.rxq.Deliver(ip, udp, time.Time{})
					}
				}
				c.rxq.Flush()
				if n, _, _, _, err := c.ReadMsgUDPAddrPort(buf, oob); err != nil || n != 32*1200 {
					b.Fatal(n, err)
				}
			}
		})
	}
}
