package stack

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/rdma-netstack/rdma-netstack/link/rdma"
)

// payloadWriter receives one datagram from netstack, and drops what does not fit buf. It implements
// io.Writer.
type payloadWriter struct {
	buf []byte
	n   int
}

func (d *payloadWriter) Write(p []byte) (int, error) {
	d.n += copy(d.buf[d.n:], p)
	return len(p), nil
}

// received describes a datagram.
type received struct {
	n     int // bytes stored
	total int // bytes sent
	from  tcpip.FullAddress
	to    tcpip.Address // the address of ours, or group, or broadcast address it was sent to
	class uint8         // traffic class, or type of service
	ttl   uint8         // time to live, or hop limit

	stamps  stamps
	segment int // bytes of each datagram that was read with others, but for the last; 0: one alone
}

// Read reads a datagram and drops what does not fit in b.
func (c *UDPConn) Read(b []byte) (int, error) {
	r, err := c.receive(b, "read")
	return r.n, err
}

// ReadFrom implements net.PacketConn. The address is a *net.UDPAddr.
func (c *UDPConn) ReadFrom(b []byte) (int, net.Addr, error) {
	r, err := c.receive(b, "recvfrom")
	if err != nil {
		return 0, nil, err
	}
	return r.n, c.stack.zones.udpAddr(c.family, r.from), nil
}

// ReadFromUDP is ReadFrom with the concrete address type.
func (c *UDPConn) ReadFromUDP(b []byte) (int, *net.UDPAddr, error) {
	r, err := c.receive(b, "recvfrom")
	if err != nil {
		return 0, nil, err
	}
	return r.n, c.stack.zones.udpAddr(c.family, r.from), nil
}

// ReadFromUDPAddrPort is ReadFrom without allocation. On a dual-stack socket IPv4 senders have
// IPv4-mapped IPv6 addresses, as in package net.
func (c *UDPConn) ReadFromUDPAddrPort(b []byte) (int, netip.AddrPort, error) {
	r, err := c.receive(b, "recvfrom")
	if err != nil {
		return 0, netip.AddrPort{}, err
	}
	return r.n, c.family.addrPort(r.from, c.stack.zones.of(r.from.Addr)), nil
}

// ReadMsgUDP is ReadFrom with flags (MSG_TRUNC, MSG_CTRUNC) and, in oob, the control messages that
// [UDPConn.SetReceive] asks for.
func (c *UDPConn) ReadMsgUDP(b, oob []byte) (n, oobn, flags int, addr *net.UDPAddr, err error) {
	r, oobn, flags, err := c.receiveMsg(b, oob)
	if err != nil {
		return 0, 0, 0, nil, err
	}
	return r.n, oobn, flags, c.stack.zones.udpAddr(c.family, r.from), nil
}

// ReadMsgUDPAddrPort is ReadMsgUDP with a netip address.
func (c *UDPConn) ReadMsgUDPAddrPort(b, oob []byte) (n, oobn, flags int,
	addr netip.AddrPort, err error) {
	r, oobn, flags, err := c.receiveMsg(b, oob)
	if err != nil {
		return 0, 0, 0, netip.AddrPort{}, err
	}
	return r.n, oobn, flags, c.family.addrPort(r.from, c.stack.zones.of(r.from.Addr)), nil
}

func (c *UDPConn) receiveMsg(b, oob []byte) (r received, oobn, flags int, err error) {
	c.rd.mu.Lock()
	defer c.rd.mu.Unlock()
	if r, err = c.receiveLocked(b, "recvmsg"); err != nil {
		return r, 0, 0, c.readError(err)
	}
	oobn, flags = c.message(&r, oob)
	return r, oobn, flags, nil
}

// message fills in what recvmsg returns besides the bytes. rd.mu is held.
func (c *UDPConn) message(r *received, oob []byte) (oobn, flags int) {
	if r.total > r.n {
		flags |= syscall.MSG_TRUNC
	}
	if c.control.Load() == 0 {
		return 0, flags
	}
	oobn, truncated := c.putControl(oob, r)
	if truncated {
		flags |= syscall.MSG_CTRUNC
	}
	return oobn, flags
}

