package stack

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/net/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/rdma-netstack/rdma-netstack/link/rdma"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/hostmode"
)

// UDPConn is a UDP socket, connected (from Dial) or not (from ListenPacket). It has the methods of
// net.UDPConn except SyscallConn, see the package comment, and for many datagrams at once
// [UDPConn.ReadBatch] and [UDPConn.WriteBatch]. Its methods may be called from any goroutine;
// concurrent reads take turns, concurrent writes run in parallel.
//
//	         openUDP                    Close, or the stack ends
//	(none) ─────────▶ bound, connected ──────────────────────────▶ closed
//
// Bound means that the socket has its port; local and remote do not change from then on. In the
// state closed every call fails with net.ErrClosed, and what has not been read is lost.
//
// What a read returns next depends on where datagrams wait. The link delivers to rxq while the
// endpoint has nothing; otherwise a datagram would overtake those of the endpoint:
//
//	                     endpointReady (netstack has queued a datagram)
//	             ┌─────────────────────────────────────────────────────────┐
//	             │                                                         ▼
//	┌─────────────────────────┐                             ┌─────────────────────────┐
//	│ direct                  │                             │ through netstack        │
//	│ Deliver appends to rxq  │                             │ Deliver refuses: all    │
//	│ dequeue reads rxq       │                             │ goes to the endpoint    │
//	│                         │                             │ dequeue reads rxq until │
//	│                         │                             │ it is empty, then ep    │
//	└─────────────────────────┘                             └─────────────────────────┘
//	             ▲                                                         │
//	             └─────────────────────────────────────────────────────────┘
//	                  refill (rxq is empty, and ep has nothing any more)
//
// A send takes the first way of these that is open: a header template of the path, which goes to
// the link directly; the cached route of the path, through netstack's network layer, which also
// makes the template; the endpoint, for groups and broadcast.
type UDPConn struct {
	connState // stack and closed

	// Written by openUDP only.
	ep        tcpip.Endpoint
	network   string            // as given by the caller, for errors
	family    family            // decides how addresses print
	laddr     *net.UDPAddr      // local, as the caller sees it
	raddr     *net.UDPAddr      // remote, as the caller sees it; nil unless connected
	local     tcpip.FullAddress // the zero Addr is the wildcard
	remote    tcpip.FullAddress // if connected
	reusePort bool              // of ListenConfig or Dialer
	forGroup  bool              // bound to a group's port, which others may have, too
	toAll     bool              // bound to a broadcast address
	binding   *hostmode.Binding // the kernel's sockets for the port, with Config.Host; else nil

	// Reading. rd.mu is held by one reader at a time.
	rd      ioSide
	payload payloadWriter // where ep.Read puts a datagram; guarded by rd.mu
	rxq     udpRxQueue    // what the link has delivered; has locks of its own

	// Writing. Datagrams that take a route need no lock of the conn.
	wr     ioSide
	events waiter.Entry // of both sides
	src    bytes.Reader // a payload on its way to ep.Write; guarded by wr.mu
	routes routeCache   // has a lock of its own

	replySources replySources // the local address that each peer has sent to; has a lock of its own

	groups  sync.Mutex    // held while memberships of ep change, and by Close
	control atomic.Uint32 // ControlMessages that ReadMsgUDP and ReadBatch report
	segment atomic.Uint32 // bytes of payload of each datagram of a write; 0: all
	class   atomic.Uint32 // traffic class of what is sent
	ttl     atomic.Uint32 // of what is sent to hosts; 0: the default

	discovery atomic.Uint32 // a PathMTUDiscovery

	halfRead atomic.Int64 // of SetReadBuffer; 0: it was not called

	pacing atomic.Pointer[socketPacing] // nil: there was no rate yet

	sentStamps atomic.Pointer[sentStamps] // nil: none were asked for
}

var (
	_ net.Conn       = (*UDPConn)(nil)
	_ net.PacketConn = (*UDPConn)(nil)
)

// orNil keeps a nil pointer from becoming an interface that is not nil.
func orNil[T any, P interface {
	*T
	net.Addr
}](a P) net.Addr {
	if a == nil {
		return nil
	}
	return a
}

