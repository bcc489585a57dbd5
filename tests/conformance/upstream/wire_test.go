package upstream

import (
	"container/heap"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand"
	"runtime"
	"runtime/metrics"
	"strings"
	"sync"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/seqnum"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// shows ends a test: it fails unless the fault is there.
func shows(t *testing.T, page string, fault bool, format string, args ...any) {
	t.Helper()
	if what := fmt.Sprintf(format, args...); fault {
		t.Logf("the fault: %s", what)
	} else {
		t.Errorf("gVisor has no such fault any more (%s): docs/upstream/%s.md and what works "+
			"around it may go", what, page)
	}
}

// clock is a tcpip.Clock that stands still until step.
type clock struct {
	mu     sync.Mutex // guards what follows
	now    time.Duration
	timers timers
	set    int // timers set so far
}

type timer struct {
	clock *clock
	f     func()
	at    time.Duration
	turn  int // orders timers of one time
	index int // in the heap; -1: not set
}

type timers []*timer

func (h timers) Len() int { return len(h) }
func (h timers) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].turn < h[j].turn
}
func (h timers) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *timers) Push(x any) {
	t := x.(*timer)
	t.index = len(*h)
	*h = append(*h, t)
}
func (h *timers) Pop() any {
	t := (*h)[len(*h)-1]
	t.index, *h = -1, (*h)[:len(*h)-1]
	return t
}

func (c *clock) since() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Now implements tcpip.Clock.
func (c *clock) Now() time.Time { return time.Unix(1e9, 0).Add(c.since()) }

// NowMonotonic implements tcpip.Clock.
func (c *clock) NowMonotonic() tcpip.MonotonicTime {
	var start tcpip.MonotonicTime
	return start.Add(c.since())
}

// AfterFunc implements tcpip.Clock.
func (c *clock) AfterFunc(d time.Duration, f func()) tcpip.Timer {
	t := &timer{clock: c, f: f, index: -1}
	t.Reset(d)
	return t
}

// Stop implements tcpip.Timer.
func (t *timer) Stop() bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	return t.remove()
}

// remove is called with the clock's mutex held.
func (t *timer) remove() bool {
	if t.index < 0 {
		return false
	}
	heap.Remove(&t.clock.timers, t.index)
	return true
}

// Reset implements tcpip.Timer.
func (t *timer) Reset(d time.Duration) {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	t.remove()
	t.clock.set++
	t.at, t.turn = t.clock.now+max(d, 0), t.clock.set
	heap.Push(&t.clock.timers, t)
}

// step goes to the next timer and runs it if it expires by end; else it goes to end, and reports
// false.
func (c *clock) step(end time.Duration) bool {
	c.mu.Lock()
	if len(c.timers) == 0 || c.timers[0].at > end {
		c.now = end
		c.mu.Unlock()
		return false
	}
	t := heap.Pop(&c.timers).(*timer)
	c.now = max(c.now, t.at)
	c.mu.Unlock()
	t.f()
	return true
}

// none reports whether no timer is set.
func (c *clock) none() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.timers) == 0
}

// settle waits until every goroutine but the caller's waits. With one processor nothing depends on
// the system's scheduling then.
func settle() {
	samples := []metrics.Sample{{Name: "/sched/goroutines/runnable:goroutines"},
		{Name: "/sched/goroutines/running:goroutines"},
		{Name: "/sched/goroutines/not-in-go:goroutines"}}
	for looks := 0; looks < 2; looks++ {
		runtime.Gosched()
		metrics.Read(samples)
		if samples[0].Value.Uint64() > 0 || samples[1].Value.Uint64() > 1 ||
			samples[2].Value.Uint64() > 0 {
			looks = -1
		}
	}
}

func oneProcessor(t *testing.T) {
	before := runtime.GOMAXPROCS(1)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
}

func must(err tcpip.Error) {
	if err != nil {
		panic(fmt.Sprint(err))
	}
}

const mtu = 1500

// newStack makes a netstack with the address 10.0.0.n on a link whose packets the test takes.
func newStack(c *clock, n byte, gso bool, probe func(*tcp.TCPEndpointState),
	options ...tcpip.SettableTransportProtocolOption) (*gstack.Stack, *channel.Endpoint) {
	link := channel.New(1<<14, mtu, "")
	link.LinkEPCapabilities |= gstack.CapabilityRXChecksumOffload
	if gso {
		link.SupportedGSOKind = gstack.HostGSOSupported
	}
	return newStackOn(link, c, n, probe, options...), link
}