// receive waits for a datagram; call names the system call the host stack would have made.
func (c *UDPConn) receive(b []byte, call string) (received, error) {
	c.rd.mu.Lock()
	defer c.rd.mu.Unlock()
	r, err := c.receiveLocked(b, call)
	if err != nil {
		return r, c.readError(err)
	}
	return r, nil
}

func (c *UDPConn) receiveLocked(b []byte, call string) (received, error) {
	for {
		if err := c.check(&c.rd); err != nil {
			return received{}, err
		}
		r, terr := c.dequeue(b)
		switch {
		case terr == nil:
			return r, nil
		case wouldBlock(terr):
			c.rd.park()
		default:
			return received{}, c.orClosedErr(syscallError(call, terr))
		}
	}
}

// endpointEvents is told by netstack what the endpoint of a socket is ready for.
type endpointEvents struct{ c *UDPConn }

// NotifyEvent implements waiter.EventListener. It is called with netstack's locks held.
func (a endpointEvents) NotifyEvent(mask waiter.EventMask) {
	if mask&readEvents != 0 {
		a.c.rxq.endpointReady()
		a.c.rd.notify()
	}
	if mask&writeEvents != 0 {
		a.c.wr.notify()
	}
}

// dequeue removes the oldest datagram, or reports tcpip.ErrWouldBlock. rd.mu is held.
func (c *UDPConn) dequeue(b []byte) (received, tcpip.Error) {
	if c.raddr != nil { // an ICMP error that came back is reported first
		if terr := c.ep.LastError(); terr != nil {
			return received{}, terr
		}
	}
	r, terr := c.rxq.dequeue(b)
	if terr != nil {
		return received{}, terr
	}
	if ControlMessages(c.control.Load())&ReceiveSegments != 0 {
		c.rxq.joinSegments(b, &r)
	}
	if c.raddr == nil && c.local.Addr.Len() == 0 {
		c.replySources.remember(c.stack, r.from, r.to)
	}
	return r, nil
}

// readEndpoint does what dequeue does, for what netstack has delivered, which stays there if it is
// only peeked at.
func (c *UDPConn) readEndpoint(b []byte, peek bool) (received, tcpip.Error) {
	c.payload = payloadWriter{buf: b}
	res, terr := c.ep.Read(&c.payload, tcpip.ReadOptions{NeedRemoteAddr: true, Peek: peek})
	n := c.payload.n
	c.payload = payloadWriter{}
	if terr != nil {
		return received{}, terr
	}
	r := received{n: n, total: res.Total, from: res.RemoteAddr}
	if m := &res.ControlMessages; m.HasIPPacketInfo {
		r.to, r.class, r.ttl = m.PacketInfo.DestinationAddr, m.TOS, m.TTL
	} else if m.HasIPv6PacketInfo {
		r.to, r.class, r.ttl = m.IPv6PacketInfo.Addr, uint8(m.TClass), m.HopLimit
	}
	if m := &res.ControlMessages; m.HasTimestamp && c.rxq.Stamped() {
		r.stamps.software = m.Timestamp.UnixNano()
	}
	return r, nil
}

func (c *UDPConn) readError(err error) error {
	return &net.OpError{Op: "read", Net: c.network, Source: c.laddr, Addr: c.RemoteAddr(), Err: err}
}

// Most datagrams need nothing of netstack: they are not fragmented, are for one host, and only one
// socket can receive them. The link delivers these to the socket's queue directly
// (link/rdma/deliver.go), and a reader takes all that have come while it holds the lock once. All
// others reach the socket's endpoint, which is read when the queue is empty.

// chargeLeast gives the least that a datagram counts against the socket's receive buffer, in bytes:
// about the size of what is kept besides its payload.
const chargeLeast = 64

// udpRxQueue holds the datagrams that the link has delivered to one socket. It implements
// rdma.DatagramSink. Receive workers append to incoming; the reader moves all of incoming to
// reading, and takes datagrams from there without the lock.
type udpRxQueue struct {
	conn    *UDPConn
	counts  *tcpip.UDPStats
	charged atomic.Int64  // bytes charged for what waits to be read
	dropped atomic.Uint64 // datagrams for which there was no room

	mu       sync.Mutex
	incoming datagramQueue // guarded by mu
	// the endpoint has nothing, or endpointReady is about to be called; guarded by mu
	endpointEmpty bool
	closed        bool // guarded by mu

	reading datagramQueue // to be read before incoming; guarded by conn.rd.mu
}

