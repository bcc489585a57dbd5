package stack

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
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
	binding   *binding          // the kernel's sockets for the port, with Config.Host; else nil

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
	control atomic.Bool   // ReadMsgUDP and ReadBatch report destination addresses
	class   atomic.Uint32 // traffic class of what is sent
	ttl     atomic.Uint32 // of what is sent to hosts; 0: the default

	discovery atomic.Uint32 // a PathMTUDiscovery
}

var (
	_ net.Conn       = (*UDPConn)(nil)
	_ net.PacketConn = (*UDPConn)(nil)
)

// ListenPacket announces on a local UDP address: "udp", "udp4" or "udp6", and an address as for
// [Stack.Listen]. As in package net, a group's address stands for the wildcard address and a port
// that other sockets bound to a group's address may have, too; the group is not joined, see
// [UDPConn.JoinGroup]. The returned value is a *UDPConn.
func (s *Stack) ListenPacket(network, address string) (net.PacketConn, error) {
	return s.ListenConfig().ListenPacket(context.Background(), network, address)
}

// ListenUDP is net.ListenUDP: a nil laddr, or one without IP, is the wildcard; port 0 is any free
// one.
func (s *Stack) ListenUDP(network string, laddr *net.UDPAddr) (*UDPConn, error) {
	return s.ListenConfig().listenUDP(network, laddr)
}

// DialUDP is net.DialUDP: a connected socket that talks to raddr only and learns of its ICMP
// errors. If laddr is nil, local address and port are chosen.
func (s *Stack) DialUDP(network string, laddr, raddr *net.UDPAddr) (*UDPConn, error) {
	return s.Dialer().dialUDP(network, laddr, raddr)
}

// DialUDP is net.Dialer.DialUDP: Stack.DialUDP with d's options. A context that is done, or a
// deadline that has passed, fails it.
func (d *Dialer) DialUDP(ctx context.Context, network string,
	laddr, raddr netip.AddrPort) (*UDPConn, error) {
	ctx, cancel := d.bound(ctx)
	defer cancel()
	l, r := net.UDPAddrFromAddrPort(laddr), net.UDPAddrFromAddrPort(raddr)
	if err := ctx.Err(); err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Source: l, Addr: r,
			Err: d.stack.orClosed(fromContext(err, false))}
	}
	return d.dialUDP(network, l, r)
}

func (d *Dialer) dialUDP(network string, laddr, raddr *net.UDPAddr) (*UDPConn, error) {
	if err := checkNetwork("udp", network); err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Source: orNil(laddr),
			Addr: orNil(raddr), Err: err}
	}
	if raddr == nil {
		return nil, &net.OpError{Op: "dial", Net: network,
			Source: orNil(laddr), Err: errMissingAddress}
	}
	family := func(network string,
		local net.IP) family {
		return dialFamily(network, local, raddr.IP)
	}
	c, err := d.stack.openUDP(&UDPConn{reusePort: d.ReusePort}, network, family, laddr, raddr)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network,
			Source: orNil(laddr), Addr: raddr, Err: err}
	}
	return c, nil
}

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

// configure sets what package net sets, and asks for the destination of each datagram. What the
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
	c.binding.leave(c.stack)
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
func (c *UDPConn) SetDeadline(t time.Time) error { return c.setDeadline(t, &c.rd, &c.wr) }

// SetReadDeadline makes reads fail with os.ErrDeadlineExceeded from t on; the zero time means
// never.
func (c *UDPConn) SetReadDeadline(t time.Time) error { return c.setDeadline(t, &c.rd) }

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

// SetReadBuffer sets how many bytes may wait to be read before datagrams are dropped; see
// [Config.UDPBuffer] for default and limit.
func (c *UDPConn) SetReadBuffer(bytes int) error {
	return c.set(func() { setReadBuffer(c.ep.SocketOptions(), bytes) })
}