// newStackOn is newStack on a link of the test's own.
func newStackOn(link gstack.LinkEndpoint, c *clock, n byte, probe func(*tcp.TCPEndpointState),
	options ...tcpip.SettableTransportProtocolOption) *gstack.Stack {
	s := gstack.New(gstack.Options{Clock: c,
		NetworkProtocols: []gstack.NetworkProtocolFactory{ipv4.NewProtocol},
		RandSource:       rand.NewSource(int64(n)),
		TransportProtocols: []gstack.TransportProtocolFactory{tcp.NewProtocolProbe(probe),
			udp.NewProtocol, icmp.NewProtocol4}})
	sack, recovery := tcpip.TCPSACKEnabled(true), tcpip.TCPRACKLossDetection
	cubic := tcpip.CongestionControlOption("cubic")
	for _, o := range append([]tcpip.SettableTransportProtocolOption{&sack, &recovery, &cubic},
		options...) {
		must(s.SetTransportProtocolOption(tcp.ProtocolNumber, o))
	}
	must(s.CreateNIC(1, link))
	must(s.AddProtocolAddress(1, tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber,
		AddressWithPrefix: tcpip.AddressWithPrefix{Address: host4(n), PrefixLen: 24}},
		gstack.AddressProperties{}))
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: 1}})
	return s
}

func host4(n byte) tcpip.Address { return tcpip.AddrFrom4([4]byte{10, 0, 0, n}) }

const (
	syn = header.TCPFlagSyn
	ack = header.TCPFlagAck
	fin = header.TCPFlagFin
	psh = header.TCPFlagPsh
	rst = header.TCPFlagRst
)

// segment is one of either side, in numbers relative to the sides' initial ones: its first byte of
// data has the number 1.
type segment struct {
	at       time.Duration // when netstack sent it
	port     uint16        // the test's; 0: 4000
	flags    header.TCPFlags
	seq, ack uint32
	size     int
	win      int // -1: 65535
	options  []byte
}

// String returns a line of a trace: time, flags, number, size, acknowledgement, window, options.
func (s segment) String() string {
	b := &strings.Builder{}
	fmt.Fprintf(b, "%10.3f ms  %s %d+%d", float64(s.at)/1e6, strings.ReplaceAll(s.flags.String(),
		" ", ""), s.seq, s.size)
	if s.flags&ack != 0 {
		fmt.Fprintf(b, " ack %d", s.ack)
	}
	fmt.Fprintf(b, " win %d", s.win)
	if val, echo, ok := s.stamp(); ok {
		fmt.Fprintf(b, " ts %d %d", val, echo)
	}
	if s.flags&syn != 0 {
		o := header.ParseSynOptions(s.options, false)
		fmt.Fprintf(b, " mss %d ws %d sackok %v", o.MSS, o.WS, o.SACKPermitted)
	}
	return b.String()
}

// stamp returns its timestamp, and the one that it echoes.
func (s segment) stamp() (val, echo uint32, ok bool) {
	o := header.ParseTCPOptions(s.options)
	return o.TSVal, o.TSEcr, o.TS
}

// options joins TCP options and fills them up to whole words.
func options(parts ...[]byte) (b []byte) {
	for _, p := range parts {
		b = append(b, p...)
	}
	for len(b)%4 != 0 {
		b = append(b, header.TCPOptionNOP)
	}
	return b
}

func mss(n uint32) []byte {
	b := make([]byte, header.TCPOptionMSSLength)
	header.EncodeMSSOption(n, b)
	return b
}

func scale(n int) []byte {
	b := make([]byte, header.TCPOptionWSLength)
	header.EncodeWSOption(n, b)
	return b
}

func sackOK() []byte {
	b := make([]byte, header.TCPOptionSackPermittedLength)
	header.EncodeSACKPermittedOption(b)
	return b
}

func stamp(val, echo uint32) []byte {
	b := make([]byte, header.TCPOptionTSLength)
	header.EncodeTSOption(val, echo, b)
	return b
}

// host is a netstack, 10.0.0.1, whose peer, 10.0.0.2, is the test: it writes the peer's segments by
// hand.
type host struct {
	t        *testing.T
	clock    *clock
	stack    *gstack.Stack
	link     *channel.Endpoint
	isn      map[uint16]uint32 // netstack's initial sequence numbers by the peer's port
	origin   uint32            // the peer's initial sequence number
	port     uint16            // of netstack
	listener *gonet.TCPListener
	silent   bool // no segment is printed
}