// stamps says when a datagram came, in nanoseconds since 1970; 0: nobody asked, or it is not known.
type stamps struct{ software, nic int64 }

// Stamped implements rdma.DatagramSink.
func (q *udpRxQueue) Stamped() bool {
	return ControlMessages(q.conn.control.Load())&ReceiveTimestamps != 0
}

// Deliver implements rdma.DatagramSink.
func (q *udpRxQueue) Deliver(ip, udp []byte, at time.Time) bool {
	n := int(binary.BigEndian.Uint16(udp[4:])) - header.UDPMinimumSize
	if n != len(udp)-header.UDPMinimumSize || n > blockBytes {
		return false
	}
	var m datagramMeta
	if ip[0]>>4 == 4 {
		m.from, m.to = tcpip.AddrFrom4Slice(ip[12:16]), tcpip.AddrFrom4Slice(ip[16:20])
		m.class, m.ttl = ip[1], ip[8]
	} else {
		m.from, m.to = tcpip.AddrFrom16Slice(ip[8:24]), tcpip.AddrFrom16Slice(ip[24:40])
		m.class, m.ttl = ip[0]<<4|ip[1]>>4, ip[7]
	}
	m.port = binary.BigEndian.Uint16(udp)
	if q.Stamped() {
		m.stamps.software = q.conn.stack.clock.Now().UnixNano()
		if !at.IsZero() {
			m.stamps.nic = at.UnixNano()
		}
	}
	if !q.accepts(&m) {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || !q.endpointEmpty { // the datagram must not overtake what waits in the endpoint
		return false
	}
	q.counts.PacketsReceived.Increment()
	if q.charged.Load() >= q.conn.ep.SocketOptions().GetReceiveBufferSize() {
		q.counts.ReceiveBufferErrors.Increment()
		q.dropped.Add(1)
		return true
	}
	q.charged.Add(charge(n))
	q.incoming.add(&m, udp[header.UDPMinimumSize:])
	return true
}

func charge(n int) int64 { return int64(max(n, chargeLeast)) }

// accepts says whether a datagram to the socket's port is for the socket: sent to the address that
// it is bound to, and by the peer that it is connected to, if any. Netstack decides about others.
func (q *udpRxQueue) accepts(m *datagramMeta) bool {
	c := q.conn
	if c.local.Addr.Len() != 0 && c.local.Addr != m.to {
		return false
	}
	return c.raddr == nil || c.remote.Addr == m.from && c.remote.Port == m.port
}

// Flush implements rdma.DatagramSink: it wakes the reader.
func (q *udpRxQueue) Flush() { q.conn.rd.notify() }

// open lets the link deliver. endpointReady must be registered already. Until then everything comes
// through the endpoint.
func (q *udpRxQueue) open(c *UDPConn) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.conn, q.counts = c, &c.stack.udp.stats
	q.endpointEmpty = c.ep.Readiness(waiter.ReadableEvents) == 0
}

// endpointReady notes that the endpoint has a datagram. From then on Deliver refuses, until the
// endpoint has been read.
func (q *udpRxQueue) endpointReady() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.endpointEmpty = false
}

// dequeue removes the oldest datagram, or the endpoint's oldest if the queue is empty. conn.rd.mu
// is held.
func (q *udpRxQueue) dequeue(buf []byte) (received, tcpip.Error) {
	if q.reading.first == nil {
		if r, terr, ok := q.refill(buf); ok {
			return r, terr
		}
	}
	m, payload := q.reading.next()
	q.charged.Add(-charge(len(payload)))
	r := received{n: copy(buf, payload), total: len(payload), to: m.to, class: m.class, ttl: m.ttl,
		stamps: m.stamps, from: tcpip.FullAddress{NIC: nicID, Addr: m.from, Port: m.port}}
	q.reading.drop()
	return r, nil
}

// maxJoined gives the most datagrams that are read as one: linux net/ipv4/udp_offload.c
// UDP_GRO_CNT_MAX.
const maxJoined = 64