// openUDP makes c, which may say whether its port is shared, a socket.
func (s *Stack) openUDP(c *UDPConn, network string, choose func(string, net.IP) family,
	laddr, raddr *net.UDPAddr) (*UDPConn, error) {
	var local net.IP
	if laddr != nil {
		local = laddr.IP
	}
	c.stack, c.network, c.family = s, network, choose(network, local)
	err := s.newEndpoint(udp.ProtocolNumber, c.family,
		func(ep tcpip.Endpoint, q *waiter.Queue) error {
			c.ep = ep
			c.configure()
			if err := c.bind(laddr); err != nil {
				return err
			}
			if err := c.connect(raddr); err != nil {
				return err
			}
			register(q, &c.events, endpointEvents{c}, readEvents|writeEvents)
			return nil
		})
	if err != nil {
		return nil, err
	}
	c.rxq.open(c)
	s.conns.addUDP(c)
	if !c.shared() {
		s.udp.ports.add(&c.rxq)
	}
	if err := c.openOnHost(); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// configure sets what package net sets, and asks for what SetReceive can report. What the
// endpoint sends may be fragmented: netstack does that by itself to what is larger than a packet,
// and with "don't fragment" all fragments have the identification 0, so that those of two datagrams
// mix (RFC 6864 section 4).
func (c *UDPConn) configure() {
	_ = c.ep.SetSockOptInt(tcpip.MTUDiscoverOption, int(tcpip.PMTUDiscoveryDont)) // cannot fail
	c.discovery.Store(uint32(PathMTUWant))
	o := c.ep.SocketOptions()
	o.SetBroadcast(true)
	o.SetReusePort(c.reusePort)
	o.SetReuseAddress(c.forGroup)
	o.SetReceivePacketInfo(true)
	o.SetIPv6ReceivePacketInfo(true)
	o.SetReceiveTTL(true)
	o.SetReceiveTOS(true)
	o.SetReceiveHopLimit(true)
	o.SetReceiveTClass(true)
	c.class.Store(uint32(c.stack.cfg.DSCP) << 2)
}

// shared says whether others may have the port.
func (c *UDPConn) shared() bool { return c.reusePort || c.forGroup }

func (c *UDPConn) bind(laddr *net.UDPAddr) error {
	if laddr == nil {
		return nil
	}
	ip := laddr.IP
	if c.forGroup {
		ip = nil
	}
	at, err := c.stack.zones.bindAddress(c.family, ip, laddr.Port, laddr.Zone)
	if err != nil {
		return err
	}
	if terr := c.ep.Bind(at); terr != nil {
		return syscallError("bind", terr)
	}
	return c.readLocalAddr()
}

func (c *UDPConn) connect(raddr *net.UDPAddr) error {
	if raddr == nil {
		return nil
	}
	a, err := c.family.address(raddr.IP)
	if err != nil {
		return err
	}
	if c.family == inet6 && a.Len() == net.IPv4len {
		return os.NewSyscallError("connect", syscall.ENETUNREACH)
	}
	to, err := c.stack.zones.full(a, raddr.Port, raddr.Zone)
	if err != nil {
		return err
	}
	if terr := c.ep.Connect(to); terr != nil {
		return udpConnectError(terr)
	}
	remote, terr := c.ep.GetRemoteAddress()
	if terr != nil { // port 0 is not a destination, but it can be dialled
		remote = to
	}
	c.remote, c.raddr = remote, c.stack.zones.udpAddr(c.family, remote)
	return c.readLocalAddr()
}

func (c *UDPConn) readLocalAddr() error {
	local, terr := c.ep.GetLocalAddress()
	if terr != nil {
		return syscallError("getsockname", terr)
	}
	c.local, c.laddr = local, c.stack.zones.udpAddr(c.family, local)
	c.toAll = c.stack.isGroup(local.Addr)
	return nil
}

// LocalAddr returns our end, also after Close. It is a *net.UDPAddr that must not be changed.
func (c *UDPConn) LocalAddr() net.Addr { return c.laddr }

// RemoteAddr returns the peer's end of a connected socket, else nil.
func (c *UDPConn) RemoteAddr() net.Addr { return orNil(c.raddr) }

// Close frees the port; operations in progress fail with net.ErrClosed.
func (c *UDPConn) Close() error {
	if c.closed.Swap(true) {
		return &net.OpError{Op: "close", Net: c.network, Source: c.laddr,
			Addr: c.RemoteAddr(), Err: net.ErrClosed}
	}
	c.rd.stop()
	c.wr.stop()
	c.setPacing(0)
	if q := c.sentStamps.Load(); q != nil {
		q.rd.stop()
	}
	c.stack.host.unbind(c.binding)
	if !c.shared() {
		c.stack.udp.ports.remove(&c.rxq)
	}
	c.rxq.close()
	c.groups.Lock()
	c.stack.conns.removeUDP(c)
	c.ep.Close() // leaves all groups
	c.groups.Unlock()
	c.routes.drop()
	return nil
}

// SetDeadline sets both deadlines, see net.Conn.
func (c *UDPConn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

// SetReadDeadline makes reads fail with os.ErrDeadlineExceeded from t on; the zero time means
// never.
func (c *UDPConn) SetReadDeadline(t time.Time) error {
	if err := c.setDeadline(t, &c.rd); err != nil {
		return err
	}
	if q := c.sentStamps.Load(); q != nil {
		return c.setDeadline(t, &q.rd)
	}
	return nil
}

// SetWriteDeadline makes writes fail with os.ErrDeadlineExceeded from t on; the zero time means
// never.
func (c *UDPConn) SetWriteDeadline(t time.Time) error { return c.setDeadline(t, &c.wr) }

func (c *UDPConn) setDeadline(t time.Time, sides ...*ioSide) error {
	return c.set(func() {
		for _, d := range sides {
			d.setDeadline(c.stack.clock, t)
		}
	})
}

// SetReadBuffer sets half of how many bytes may wait to be read before datagrams are dropped, as on
// Linux, which counts what its packets take and doubles the size for that; see [Config.UDPBuffer]
// for default and limit.
func (c *UDPConn) SetReadBuffer(bytes int) error {
	return c.set(func() {
		o := c.ep.SocketOptions()
		lo, hi := o.ReceiveBufferLimits()
		c.halfRead.Store(clamp(bytes, lo, hi))
		o.SetReceiveBufferSize(2*c.halfRead.Load(), true)
	})
}

// SetWriteBuffer sets how many bytes may wait for a neighbour's address.
func (c *UDPConn) SetWriteBuffer(bytes int) error {
	return c.set(func() { setWriteBuffer(c.ep.SocketOptions(), bytes) })
}

// UDPSettings holds the options of a UDP socket as they are, set or by default.
type UDPSettings struct {
	ReadBuffer, WriteBuffer int // bytes, as they were set
	TrafficClass            int
	TTL                     int    // to hosts; 0: the default
	SegmentSize             int    // see SetSegmentSize
	Pacing                  uint64 // bytes per second; 0: no limit
	MulticastTTL            int
	MulticastLoopback       bool
}

// Settings returns the options of the socket.
func (c *UDPConn) Settings() UDPSettings {
	o := c.ep.SocketOptions()
	groupTTL, _ := c.ep.GetSockOptInt(tcpip.MulticastTTLOption) // which every UDP endpoint has
	read := c.halfRead.Load()
	if read == 0 {
		read = o.GetReceiveBufferSize()
	}
	return UDPSettings{ReadBuffer: int(read),
		WriteBuffer: int(o.GetSendBufferSize()), TrafficClass: int(c.class.Load()),
		TTL: int(c.ttl.Load()), SegmentSize: int(c.segment.Load()), Pacing: c.pacingRate(),
		MulticastTTL: groupTTL, MulticastLoopback: o.GetMulticastLoop()}
}

// set runs change unless the conn is closed.
func (c *UDPConn) set(change func()) error {
	if err := c.done(); err != nil {
		return c.setError(err)
	}
	change()
	return nil
}

// File always fails with ErrNoDescriptor.
func (c *UDPConn) File() (*os.File, error) {
	return nil, &net.OpError{Op: "file", Net: c.network, Source: c.laddr,
		Addr: c.RemoteAddr(), Err: ErrNoDescriptor}
}

// SetTTL sets the time to live, or hop limit, of what is sent to hosts and to broadcast addresses
// from now on: 1 to 255, or -1 for the default of 64. Others are EINVAL.
func (c *UDPConn) SetTTL(ttl int) error {
	if err := c.checkTTL(ttl); err != nil {
		return err
	}
	return c.set(func() {
		c.ttl.Store(uint32(max(ttl, 0)))
		// For what the endpoint sends. Its "default" is 0 of one and -1 of the other.
		c.ep.SetSockOptInt(tcpip.IPv4TTLOption, max(ttl, tcpip.UseDefaultIPv4TTL))
		c.ep.SetSockOptInt(tcpip.IPv6HopLimitOption, ttl)
	})
}

// SetMulticastTTL is SetTTL for what is sent to groups. The default is 1, which keeps it on the
// link. 0, with which Linux keeps it inside the host, is EINVAL.
func (c *UDPConn) SetMulticastTTL(ttl int) error {
	if err := c.checkTTL(ttl); err != nil {
		return err
	}
	if ttl == -1 {
		ttl = 1
	}
	return c.set(func() { c.ep.SetSockOptInt(tcpip.MulticastTTLOption, ttl) })
}

func (c *UDPConn) checkTTL(ttl int) error {
	if ttl < -1 || ttl == 0 || ttl > 255 {
		return c.setError(fmt.Errorf("TTL %d: want 1 to 255, or -1 for the default: %w", ttl,
			syscall.EINVAL))
	}
	return nil
}

// ttlOn returns the time to live of what takes a route.
func (c *UDPConn) ttlOn(r *gstack.Route, o *sendOptions) uint8 {
	to := r.RemoteAddress()
	group := header.IsV4MulticastAddress(to) || header.IsV6MulticastAddress(to)
	switch {
	case o.ttl >= 0 && (o.marked || !group):
		return uint8(o.ttl)
	case group:
		ttl, _ := c.ep.GetSockOptInt(tcpip.MulticastTTLOption) // which every UDP endpoint has
		return uint8(ttl)
	}
	return r.DefaultTTL()
}

// putTTL writes a time to live into an IP header.
func putTTL(ip []byte, v6 bool, ttl uint8) {
	if v6 {
		header.IPv6(ip).SetHopLimit(ttl)
		return
	}
	header.IPv4(ip).SetTTL(ttl)
}

// Message is one datagram of a batch: Message of golang.org/x/net/ipv4 and ipv6, which is one type.
type Message = ipv4.Message

// maxBatch says how many datagrams one doorbell is rung for at most.
const maxBatch = 64

// errBatchFlags refuses flags: a batch waits for its first datagram, and for no other.
var errBatchFlags = os.NewSyscallError("recvmmsg, sendmmsg: flags are not supported",
	syscall.EINVAL)

// ReadBatch waits for one datagram and then takes as many as have arrived, at most len(ms), with
// one lock. It returns how many of ms it has filled in, as ReadBatch of x/net's PacketConn does:
// Buffers, N, Addr, Flags (MSG_TRUNC, MSG_CTRUNC), and OOB and NN as [UDPConn.SetReceive] has it.
// flags must be 0.
//
// Addr becomes a new *net.UDPAddr, which is the caller's. If it is a *net.UDPAddr whose IP has
// length 0 and capacity 16, that one is filled in: a reader that sets IP to IP[:0] before each call
// has nothing allocated, and must copy an address that it keeps.
func (c *UDPConn) ReadBatch(ms []Message, flags int) (int, error) {
	if flags != 0 {
		return 0, c.readError(errBatchFlags)
	}
	if len(ms) == 0 {
		return 0, nil
	}
	c.rd.mu.Lock()
	defer c.rd.mu.Unlock()
	b := readBuffer(&ms[0])
	r, err := c.receiveLocked(b, "recvmmsg")
	if err != nil {
		return 0, c.readError(err)
	}
	c.fill(&ms[0], b, r)
	for i := 1; i < len(ms); i++ {
		b := readBuffer(&ms[i])
		r, terr := c.dequeue(b)
		if terr != nil {
			return i, nil // an error, if it is one, is the next call's
		}
		c.fill(&ms[i], b, r)
	}
	return len(ms), nil
}

// readBuffer is m's only buffer, or memory as large as all of them.
func readBuffer(m *Message) []byte {
	if len(m.Buffers) == 1 {
		return m.Buffers[0]
	}
	n := 0
	for _, b := range m.Buffers {
		n += len(b)
	}
	return make([]byte, n)
}

// fill completes m with the datagram r, which is in b. rd.mu is held.
func (c *UDPConn) fill(m *Message, b []byte, r receivedDatagram) {
	m.N, m.Addr = r.n, c.peerAddr(m.Addr, r.from)
	m.NN, m.Flags = c.message(&r, m.OOB)
	if len(m.Buffers) == 1 {
		return
	}
	b = b[:r.n]
	for _, part := range m.Buffers {
		b = b[copy(part, b):]
	}
}

// peerAddr is from, in memory of the caller if that has been offered; see ReadBatch.
func (c *UDPConn) peerAddr(offered net.Addr, from tcpip.FullAddress) net.Addr {
	a, ok := offered.(*net.UDPAddr)
	if !ok || a == nil || len(a.IP) != 0 || cap(a.IP) < net.IPv6len {
		return c.stack.zones.udpAddr(c.family, from)
	}
	n := len(c.family.ip(from.Addr, (*[16]byte)(a.IP[:16])))
	a.IP, a.Port, a.Zone = a.IP[:n], int(from.Port), c.stack.zones.of(from.Addr)
	return a
}

// WriteBatch sends ms in order, each as [UDPConn.WriteMsgUDP] does, and rings one doorbell for as
// many as it can. It returns how many were sent, as WriteBatch of x/net's PacketConn does: an error
// is that of the first of ms, and a later one ends the batch and is the next call's. On a socket
// with a rate ([UDPConn.SetPacing]) the first of ms waits for that, and no other. flags must be 0.
func (c *UDPConn) WriteBatch(ms []Message, flags int) (int, error) {
	if flags != 0 {
		return 0, c.writeError(nil, errBatchFlags)
	}
	s := batchScratchPool.Get().(*batchScratch)
	defer batchScratchPool.Put(s)
	for sent, patience := 0, waitForRate; ; sent++ {
		if sent += c.writeDirect(s, ms[sent:]); sent == len(ms) {
			return sent, nil
		}
		if sent > 0 {
			patience = sendAtOnce
		}
		if err := c.writeMessage(&ms[sent], patience); err != nil {
			if sent > 0 {
				err = nil
			}
			return sent, err
		}
	}
}

// writeMessage sends one datagram of a batch by itself.
func (c *UDPConn) writeMessage(m *Message, p patience) error {
	var b []byte
	if len(m.Buffers) == 1 {
		b = m.Buffers[0]
	} else {
		for _, part := range m.Buffers {
			b = append(b, part...)
		}
	}
	addr, ok := m.Addr.(*net.UDPAddr)
	if !ok && m.Addr != nil {
		_, err := c.WriteTo(b, m.Addr)
		return err
	}
	n, nn, err := c.writeMsgUDP(b, m.OOB, addr, p)
	m.N, m.NN = n, nn
	return err
}

// batchScratch is the memory in which a batch is put together for the link.
type batchScratch struct {
	headers   [maxBatch][maxHeaders]byte
	datagrams [maxBatch]rdma.Datagram
}

var batchScratchPool = sync.Pool{New: func() any { return new(batchScratch) }}

// writeDirect hands the first datagrams of a batch to the link, up to one whose path has no header
// template or that is refused, or for which the socket's rate has no room now, and returns how many
// it sent.
func (c *UDPConn) writeDirect(s *batchScratch, ms []Message) int {
	if c.stack.datagrams == nil || c.raddr != nil || c.check(&c.wr) != nil {
		return 0
	}
	p := c.paced()
	if p != nil {
		p.turn.Lock()
		defer p.turn.Unlock()
	}
	r := &c.routes
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.epoch != c.stack.epoch.Load() {
		return 0
	}
	n, now := 0, c.stack.moment()
	for n < min(len(ms), maxBatch) && (p == nil || p.admitNow(c.stack.clock)) &&
		c.addDirect(s, n, &ms[n], now) {
		if p != nil {
			p.count(&s.datagrams[n])
		}
		n++
	}
	sent := c.writeScratch(s, n)
	for i := range ms[:sent] {
		ms[i].N, ms[i].NN = len(ms[i].Buffers[0]), len(ms[i].OOB)
	}
	return sent
}

// addDatagram makes b, for port to, datagram i of what goes to the link: several, if o says so.
func (s *batchScratch) addDatagram(c *UDPConn, i int, h *headerTemplate, b []byte, to uint16,
	o *sendOptions) {
	headers := c.fillHeaders(h, &s.headers[i], to, header.UDPMinimumSize+len(b), o)
	s.datagrams[i] = rdma.Datagram{Headers: headers, Payload: b, Segment: o.segment}
}

// writeScratch hands the first n datagrams of s to the link, and returns how many it is done with.
func (c *UDPConn) writeScratch(s *batchScratch, n int) int {
	ds := s.datagrams[:n]
	sent, err := c.stack.datagrams.WriteDatagrams(ds)
	packets := 0
	for i := range ds[:sent] {
		packets += ds[i].Count()
	}
	clear(ds) // the payloads are the caller's
	c.stack.udp.stats.PacketsSent.IncrementBy(uint64(packets))
	if _, full := err.(*tcpip.ErrNoBufferSpace); full { // the datagram is lost, as in send
		c.stack.udp.stats.PacketSendErrors.Increment()
		sent++
	}
	return sent
}

// addDirect makes m datagram i of what goes to the link; false if m has to go through netstack.
// routes.mu is held for reading.
func (c *UDPConn) addDirect(s *batchScratch, i int, m *Message, now moment) bool {
	addr, ok := m.Addr.(*net.UDPAddr)
	if !ok || len(m.Buffers) != 1 {
		return false
	}
	b := m.Buffers[0]
	to, err := c.destination(addr)
	if err != nil || c.checkSend(b, to) != 0 {
		return false
	}
	o, from, err := c.messageOptions(m.OOB, to)
	if err != nil || o.stamps != 0 || o.segment != 0 && len(b) > o.segment*maxSegments {
		return false
	}
	p := c.routes.routes[routeKey{from, to.Addr}]
	if p == nil {
		return false
	}
	h := p.freshTemplate(header.UDPMinimumSize+o.longest(len(b)), now)
	if h == nil {
		return false
	}
	s.addDatagram(c, i, h, b, to.Port, &o)
	return true
}

// Control messages have Linux's form (linux 6.12 include/linux/socket.h): struct cmsghdr
// {size_t len; int level, type;} and the data, aligned to 8 bytes. What a send takes is that of
// linux net/ipv4/ip_sockglue.c ip_cmsg_send, net/ipv6/datagram.c ip6_datagram_send_ctl and
// net/ipv4/udp.c udp_cmsg_send; what a read reports that of ip_cmsg_recv_offset and
// ip6_datagram_recv_ctl.
const (
	controlHeader = 16
	controlAlign  = 8

	levelSocket, levelIP, levelUDP, levelV6 = 1, 0, 17, 41

	typeTOS, typeTTL, typePacketInfo4, typeProtocol = 1, 2, 8, 52 // of levelIP

	typePacketInfo6, typeHopLimit, typeDontFragment, typeClass = 50, 52, 62, 67 // of levelV6

	typeRights, typeCredentials = 1, 2 // of levelSocket; they mean nothing to UDP

	typeTimestamping = 37 // of levelSocket: SO_TIMESTAMPING
	timestampsLen    = 48 // scm_timestamping {timespec ts[3]; } software, unused, the NIC's

	typeSegment, typeSegments = 103, 104 // of levelUDP: UDP_SEGMENT, UDP_GRO

	packetInfo4 = 12 // in_pktinfo {int ifindex; in_addr spec_dst, addr;}
	packetInfo6 = 20 // in6_pktinfo {in6_addr addr; int ifindex;}

	// maxSegments bounds the datagrams of one call (linux include/linux/udp.h UDP_MAX_SEGMENTS).
	maxSegments = 128
)

// ControlMessages names control messages that reads report, see [UDPConn.SetReceive].
type ControlMessages uint32

// Those of IPv4 come with datagrams of IPv4 only, also on a socket for both; ReceiveHopLimit and
// ReceiveTrafficClass with those of IPv6 only. ReceivePacketInfo6 reports the destination of an
// IPv4 datagram, too, as an IPv4-mapped address.
const (
	// ReceivePacketInfo4 reports the interface and the destination: IP_PKTINFO.
	ReceivePacketInfo4 ControlMessages = 1 << iota
	// ReceiveTTL reports the time to live, an int: IP_RECVTTL.
	ReceiveTTL
	// ReceiveTOS reports the type of service, one byte whose lower two bits are ECN: IP_RECVTOS.
	ReceiveTOS
	// ReceivePacketInfo6 reports the interface and the destination: IPV6_RECVPKTINFO.
	ReceivePacketInfo6
	// ReceiveHopLimit reports the hop limit, an int: IPV6_RECVHOPLIMIT.
	ReceiveHopLimit
	// ReceiveTrafficClass reports the traffic class, an int: IPV6_RECVTCLASS.
	ReceiveTrafficClass
	// ReceiveSegments makes reads return several datagrams as one, and report their size, an int:
	// UDP_GRO, see [UDPConn.SetReceiveSegments].
	ReceiveSegments
	// ReceiveTimestamps reports when the datagram came: as the system's clock had it when it came
	// to the socket, and as the NIC says, where the device stamps completions and the datagram is
	// for one host. SO_TIMESTAMPING with software and raw hardware stamps; one that there is not is
	// 0. The NIC's clock runs by itself; it is compared with the system's each second.
	ReceiveTimestamps

	// receiveOwnInfo6 reports the destination of datagrams of IPv6 only.
	receiveOwnInfo6
)

// SetReceive says whether ReadMsgUDP and ReadBatch report control messages in oob. It stands for
// the socket options of those names, for which a program has no descriptor here. There are none
// until it is called. What oob has no room for is cut off, and the read has MSG_CTRUNC among its
// flags. The interface is the port's netdev by its index, or 1 if there is none.
func (c *UDPConn) SetReceive(m ControlMessages, on bool) error {
	return c.set(func() {
		if on {
			c.control.Or(uint32(m))
			if m&ReceiveSegments != 0 && c.stack.link != nil {
				c.stack.link.JoinDatagrams()
			}
		} else {
			c.control.And(^uint32(m))
		}
	})
}

// SetControl is SetReceive for the destination of each datagram by a message of its own version of
// IP.
func (c *UDPConn) SetControl(on bool) error {
	return c.SetReceive(ReceivePacketInfo4|receiveOwnInfo6, on)
}

// SetSegmentSize has each write send its payload as datagrams of this many bytes, of which the last
// may be shorter: UDP_SEGMENT. 0, the default, sends one datagram. A control message UDP_SEGMENT
// takes its place for one write. A write of more than 128 datagrams fails with EINVAL, one whose
// datagrams are larger than the path's MTU with EMSGSIZE.
func (c *UDPConn) SetSegmentSize(bytes int) error {
	if bytes < 0 || bytes > 0xffff {
		return c.setError(os.NewSyscallError("setsockopt", syscall.EINVAL))
	}
	return c.set(func() { c.segment.Store(uint32(bytes)) })
}

// SetReceiveSegments makes reads return datagrams that came one behind the other as one, of up to
// 64 KiB, if they are of one sender, to one address, with the same class and time to live, and of
// the same size but for the last, which may be shorter: UDP_GRO. The size comes as a control
// message if there were several. A buffer gets no more of them than it has room for, where Linux
// cuts off what is beyond it.
func (c *UDPConn) SetReceiveSegments(on bool) error { return c.SetReceive(ReceiveSegments, on) }

// SetReceiveTimestamps asks for ReceiveTimestamps.
func (c *UDPConn) SetReceiveTimestamps(on bool) error { return c.SetReceive(ReceiveTimestamps, on) }

// SetReceiveTOS says whether reads report the type of service, or traffic class, of each datagram,
// whose lower two bits are ECN: IP_RECVTOS and IPV6_RECVTCLASS.
func (c *UDPConn) SetReceiveTOS(on bool) error {
	return c.SetReceive(ReceiveTOS|ReceiveTrafficClass, on)
}

// SetReceiveTTL says whether reads report the time to live, or hop limit, of each datagram:
// IP_RECVTTL and IPV6_RECVHOPLIMIT.
func (c *UDPConn) SetReceiveTTL(on bool) error {
	return c.SetReceive(ReceiveTTL|ReceiveHopLimit, on)
}

// SetECN marks what is sent from now on with one of the four values of ECN (RFC 3168): 0 not
// capable, 1 ECT(1), 2 ECT(0), 3 congestion met; others are EINVAL. The DSCP stays; a control
// message, or SetTrafficClass, takes its place.
func (c *UDPConn) SetECN(ecn int) error {
	const ecnBits = 3
	if ecn < 0 || ecn > ecnBits {
		return c.setError(os.NewSyscallError("setsockopt", syscall.EINVAL))
	}
	return c.set(func() { c.mark(int(c.class.Load())&^ecnBits | ecn) })
}

// ofVersion returns which of the control messages that are asked for describe a datagram of IPv6,
// or of IPv4.
func (m ControlMessages) ofVersion(v6 bool) ControlMessages {
	if v6 {
		if m&receiveOwnInfo6 != 0 {
			m |= ReceivePacketInfo6
		}
		return m & (ReceivePacketInfo6 | ReceiveHopLimit | ReceiveTrafficClass | ReceiveSegments |
			ReceiveTimestamps)
	}
	return m & (ReceivePacketInfo6 | ReceivePacketInfo4 | ReceiveTTL | ReceiveTOS |
		ReceiveSegments | ReceiveTimestamps)
}

// putControl writes the control messages about a datagram in Linux's order, and returns how many
// bytes they have and whether some were cut off.
func (c *UDPConn) putControl(oob []byte, r *receivedDatagram) (n int, truncated bool) {
	v6 := r.to.Len() == net.IPv6len
	m := ControlMessages(c.control.Load()).ofVersion(v6)
	w := controlWriter{b: oob}
	native := binary.NativeEndian
	var data [timestampsLen]byte
	if m&ReceiveTimestamps != 0 && r.stamps != (stamps{}) {
		putTimespec(data[:], r.stamps.software)
		putTimespec(data[32:], r.stamps.nic)
		w.putMessage(levelSocket, typeTimestamping, data[:])
		clear(data[:])
	}
	if m&ReceiveSegments != 0 && r.segment > 0 {
		native.PutUint32(data[:], uint32(r.segment))
		w.putMessage(levelUDP, typeSegments, data[:4])
	}
	if m&ReceivePacketInfo6 != 0 {
		if v6 {
			copy(data[:], r.to.AsSlice())
		} else {
			copy(data[:], "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff")
			copy(data[12:], r.to.AsSlice())
		}
		native.PutUint32(data[16:], uint32(c.stack.zones.linkNumber()))
		w.putMessage(levelV6, typePacketInfo6, data[:packetInfo6])
	}
	if m&ReceivePacketInfo4 != 0 {
		native.PutUint32(data[:], uint32(c.stack.zones.linkNumber()))
		copy(data[4:], r.to.AsSlice())
		copy(data[8:], r.to.AsSlice())
		w.putMessage(levelIP, typePacketInfo4, data[:packetInfo4])
	}
	native.PutUint32(data[:], uint32(r.ttl))
	if m&ReceiveTTL != 0 {
		w.putMessage(levelIP, typeTTL, data[:4])
	}
	if m&ReceiveHopLimit != 0 {
		w.putMessage(levelV6, typeHopLimit, data[:4])
	}
	native.PutUint32(data[:], uint32(r.class))
	if m&ReceiveTrafficClass != 0 {
		w.putMessage(levelV6, typeClass, data[:4])
	}
	if m&ReceiveTOS != 0 {
		data[0] = r.class
		w.putMessage(levelIP, typeTOS, data[:1])
	}
	return w.n, w.truncated
}

// putTimespec writes nanoseconds since 1970 as struct timespec.
func putTimespec(b []byte, nanoseconds int64) {
	const second = int64(time.Second)
	binary.NativeEndian.PutUint64(b, uint64(nanoseconds/second))
	binary.NativeEndian.PutUint64(b[8:], uint64(nanoseconds%second))
}

// linkNumber returns the index by which control messages name the link.
func (z *zones) linkNumber() int {
	if i := z.index(); i != 0 {
		return i
	}
	return nicID
}

// controlWriter appends control messages to what a program has room for, as linux net/core/scm.c
// put_cmsg does.
type controlWriter struct {
	b         []byte
	n         int // bytes of b in use
	truncated bool
}

func (w *controlWriter) putMessage(level, kind int, data []byte) {
	room := len(w.b) - w.n
	if room < controlHeader {
		w.truncated = true
		return
	}
	size := controlHeader + len(data)
	if size > room {
		w.truncated, size = true, room
	}
	to := w.b[w.n:]
	native := binary.NativeEndian
	native.PutUint64(to, uint64(size))
	native.PutUint32(to[8:], uint32(level))
	native.PutUint32(to[12:], uint32(kind))
	copy(to[controlHeader:size], data)
	w.n += min(alignControl(controlHeader+len(data)), room)
}

func alignControl(n int) int { return (n + controlAlign - 1) &^ (controlAlign - 1) }

// controlMessage is one of those that are given to a send.
type controlMessage struct {
	level, kind int
	data        []byte
}

// nextControl takes the first control message off oob. There is none if the rest is shorter than a
// header; one whose length cannot be is EINVAL.
func nextControl(oob []byte) (m controlMessage, rest []byte, ok bool, e syscall.Errno) {
	if len(oob) < controlHeader {
		return m, nil, false, 0
	}
	native := binary.NativeEndian
	n := native.Uint64(oob)
	if n < controlHeader || n > uint64(len(oob)) {
		return m, nil, false, syscall.EINVAL
	}
	m = controlMessage{level: int(int32(native.Uint32(oob[8:]))),
		kind: int(int32(native.Uint32(oob[12:]))), data: oob[controlHeader:n]}
	return m, oob[min(alignControl(int(n)), len(oob)):], true, 0
}

// readInt returns the data as an int from low to 255.
func (m *controlMessage) readInt(low int) (int, syscall.Errno) {
	if len(m.data) != 4 {
		return 0, syscall.EINVAL
	}
	v := int(int32(binary.NativeEndian.Uint32(m.data)))
	if v < low || v > 255 {
		return 0, syscall.EINVAL
	}
	return v, 0
}

// sendOptions says how the datagrams of one call are sent: as the socket's options have it, and
// what control messages change.
type sendOptions struct {
	from    tcpip.Address // as a control message names it; the zero Address: not named
	device  int           // index of an interface that one names; 0: none
	class   uint8         // traffic class
	ttl     int16         // to hosts, or, if marked, to groups, too; -1: the default
	whole   bool          // refused where it would have to be fragmented
	marked  bool          // a control message has set class or ttl
	segment int           // bytes of payload of each datagram; 0: one datagram
	oob     []byte        // the control messages

	stamps TimestampFlags // of timestampsTx: which are wanted

	patience patience // with the socket's rate
}

// ownOptions returns what the socket's options say.
func (c *UDPConn) ownOptions() sendOptions {
	o := sendOptions{class: uint8(c.class.Load()), ttl: -1, segment: int(c.segment.Load()),
		stamps: c.wantedStamps()}
	if ttl := c.ttl.Load(); ttl != 0 {
		o.ttl = int16(ttl)
	}
	return o
}

// longest returns how many bytes of payload the longest datagram has that n bytes are sent as.
func (o *sendOptions) longest(n int) int {
	if o.segment != 0 {
		return min(n, o.segment)
	}
	return n
}

// optionsOf returns how a call with control messages sends to an address. Unknown messages are
// EINVAL, but those of the other version of IP mean nothing.
func (c *UDPConn) optionsOf(oob []byte, to tcpip.Address) (sendOptions, syscall.Errno) {
	o := c.ownOptions()
	o.oob = oob
	for rest := oob; ; { // Linux looks at these, and at all lengths, first
		m, next, ok, e := nextControl(rest)
		switch {
		case e != 0:
			return o, e
		case ok && m.level == levelUDP && (m.kind != typeSegment || len(m.data) != 2):
			return o, syscall.EINVAL
		case ok && m.level == levelUDP:
			o.segment = int(binary.NativeEndian.Uint16(m.data))
		}
		if rest = next; !ok {
			break
		}
	}
	v4 := to.Len() == net.IPv4len || c.family == inet4
	for rest := oob; ; {
		m, next, ok, _ := nextControl(rest)
		if rest = next; !ok {
			return o, 0
		}
		var e syscall.Errno
		switch {
		case m.level == levelSocket && m.kind == typeTimestamping:
			e = o.applyTimestamping(&m)
		case m.level == levelSocket:
			if m.kind != typeRights && m.kind != typeCredentials {
				e = syscall.EINVAL
			}
		case m.level == levelIP && v4:
			e = c.applyControl4(&o, &m)
		case m.level == levelV6 && m.kind == typePacketInfo6 && c.family != inet4:
			e = c.applyPacketInfo6(&o, &m, v4)
		case m.level == levelV6 && !v4:
			e = c.applyControl6(&o, &m)
		}
		if e != 0 {
			return o, e
		}
	}
}

func (c *UDPConn) applyControl4(o *sendOptions, m *controlMessage) (e syscall.Errno) {
	var v int
	switch m.kind {
	case typePacketInfo4:
		if len(m.data) != packetInfo4 {
			return syscall.EINVAL
		}
		o.from, o.device = dropUnspecified(tcpip.AddrFrom4Slice(m.data[4:8])), numberIn(m.data)
	case typeTTL:
		if v, e = m.readInt(1); e == 0 {
			o.ttl, o.marked = int16(v), true
		}
	case typeTOS:
		if len(m.data) == 1 {
			o.class, o.marked = m.data[0], true
		} else if v, e = m.readInt(0); e == 0 {
			o.class, o.marked = uint8(v), true
		}
	case typeProtocol:
		_, e = m.readInt(1) // of raw sockets only
	default:
		e = syscall.EINVAL
	}
	return e
}

// applyPacketInfo6 takes a source address of IPv6, or an IPv4-mapped one for a datagram of IPv4.
func (c *UDPConn) applyPacketInfo6(o *sendOptions, m *controlMessage, v4 bool) syscall.Errno {
	if len(m.data) < packetInfo6 {
		return syscall.EINVAL
	}
	a := tcpip.AddrFrom16Slice(m.data[:16])
	o.device = numberIn(m.data[16:])
	switch {
	case v4 && !header.IsV4MappedAddress(a):
		return syscall.EINVAL
	case v4:
		o.from = dropUnspecified(tcpip.AddrFrom4Slice(m.data[12:16]))
	case o.device == 0 && header.IsV6LinkLocalUnicastAddress(a):
		return syscall.EINVAL
	default:
		o.from = dropUnspecified(a)
	}
	return 0
}

func (c *UDPConn) applyControl6(o *sendOptions, m *controlMessage) (e syscall.Errno) {
	var v int
	switch m.kind {
	case typeHopLimit:
		if v, e = m.readInt(-1); e == 0 {
			o.ttl, o.marked = int16(v), true
		}
	case typeClass:
		if v, e = m.readInt(-1); e == 0 && v >= 0 {
			o.class, o.marked = uint8(v), true
		}
	case typeDontFragment:
		if v, e = m.readInt(0); v > 1 {
			e = syscall.EINVAL
		}
		o.whole = v == 1
	default:
		e = syscall.EINVAL
	}
	return e
}

func numberIn(b []byte) int { return int(int32(binary.NativeEndian.Uint32(b))) }

// checkSource returns the error of control messages that name an interface other than the link, or
// a source that is not ours, as Linux's lookup of the route does.
func (c *UDPConn) checkSource(o *sendOptions) syscall.Errno {
	number := c.stack.zones.linkNumber()
	known := o.device == 0 || o.device == nicID || o.device == number
	v4 := o.from.Len() == net.IPv4len
	switch {
	case !known && !v4:
		return syscall.ENODEV
	case o.from.Len() != 0 && !c.stack.owns(o.from):
		if v4 && o.from != header.IPv4Broadcast &&
			!header.IsV4MulticastAddress(o.from) &&
			o.from.AsSlice()[0] != 0 {
			return syscall.ENETUNREACH
		}
		return syscall.EINVAL
	case !known:
		return syscall.ENODEV
	}
	return 0
}

// dropUnspecified returns the zero Address for the unspecified one.
func dropUnspecified(a tcpip.Address) tcpip.Address {
	if a.Unspecified() {
		return tcpip.Address{}
	}
	return a
}

// forKernel returns the control messages for a socket of the kernel that is bound to the source
// address, whose version of IP is v6 or not, and has none of the options.
func (o *sendOptions) forKernel(v6 bool) []byte {
	if o.class == 0 && o.ttl <= 0 && o.segment == 0 && len(o.oob) == 0 {
		return nil
	}
	w := controlWriter{b: make([]byte, 3*alignControl(controlHeader+4), 128)}
	putInt := func(level, kind, v int) {
		w.putMessage(level, kind, binary.NativeEndian.AppendUint32(nil, uint32(v)))
	}
	classLevel, classKind, ttlKind := levelIP, typeTOS, typeTTL
	if v6 {
		classLevel, classKind, ttlKind = levelV6, typeClass, typeHopLimit
	}
	if o.class != 0 {
		putInt(classLevel, classKind, int(o.class))
	}
	if o.ttl > 0 {
		putInt(classLevel, ttlKind, int(o.ttl))
	}
	if o.segment != 0 {
		w.putMessage(levelUDP, typeSegment,
			binary.NativeEndian.AppendUint16(nil, uint16(o.segment)))
	}
	kept := w.b[:w.n]
	for rest := o.oob; ; {
		m, next, ok, _ := nextControl(rest)
		if !ok {
			return kept
		}
		if !m.isPacketInfo() && m.level != levelUDP &&
			!(m.level == levelSocket && m.kind == typeTimestamping) {
			kept = append(kept, rest[:len(rest)-len(next)]...)
		}
		rest = next
	}
}

func (m *controlMessage) isPacketInfo() bool {
	return m.level == levelIP && m.kind == typePacketInfo4 ||
		m.level == levelV6 && m.kind == typePacketInfo6
}

// classAndTTL returns what the kernel says of the IP header of a datagram in control messages, and
// its defaults where it says nothing.
func classAndTTL(oob []byte) (class, ttl uint8) {
	ttl = defaultTTL
	for {
		m, rest, ok, _ := nextControl(oob)
		if !ok {
			return class, ttl
		}
		oob = rest
		if len(m.data) == 0 {
			continue
		}
		v := m.data[0]
		if len(m.data) >= 4 {
			v = uint8(binary.NativeEndian.Uint32(m.data))
		}
		switch {
		case m.level == levelIP && m.kind == typeTOS, m.level == levelV6 && m.kind == typeClass:
			class = v
		case m.level == levelIP && m.kind == typeTTL, m.level == levelV6 && m.kind == typeHopLimit:
			ttl = v
		}
	}
}

// sendSegments sends b as datagrams of o.segment bytes on a path: with a header template as one
// packet, which the link cuts up.
func (c *UDPConn) sendSegments(p *peerPath, b []byte, port uint16, o *sendOptions) tcpip.Error {
	switch {
	case header.UDPMinimumSize+o.longest(len(b)) > c.datagramRoom(p.route).limit:
		return &tcpip.ErrMessageTooLong{}
	case len(b) > o.segment*maxSegments:
		return &tcpip.ErrInvalidOptionValue{}
	}
	for {
		n := 0
		if len(b) > o.segment && o.stamps == 0 {
			n = c.writeSegments(p, b, port, o)
		}
		if n == 0 {
			n = min(len(b), o.segment)
			err := c.transmit(p, b[:n], port, o)
			o.stamps = 0 // of the first only, as of linux net/ipv4/udp_offload.c
			if _, lost := err.(*tcpip.ErrNoBufferSpace); err != nil && !lost {
				return err
			}
		}
		if b = b[n:]; len(b) == 0 {
			return nil
		}
	}
}

// writeSegments hands b to the link, and returns how many bytes it took: 0 if the path has no
// header template.
func (c *UDPConn) writeSegments(p *peerPath, b []byte, port uint16, o *sendOptions) int {
	if c.stack.datagrams == nil {
		return 0
	}
	h := p.freshTemplate(header.UDPMinimumSize+o.longest(len(b)), c.stack.moment())
	if h == nil {
		return 0
	}
	s := batchScratchPool.Get().(*batchScratch)
	defer batchScratchPool.Put(s)
	s.addDatagram(c, 0, h, b, port, o)
	return c.writeScratch(s, 1) * len(b)
}

// SetTrafficClass does for datagrams what TCPConn.SetTrafficClass does for segments.
func (c *UDPConn) SetTrafficClass(class int) error {
	if class < 0 || class > 255 {
		return &net.OpError{Op: "set", Net: c.network, Addr: c.laddr, Err: badClass(class)}
	}
	return c.set(func() { c.mark(class) })
}

func (c *UDPConn) mark(class int) {
	mark(c.ep, class) // for what the endpoint sends
	c.class.Store(uint32(class))
}

func (c *UDPConn) setError(err error) error {
	return &net.OpError{Op: "set", Net: c.network, Addr: c.laddr, Err: err}
}

// setPacing puts a rate in the place of the one before. A writer that waits takes it from there.
func (c *UDPConn) setPacing(bytesPerSecond uint64) {
	if !isLimit(bytesPerSecond) {
		bytesPerSecond = 0
	}
	p := c.pacing.Load()
	if p == nil {
		if bytesPerSecond == 0 {
			return
		}
		p = &socketPacing{begun: c.stack.clock.Now(), timer: c.stack.clock.NewStopped(c.wr.notify)}
		if !c.pacing.CompareAndSwap(nil, p) {
			p = c.pacing.Load()
		}
	}
	before := p.rate.Swap(bytesPerSecond)
	c.stack.udp.pacing.change(before, bytesPerSecond)
	c.wr.notify()
}

// SetPacing limits what the socket sends to a rate in bytes per second, Ethernet, IP and UDP
// headers included, and of fragments and segments those of each: SO_MAX_PACING_RATE of Linux, with
// or without the qdisc fq. 0 and the largest uint64 are no limit. The error is that of a closed
// socket.
//
// Writes wait until the rate lets out their datagrams: they take turns, and end with
// os.ErrDeadlineExceeded and net.ErrClosed as those that wait for a buffer do. What a write sends
// as one, up to 64 KiB in segments, leaves whole, and the next waits the longer. In any time no
// more leaves than the rate sends in it, and in 200 us, and one write; after a timer that comes
// late that of up to 10 ms more. [UDPConn.WriteBatch] waits for its first datagram only, sends as
// many as the rate lets out by then, and returns how many. Another rate holds at once, for writes
// that wait too; what was sent before counts. The rate holds for what the kernel sends with
// [Config.Host], too.
//
// Replies of [UDPConn.ServePackets] leave without waiting and are not counted; its handler must
// not write on a socket with a rate.
func (c *UDPConn) SetPacing(bytesPerSecond uint64) error {
	return c.set(func() {
		c.setPacing(bytesPerSecond)
		if c.closed.Load() {
			c.setPacing(0)
		}
	})
}

// pacingRate returns the rate of the socket in bytes per second; 0: no limit.
func (c *UDPConn) pacingRate() uint64 {
	if p := c.pacing.Load(); p != nil {
		return p.rate.Load()
	}
	return 0
}