// SetWriteBuffer sets how many bytes may wait for a neighbour's address.
func (c *UDPConn) SetWriteBuffer(bytes int) error {
	return c.set(func() { setWriteBuffer(c.ep.SocketOptions(), bytes) })
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

// Control messages in Linux's form (linux 6.12 include/linux/socket.h, include/uapi/linux/in.h and
// ipv6.h): struct cmsghdr {size_t len; int level, type;} and then
// in_pktinfo {int ifindex; in_addr spec_dst, addr;} or in6_pktinfo {in6_addr addr; int ifindex;}.
const (
	levelIP, typePacketInfo4 = 0, 8
	levelV6, typePacketInfo6 = 41, 50

	controlHeader = 16
	packetInfo4   = 12
	packetInfo6   = 20
	controlAlign  = 8
)

// SetControl says whether ReadMsgUDP and ReadBatch report each datagram's destination address, as
// an IP_PKTINFO or IPV6_PKTINFO control message of Linux's form. It stands for the socket options
// of that name, for which a program has no descriptor here. Default false.
func (c *UDPConn) SetControl(on bool) error {
	return c.set(func() { c.control.Store(on) })
}

// putPacketInfo writes the control message for a datagram that was sent to the address a, and
// returns its length, or false if oob is too short.
func putPacketInfo(oob []byte, a tcpip.Address) (int, bool) {
	level, kind, size := levelV6, typePacketInfo6, packetInfo6
	if a.Len() == 4 {
		level, kind, size = levelIP, typePacketInfo4, packetInfo4
	}
	total := controlHeader + (size+controlAlign-1)&^(controlAlign-1)
	if len(oob) < total {
		return 0, false
	}
	clear(oob[:total])
	native := binary.NativeEndian
	native.PutUint64(oob, uint64(controlHeader+size))
	native.PutUint32(oob[8:], uint32(level))
	native.PutUint32(oob[12:], uint32(kind))
	body := oob[controlHeader:]
	if a.Len() == 4 {
		native.PutUint32(body, nicID)
		copy(body[4:], a.AsSlice())
		copy(body[8:], a.AsSlice())
	} else {
		copy(body, a.AsSlice())
		native.PutUint32(body[16:], nicID)
	}
	return total, true
}

// parsePacketInfo finds the source address in control messages given to a send. Messages of other
// types are ignored; a malformed one is EINVAL.
func parsePacketInfo(oob []byte) (tcpip.Address, error) {
	var from tcpip.Address
	native := binary.NativeEndian
	for len(oob) >= controlHeader {
		n := native.Uint64(oob)
		if n < controlHeader || n > uint64(len(oob)) {
			return from, syscall.EINVAL
		}
		level, kind := native.Uint32(oob[8:]), native.Uint32(oob[12:])
		body := oob[controlHeader:n]
		switch {
		case level == levelIP && kind == typePacketInfo4 && len(body) >= packetInfo4:
			from = given(tcpip.AddrFrom4Slice(body[4:8]))
		case level == levelV6 && kind == typePacketInfo6 && len(body) >= packetInfo6:
			from = given(tcpip.AddrFrom16Slice(body[:16]))
		}
		next := (n + controlAlign - 1) &^ (controlAlign - 1)
		if next >= uint64(len(oob)) {
			break
		}
		oob = oob[next:]
	}
	return from, nil
}

// given is "any" for the unspecified address.
func given(a tcpip.Address) tcpip.Address {
	if a.Unspecified() {
		return tcpip.Address{}
	}
	return a
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
func (c *UDPConn) ttlOn(r *gstack.Route) uint8 {
	if to := r.RemoteAddress(); header.IsV4MulticastAddress(to) || header.IsV6MulticastAddress(to) {
		ttl, _ := c.ep.GetSockOptInt(tcpip.MulticastTTLOption) // which every UDP endpoint has
		return uint8(ttl)
	}
	if ttl := c.ttl.Load(); ttl != 0 {
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
// Buffers, N, Addr, Flags (MSG_TRUNC, MSG_CTRUNC) and, after [UDPConn.SetControl], OOB and NN.
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
func (c *UDPConn) fill(m *Message, b []byte, r received) {
	m.N, m.Addr = r.n, c.peerAddr(m.Addr, r.from)
	m.NN, m.Flags = c.message(r, m.OOB)
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
// is that of the first of ms, and a later one ends the batch and is the next call's. flags must be
// 0.
func (c *UDPConn) WriteBatch(ms []Message, flags int) (int, error) {
	if flags != 0 {
		return 0, c.writeError(nil, errBatchFlags)
	}
	s := batchScratchPool.Get().(*batchScratch)
	defer batchScratchPool.Put(s)
	for sent := 0; ; sent++ {
		if sent += c.writeDirect(s, ms[sent:]); sent == len(ms) {
			return sent, nil
		}
		if err := c.writeMessage(&ms[sent]); err != nil {
			if sent > 0 {
				err = nil
			}
			return sent, err
		}
	}
}

// writeMessage sends one datagram of a batch by itself.
func (c *UDPConn) writeMessage(m *Message) error {
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
	n, nn, err := c.WriteMsgUDP(b, m.OOB, addr)
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
// template or that is refused, and returns how many it sent.
func (c *UDPConn) writeDirect(s *batchScratch, ms []Message) int {
	if c.stack.datagrams == nil || c.raddr != nil || c.check(&c.wr) != nil {
		return 0
	}
	r := &c.routes
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.epoch != c.stack.epoch.Load() {
		return 0
	}
	n, now := 0, c.stack.moment()
	for n < min(len(ms), maxBatch) && c.addDirect(s, n, &ms[n], now) {
		n++
	}
	ds := s.datagrams[:n]
	sent, err := c.stack.datagrams.WriteDatagrams(ds)
	clear(ds) // the payloads are the caller's
	c.stack.udp.stats.PacketsSent.IncrementBy(uint64(sent))
	if _, full := err.(*tcpip.ErrNoBufferSpace); full { // the datagram is lost, as in send
		c.stack.udp.stats.PacketSendErrors.Increment()
		sent++
	}
	for i := range ms[:sent] {
		ms[i].N, ms[i].NN = len(ms[i].Buffers[0]), 0
	}
	return sent
}

// addDirect makes m datagram i of what goes to the link; false if m has to go through netstack.
// routes.mu is held for reading.
func (c *UDPConn) addDirect(s *batchScratch, i int, m *Message, now moment) bool {
	addr, ok := m.Addr.(*net.UDPAddr)
	if !ok || len(m.Buffers) != 1 || len(m.OOB) != 0 {
		return false
	}
	b := m.Buffers[0]
	to, err := c.destination(addr)
	if err != nil || c.checkSend(b, to) != 0 {
		return false
	}
	p := c.routes.routes[routeKey{c.source(to), to.Addr}]
	if p == nil {
		return false
	}
	n := header.UDPMinimumSize + len(b)
	h := p.freshTemplate(n, now)
	if h == nil {
		return false
	}
	s.datagrams[i] = rdma.Datagram{Headers: c.fillHeaders(h, &s.headers[i], to.Port, n), Payload: b}
	return true
}