// joinSegments reads further datagrams behind r, which has just been read into b, as one with it,
// by the rules of Linux's GRO (net/ipv4/udp_offload.c udp_gro_receive_segment): each has the same
// addresses, ports, class and time to live, and the same size but for the last, which may be
// shorter. What b has no room for is left. conn.rd.mu is held.
func (q *udpRxQueue) joinSegments(b []byte, r *received) {
	size, room := r.n, min(len(b), maxPayload4)
	if size == 0 || r.total != size || r.segment != 0 {
		return
	}
	for n := 1; n < maxJoined; n++ {
		if q.reading.first == nil {
			q.takeIncoming()
		}
		if q.reading.first == nil {
			return
		}
		m, payload := q.reading.next()
		next := received{total: len(payload), to: m.to, class: m.class, ttl: m.ttl,
			from: tcpip.FullAddress{NIC: nicID, Addr: m.from, Port: m.port}}
		if !r.joins(&next, size, room) {
			return
		}
		q.charged.Add(-charge(len(payload)))
		copy(b[r.n:], payload)
		q.reading.drop()
		if r.join(&next, size) {
			return
		}
	}
}

// joinEndpoint does what joinSegments does, for what netstack has delivered. conn.rd.mu is held.
func (c *UDPConn) joinEndpoint(b []byte, r *received) {
	size, room := r.n, min(len(b), maxPayload4)
	if size == 0 || r.total != size {
		return
	}
	for n := 1; n < maxJoined && r.n < room; n++ {
		next, terr := c.readEndpoint(b[r.n:room], true)
		if terr == nil && !r.joins(&next, size, room) {
			return
		}
		if terr == nil {
			_, terr = c.readEndpoint(nil, false)
		}
		if terr != nil { // an error of ICMP, which is the next call's, or there is nothing
			if !wouldBlock(terr) {
				c.ep.SocketOptions().SetLastError(terr)
			}
			return
		}
		if r.join(&next, size) {
			return
		}
	}
}

// joins reports whether next can be read with r, whose datagrams are of this size, in so much room.
func (r *received) joins(next *received, size, room int) bool {
	return next.total > 0 && next.total <= min(size, room-r.n) && next.from == r.from &&
		next.to == r.to && next.class == r.class && next.ttl == r.ttl
}

// join adds next to r, and reports whether nothing can be behind it.
func (r *received) join(next *received, size int) (last bool) {
	r.n += next.total
	r.total, r.segment = r.n, size
	return next.total < size
}

// takeIncoming moves incoming to reading, which is empty.
func (q *udpRxQueue) takeIncoming() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.reading, q.incoming = q.incoming, datagramQueue{}
}

// refill moves incoming to reading. If incoming is empty, it reads the endpoint instead: ok is
// true, and r and terr are the endpoint's.
func (q *udpRxQueue) refill(buf []byte) (r received, terr tcpip.Error, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.reading, q.incoming = q.incoming, datagramQueue{}
	if q.reading.first != nil {
		return r, nil, false
	}
	r, terr = q.conn.readEndpoint(buf, false)
	if terr == nil && ControlMessages(q.conn.control.Load())&ReceiveSegments != 0 {
		q.conn.joinEndpoint(buf, &r)
	}
	q.endpointEmpty = q.conn.ep.Readiness(waiter.ReadableEvents) == 0
	return r, terr, true
}

// close drops what has not been read; Deliver refuses from now on.
func (q *udpRxQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed, q.incoming = true, datagramQueue{}
}

// Sizes of a block. The payload of one jumbo frame fits. An idle socket has no block.
const (
	blockBytes     = 16 << 10
	blockDatagrams = 64
)

// datagramMeta describes a datagram whose payload is in a block.
type datagramMeta struct {
	from, to tcpip.Address
	port     uint16 // of from
	at, n    uint16 // offset and length of the payload in the block, bytes

	class, ttl uint8 // of the IP header

	stamps stamps
}

// datagramBlock is memory for up to blockDatagrams datagrams, filled and read in order.
type datagramBlock struct {
	next          *datagramBlock
	written, read int // entries of metas
	used          int // bytes of bytes
	metas         [blockDatagrams]datagramMeta
	bytes         [blockBytes]byte
}

var blockPool = sync.Pool{New: func() any { return new(datagramBlock) }}

// datagramQueue describes a FIFO of datagrams, a list of blocks. Each of its blocks has something
// to be read. The zero value is empty. It is not safe for concurrent use.
type datagramQueue struct{ first, last *datagramBlock }