func newHost(t *testing.T, gso bool, opts ...tcpip.SettableTransportProtocolOption) *host {
	t.Helper()
	oneProcessor(t)
	h := &host{t: t, clock: &clock{}, isn: map[uint16]uint32{}, origin: 1 << 30, port: 80}
	h.stack, h.link = newStack(h.clock, 1, gso, nil, opts...)
	t.Cleanup(func() {
		h.stack.Close()
		for n := 0; n < 1000 && !h.clock.none(); n++ {
			h.clock.step(1 << 62)
			settle()
		}
	})
	return h
}

// listen listens at port 80.
func (h *host) listen(backlog int) {
	var queue waiter.Queue
	ep, err := h.stack.NewEndpoint(tcp.ProtocolNumber, ipv4.ProtocolNumber, &queue)
	must(err)
	must(ep.Bind(tcpip.FullAddress{Port: 80}))
	must(ep.Listen(backlog))
	h.listener = gonet.NewTCPListener(h.stack, &queue, ep)
}

func (h *host) ok(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// advance lets d pass.
func (h *host) advance(d time.Duration) {
	end := h.clock.since() + d
	for settle(); h.clock.step(end); settle() {
	}
	settle()
}

// send has a segment of the peer's arrive.
func (h *host) send(s segment) {
	if s.port == 0 {
		s.port = 4000
	}
	if s.win < 0 {
		s.win = 65535
	}
	s.at = h.clock.since()
	if !h.silent {
		h.t.Logf("peer     %v", s)
	}
	f := header.TCPFields{SrcPort: s.port, DstPort: h.port, SeqNum: h.origin + s.seq,
		DataOffset: uint8(header.TCPMinimumSize + len(s.options)), Flags: s.flags,
		WindowSize: uint16(s.win)}
	if s.flags&ack != 0 {
		f.AckNum = h.isn[s.port] + s.ack
	}
	b := make([]byte, int(f.DataOffset)+s.size)
	header.TCP(b).Encode(&f)
	copy(b[header.TCPMinimumSize:], s.options)
	sum := header.PseudoHeaderChecksum(header.TCPProtocolNumber, host4(2), host4(1),
		uint16(len(b)))
	header.TCP(b).SetChecksum(^checksum.Checksum(b, sum))
	h.inject(header.TCPProtocolNumber, host4(2), host4(1), b)
}

// quietly is send, and forgets what netstack sends.
func (h *host) quietly(s segment) {
	h.silent = true
	defer func() { h.silent = false }()
	h.send(s)
	h.sent()
}

// inject has a packet arrive.
func (h *host) inject(proto tcpip.TransportProtocolNumber, src, dst tcpip.Address, body []byte) {
	b := make([]byte, header.IPv4MinimumSize, header.IPv4MinimumSize+len(body))
	ip := header.IPv4(b)
	ip.Encode(&header.IPv4Fields{TotalLength: uint16(len(b) + len(body)), TTL: 64,
		Protocol: uint8(proto), SrcAddr: src, DstAddr: dst})
	ip.SetChecksum(^ip.CalculateChecksum())
	h.packet(append(b, body...), tcpip.PacketHost)
}

// packet has one of a kind of frame arrive.
func (h *host) packet(b []byte, kind tcpip.PacketType) {
	pkt := gstack.NewPacketBuffer(gstack.PacketBufferOptions{Payload: buffer.MakeWithData(b)})
	pkt.PktType = kind
	h.link.InjectInbound(header.IPv4ProtocolNumber, pkt)
	pkt.DecRef()
	settle()
}

// unreachable has a router's message arrive about a packet that begins with quoted.
func (h *host) unreachable(code header.ICMPv4Code, mtu uint16, quoted []byte) {
	h.t.Logf("router   unreachable, code %d, MTU %d", code, mtu)
	b := make([]byte, header.ICMPv4MinimumSize, header.ICMPv4MinimumSize+len(quoted))
	m := header.ICMPv4(b)
	m.SetType(header.ICMPv4DstUnreachable)
	m.SetCode(code)
	m.SetMTU(mtu)
	b = append(b, quoted...)
	header.ICMPv4(b).SetChecksum(header.ICMPv4Checksum(b, 0))
	h.inject(header.ICMPv4ProtocolNumber, host4(9), host4(1), b)
}

// quote returns the beginning of a segment of netstack's, as a router sends it back.
func (h *host) quote(seq uint32) []byte {
	b := make([]byte, header.IPv4MinimumSize+header.TCPMinimumSize)
	ip := header.IPv4(b)
	ip.Encode(&header.IPv4Fields{TotalLength: 1040, TTL: 60, Protocol: uint8(
		header.TCPProtocolNumber), SrcAddr: host4(1), DstAddr: host4(2)})
	ip.SetChecksum(^ip.CalculateChecksum())
	header.TCP(b[header.IPv4MinimumSize:]).Encode(&header.TCPFields{SrcPort: h.port,
		DstPort: 4000, SeqNum: uint32(h.sequence(4000, seq)), DataOffset: header.TCPMinimumSize})
	return b
}

// arrive receives a packet.
func arrive(link *channel.Endpoint, b []byte) {
	pkt := gstack.NewPacketBuffer(gstack.PacketBufferOptions{Payload: buffer.MakeWithData(b)})
	link.InjectInbound(header.IPv4ProtocolNumber, pkt)
	pkt.DecRef()
}

// taken is a packet of netstack's.
type taken struct {
	b   []byte
	mss int // at which the NIC cuts it; 0: not
}

// take returns the oldest packet that netstack has sent.
func take(link *channel.Endpoint) (p taken, ok bool) {
	pkt := link.Read()
	if pkt == nil {
		return p, false
	}
	defer pkt.DecRef()
	view := pkt.ToView()
	defer view.Release()
	p.b = append(p.b, view.AsSlice()...)
	if pkt.GSOOptions.Type != gstack.GSONone {
		p.mss = int(pkt.GSOOptions.MSS)
	}
	return p, true
}

// sent returns what netstack has sent since the last call, and prints it. The NIC's cuts are made.
func (h *host) sent() (all []segment) {
	settle()
	for p, ok := take(h.link); ok; p, ok = take(h.link) {
		ip := header.IPv4(p.b)
		if ip.TransportProtocol() != header.TCPProtocolNumber {
			continue
		}
		f := header.TCP(ip.Payload())
		port := f.DestinationPort()
		if f.Flags()&syn != 0 {
			h.isn[port], h.port = f.SequenceNumber(), f.SourcePort()
		}
		s := segment{at: h.clock.since(), port: port, flags: f.Flags(),
			seq: f.SequenceNumber() - h.isn[port], size: len(f.Payload()),
			win: int(f.WindowSize()), options: f.Options()}
		if s.flags&ack != 0 {
			s.ack = f.AckNumber() - h.origin
		}
		if !h.silent {
			h.t.Logf("netstack %v", s)
		}
		all = append(all, s)
	}
	return all
}

// sentFor lets d pass, and returns what netstack sends in it, each with its time.
func (h *host) sentFor(d time.Duration) (all []segment) {
	end := h.clock.since() + d
	for all = h.sent(); h.clock.step(end); {
		all = append(all, h.sent()...)
	}
	return append(all, h.sent()...)
}

// last returns the last segment that netstack has sent since the last call.
func (h *host) last() segment {
	h.t.Helper()
	all := h.sent()
	if len(all) == 0 {
		h.t.Fatal("netstack has sent nothing")
	}
	return all[len(all)-1]
}

// accept returns the connection that waits in the listener's queue; nil: none does.
func (h *host) accept() (c *gonet.TCPConn) {
	settle()
	done := make(chan *gonet.TCPConn, 1)
	go func() {
		if conn, err := h.listener.Accept(); err == nil {
			done <- conn.(*gonet.TCPConn)
		}
		close(done)
	}()
	settle()
	select {
	case c := <-done:
		return c
	default:
		return nil
	}
}

// open has the peer open a connection with options, over a round trip of 10 ms.
func (h *host) open(opts ...[]byte) *gonet.TCPConn {
	h.t.Helper()
	return h.openOver(10*time.Millisecond, opts...)
}

// openOver does what open does, over another round trip.
func (h *host) openOver(roundTrip time.Duration, opts ...[]byte) *gonet.TCPConn {
	h.t.Helper()
	h.listen(10)
	h.send(segment{flags: syn, win: -1, options: options(opts...)})
	val, _, stamped := h.last().stamp()
	h.advance(roundTrip)
	last := segment{flags: ack, seq: 1, ack: 1, win: -1}
	if stamped {
		last.options = options(stamp(uint32(5000+roundTrip.Milliseconds()), val))
	}
	h.send(last)
	c := h.accept()
	if c == nil {
		h.t.Fatal("no connection")
	}
	return c
}

// write writes size bytes.
func (h *host) write(c *gonet.TCPConn, size int) {
	h.t.Helper()
	_, err := c.Write(make([]byte, size))
	h.ok(err)
	settle()
}

// read reads size bytes that have come.
func (h *host) read(c *gonet.TCPConn, size int) {
	h.t.Helper()
	_, err := io.ReadFull(c, make([]byte, size))
	h.ok(err)
	settle()
}

// sequence makes a relative number of netstack's one of the wire.
func (h *host) sequence(port uint16, seq uint32) seqnum.Value {
	return seqnum.Value(h.isn[port] + seq)
}

// state returns that of the connection with port 4000 of the peer.
func (h *host) state() uint32 {
	if e := h.endpoint(); e != nil {
		return e.State()
	}
	return uint32(tcp.StateClose)
}

// endpoint returns that of the connection with port 4000 of the peer; nil: there is none.
func (h *host) endpoint() *tcp.Endpoint {
	for _, ep := range h.stack.RegisteredEndpoints() {
		if e, ok := ep.(*tcp.Endpoint); ok {
			if a, err := e.GetRemoteAddress(); err == nil && a.Port == 4000 {
				return e
			}
		}
	}
	return nil
}

// window returns the connection's congestion window, in packets.
func (h *host) window() uint32 {
	var info tcpip.TCPInfoOption
	must(h.endpoint().GetSockOpt(&info))
	return info.SndCwnd
}

// keepAlive has the connection probed each idle.
func (h *host) keepAlive(idle time.Duration) {
	e := h.endpoint()
	first, then := tcpip.KeepaliveIdleOption(idle), tcpip.KeepaliveIntervalOption(idle)
	must(e.SetSockOpt(&first))
	must(e.SetSockOpt(&then))
	e.SocketOptions().SetKeepAlive(true)
}

// fill has the link's queue full, and returns how many packets that are.
func (h *host) fill() (n int) {
	c, err := gonet.DialUDP(h.stack, nil, &tcpip.FullAddress{NIC: 1, Addr: host4(2), Port: 9},
		ipv4.ProtocolNumber)
	h.ok(err)
	for before := -1; n > before; n = h.link.NumQueued() {
		before = n
		_, _ = c.Write([]byte{0})
	}
	h.ok(c.Close())
	return n
}

// dial begins to connect to port 4000 of the peer.
func (h *host) dial() (done chan error) {
	done = make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	h.t.Cleanup(cancel)
	go func() {
		_, err := gonet.DialContextTCP(ctx, h.stack, tcpip.FullAddress{NIC: 1, Addr: host4(2),
			Port: 4000}, ipv4.ProtocolNumber)
		done <- err
	}()
	settle()
	return done
}

// road is two netstacks with a wire of a delay between them: 10.0.0.1 sends to 10.0.0.2.
type road struct {
	gso    bool
	window int           // the receiver's buffer, of which half is its window
	delay  time.Duration // of a frame: half of the round trip
	rate   float64       // bytes per second to the receiver; 0: no bound

	// fate says how much later than delay a frame of the sender's arrives; negative: never. It is
	// asked about the receiver's frames, too, with both.
	fate    func(now time.Duration) time.Duration
	both    bool
	options []tcpip.SettableTransportProtocolOption // of the sender
	answer  []int                                   // writes for each request; nil: no requests

	clock clock
	free  time.Duration // when the wire to the receiver is free
	links [2]*channel.Endpoint

	mu   sync.Mutex
	last tcp.TCPSenderState // of the sender, at its last segment; guarded by mu

	mark   time.Duration // after which what has come until then is in marked
	marked int
}

// state returns the sender's at its last segment.
func (r *road) state() tcp.TCPSenderState {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

// run sends for at most limit, or until bytes have come, and returns how many did, and when the
// last came.
func (r *road) run(t *testing.T, bytes int, limit time.Duration) (got int, took time.Duration) {
	oneProcessor(t)
	window := tcpip.TCPReceiveBufferSizeRangeOption{Min: r.window, Default: r.window,
		Max: r.window}
	send := tcpip.TCPSendBufferSizeRangeOption{Min: 4096, Default: 4 << 20, Max: 8 << 20}
	sender, link1 := newStack(&r.clock, 1, r.gso, func(s *tcp.TCPEndpointState) {
		if s.ID.LocalPort == 80 {
			r.mu.Lock()
			r.last = s.Sender
			r.mu.Unlock()
		}
	}, append([]tcpip.SettableTransportProtocolOption{&send}, r.options...)...)
	receiver, link2 := newStack(&r.clock, 2, r.gso, nil, &window)
	r.links = [2]*channel.Endpoint{link1, link2}
	addr := tcpip.FullAddress{NIC: 1, Addr: host4(1), Port: 80}
	ln, err := gonet.ListenTCP(sender, addr, ipv4.ProtocolNumber)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		c, err := ln.Accept()
		for b := make([]byte, 1<<18); err == nil && r.answer == nil; {
			_, err = c.Write(b)
		}
		for request := make([]byte, 10); err == nil; {
			if _, err = io.ReadFull(c, request); err != nil {
				return
			}
			for _, n := range r.answer {
				_, err = c.Write(make([]byte, n))
			}
		}
	}()
	var mu sync.Mutex // guards came and at
	came, at := 0, time.Duration(0)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		c, err := gonet.DialContextTCP(ctx, receiver, addr, ipv4.ProtocolNumber)
		if err != nil {
			return
		}
		defer c.Close()
		asked, size := 0, 0
		for _, n := range r.answer {
			size += n
		}
		for b := make([]byte, 1<<16); ; {
			if r.answer != nil && came == asked {
				_, _ = c.Write(make([]byte, 10))
				asked += size
			}
			n, err := c.Read(b)
			mu.Lock()
			if came += n; n > 0 {
				at = r.clock.since()
			}
			mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	enough := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return came >= bytes
	}
	for r.carry(); !enough() && r.clock.since() < limit && !r.clock.none(); r.carry() {
		r.clock.step(limit)
		if r.mark > 0 && r.clock.since() >= r.mark {
			mu.Lock()
			r.mark, r.marked = 0, came
			mu.Unlock()
		}
	}
	cancel()
	sender.Close()
	receiver.Close()
	for n := 0; n < 1000 && r.clock.step(1<<62); n++ {
		settle()
	}
	mu.Lock()
	got, took = came, at
	mu.Unlock()
	return got, took
}

// carry puts what the netstacks have sent onto the wire, until they send nothing more at this time.
func (r *road) carry() {
	for moved := true; moved; {
		settle()
		moved = false
		for i, link := range r.links {
			for p, ok := take(link); ok; p, ok = take(link) {
				moved = true
				for _, f := range p.cut() {
					r.put(f, i == 0)
				}
			}
		}
	}
}

// put puts a frame onto the wire.
func (r *road) put(f []byte, data bool) {
	now := r.clock.since()
	to, delay := r.links[0], r.delay
	if data {
		to = r.links[1]
		if r.rate > 0 {
			r.free = max(r.free, now) + time.Duration(float64(len(f))/r.rate*1e9)
			delay += r.free - now
		}
	}
	if r.fate != nil && (data || r.both) {
		more := r.fate(now)
		if more < 0 {
			return
		}
		delay += more
	}
	r.clock.AfterFunc(delay, func() { arrive(to, f) })
}

// cut makes frames of a packet, as the NIC does.
func (p *taken) cut() (frames [][]byte) {
	ip := header.IPv4(p.b)
	headers := int(ip.HeaderLength())
	headers += int(header.TCP(p.b[headers:]).DataOffset())
	if p.mss == 0 || len(p.b)-headers <= p.mss {
		return [][]byte{p.b}
	}
	for at := headers; at < len(p.b); at += p.mss {
		f := append(append([]byte(nil), p.b[:headers]...), p.b[at:min(at+p.mss, len(p.b))]...)
		ip := header.IPv4(f)
		ip.SetTotalLength(uint16(len(f)))
		ip.SetChecksum(0)
		ip.SetChecksum(^ip.CalculateChecksum())
		tcp := f[ip.HeaderLength():]
		binary.BigEndian.PutUint32(tcp[4:],
			binary.BigEndian.Uint32(tcp[4:])+uint32(at-headers))
		if at+p.mss < len(p.b) {
			tcp[13] &^= byte(fin | psh)
		}
		frames = append(frames, f)
	}
	return frames
}

// megabytes is a rate in MB/s.
func megabytes(bytes int, took time.Duration) float64 {
	return float64(bytes) / took.Seconds() / 1e6
}