// add appends a datagram, and copies its payload of at most blockBytes.
func (s *datagramQueue) add(l *datagramMeta, payload []byte) {
	p := s.last
	if p == nil || p.written == blockDatagrams || len(payload) > blockBytes-p.used {
		p = blockPool.Get().(*datagramBlock)
		p.next, p.written, p.read, p.used = nil, 0, 0, 0
		if s.first == nil {
			s.first = p
		} else {
			s.last.next = p
		}
		s.last = p
	}
	l.at, l.n = uint16(p.used), uint16(len(payload))
	p.metas[p.written] = *l
	p.written++
	p.used += copy(p.bytes[p.used:], payload)
}

// next returns the oldest datagram of a queue that is not empty. Both results are valid until drop.
func (s *datagramQueue) next() (*datagramMeta, []byte) {
	p := s.first
	l := &p.metas[p.read]
	return l, p.bytes[l.at : int(l.at)+int(l.n)]
}

// drop removes the oldest datagram.
func (s *datagramQueue) drop() {
	p := s.first
	if p.read++; p.read < p.written {
		return
	}
	if s.first = p.next; s.first == nil {
		s.last = nil
	}
	blockPool.Put(p)
}

// udpSockets holds the UDP sockets of a stack.
type udpSockets struct {
	ports udpPortTable // the link finds sinks in it
	stats tcpip.UDPStats
}

// udpPortTable has all sockets to which the link can deliver directly, by version of IP and port.
// Sockets that share a port (ReusePort) are not in it. A port has more than one socket here only if
// they are bound to different addresses; netstack then chooses.
type udpPortTable struct {
	mu      sync.Mutex
	sockets map[udpPortKey][]*udpRxQueue // guarded by mu

	// single has the queue of each port with only one socket. The link reads it without a lock; it
	// is written with mu held. The index is the version, then the port's upper and lower byte. A
	// page of 256 ports is allocated when first needed, and stays.
	single [2][256]atomic.Pointer[[256]atomic.Pointer[udpRxQueue]]
}

type udpPortKey struct {
	v6   bool
	port uint16
}

// find returns the sink of a port, or nil; see rdma.Endpoint.SetDatagramSinks.
func (s *udpPortTable) find(v6 bool, port uint16) rdma.DatagramSink {
	if b := s.slot(udpPortKey{v6, port}); b != nil {
		if b := b.Load(); b != nil {
			return b
		}
	}
	return nil
}

// slot returns the entry of a port in single, or nil if its page is not allocated.
func (s *udpPortTable) slot(k udpPortKey) *atomic.Pointer[udpRxQueue] {
	page := s.page(k).Load()
	if page == nil {
		return nil
	}
	return &page[k.port&0xff]
}

func (s *udpPortTable) page(k udpPortKey) *atomic.Pointer[[256]atomic.Pointer[udpRxQueue]] {
	if k.v6 {
		return &s.single[1][k.port>>8]
	}
	return &s.single[0][k.port>>8]
}

// add enters a socket that is bound.
func (s *udpPortTable) add(b *udpRxQueue) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sockets == nil {
		s.sockets = make(map[udpPortKey][]*udpRxQueue)
	}
	for _, k := range b.keys() {
		if page := s.page(k); page.Load() == nil {
			page.Store(new([256]atomic.Pointer[udpRxQueue]))
		}
		s.sockets[k] = append(s.sockets[k], b)
		s.update(k)
	}
}

// remove takes out a socket that is about to be closed.
func (s *udpPortTable) remove(b *udpRxQueue) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range b.keys() {
		s.sockets[k] = slices.DeleteFunc(s.sockets[k], func(o *udpRxQueue) bool { return o == b })
		s.update(k)
	}
}

// update sets the slot of k from the sockets of k. mu is held.
func (s *udpPortTable) update(k udpPortKey) {
	switch at, open := s.slot(k), s.sockets[k]; len(open) {
	case 0:
		delete(s.sockets, k)
		at.Store(nil)
	case 1:
		at.Store(open[0])
	default:
		at.Store(nil)
	}
}

// keys returns the table's keys for the socket: one per IP version of its family.
func (q *udpRxQueue) keys() []udpPortKey {
	port := q.conn.local.Port
	switch q.conn.family {
	case inet4:
		return []udpPortKey{{false, port}}
	case inet6:
		return []udpPortKey{{true, port}}
	}
	return []udpPortKey{{false, port}, {true, port}}
}
