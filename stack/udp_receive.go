package stack

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/rdma-netstack/rdma-netstack/link/rdma"
	"github.com/rdma-netstack/rdma-netstack/stack/packets"
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

// receivedDatagram describes a datagram.
type receivedDatagram struct {
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

func (c *UDPConn) receiveMsg(b, oob []byte) (r receivedDatagram, oobn, flags int, err error) {
	c.rd.mu.Lock()
	defer c.rd.mu.Unlock()
	if r, err = c.receiveLocked(b, "recvmsg"); err != nil {
		return r, 0, 0, c.readError(err)
	}
	oobn, flags = c.message(&r, oob)
	return r, oobn, flags, nil
}

// message fills in what recvmsg returns besides the bytes. rd.mu is held.
func (c *UDPConn) message(r *receivedDatagram, oob []byte) (oobn, flags int) {
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
func (c *UDPConn) receive(b []byte, call string) (receivedDatagram, error) {
	c.rd.mu.Lock()
	defer c.rd.mu.Unlock()
	r, err := c.receiveLocked(b, call)
	if err != nil {
		return r, c.readError(err)
	}
	return r, nil
}

func (c *UDPConn) receiveLocked(b []byte, call string) (receivedDatagram, error) {
	for {
		if err := c.check(&c.rd); err != nil {
			return receivedDatagram{}, err
		}
		r, terr := c.dequeue(b)
		switch {
		case terr == nil:
			return r, nil
		case wouldBlock(terr):
			c.rd.park()
		default:
			return receivedDatagram{}, c.orClosedErr(syscallError(call, terr))
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
func (c *UDPConn) dequeue(b []byte) (receivedDatagram, tcpip.Error) {
	if c.raddr != nil { // an ICMP error that came back is reported first
		if terr := c.ep.LastError(); terr != nil {
			return receivedDatagram{}, terr
		}
	}
	r, terr := c.rxq.dequeue(b)
	if terr != nil {
		return receivedDatagram{}, terr
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
func (c *UDPConn) readEndpoint(b []byte, peek bool) (receivedDatagram, tcpip.Error) {
	c.payload = payloadWriter{buf: b}
	res, terr := c.ep.Read(&c.payload, tcpip.ReadOptions{NeedRemoteAddr: true, Peek: peek})
	n := c.payload.n
	c.payload = payloadWriter{}
	if terr != nil {
		return receivedDatagram{}, terr
	}
	r := receivedDatagram{n: n, total: res.Total, from: res.RemoteAddr}
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

	server atomic.Pointer[packetServer] // nil: the socket is read
}

// stamps says when a datagram came, in nanoseconds since 1970; 0: nobody asked, or it is not known.
type stamps struct{ software, nic int64 }

// Stamped implements rdma.DatagramSink.
func (q *udpRxQueue) Stamped() bool {
	return ControlMessages(q.conn.control.Load())&ReceiveTimestamps != 0
}

// Deliver implements rdma.DatagramSink.
func (q *udpRxQueue) Deliver(ip, udp []byte, at time.Time) bool {
	var m datagramMeta
	n, ok := q.describeDatagram(&m, ip, udp, at)
	if !ok {
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

// Segments implements rdma.SegmentSink.
func (q *udpRxQueue) Segments() bool {
	return ControlMessages(q.conn.control.Load())&ReceiveSegments != 0
}

// DeliverSegments implements rdma.SegmentSink. What the receive buffer has no room for is lost, as
// of datagrams that come one by one.
func (q *udpRxQueue) DeliverSegments(ip, udp []byte, payloads [][]byte, at time.Time) bool {
	var m datagramMeta
	if _, ok := q.describeDatagram(&m, ip, udp, at); !ok {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || !q.endpointEmpty {
		return false
	}
	q.counts.PacketsReceived.IncrementBy(uint64(len(payloads)))
	room := q.conn.ep.SocketOptions().GetReceiveBufferSize() - q.charged.Load()
	fits, charged := 0, int64(0)
	for fits < len(payloads) && charged < room {
		charged += charge(len(payloads[fits]))
		fits++
	}
	if lost := uint64(len(payloads) - fits); lost > 0 {
		q.counts.ReceiveBufferErrors.IncrementBy(lost)
		q.dropped.Add(lost)
	}
	q.charged.Add(charged)
	q.incoming.addSegments(&m, payloads[:fits])
	return true
}

// describeDatagram fills m in from the headers of a datagram, and returns how many bytes of payload
// it has. ok is false if it is not one for the socket's queue.
func (q *udpRxQueue) describeDatagram(m *datagramMeta, ip, udp []byte,
	at time.Time) (n int, ok bool) {
	n = int(binary.BigEndian.Uint16(udp[4:])) - header.UDPMinimumSize
	if n != len(udp)-header.UDPMinimumSize || n > blockBytes {
		return n, false
	}
	m.from, m.to = hostsOf(ip)
	m.class, m.ttl = classOf(ip)
	m.port = binary.BigEndian.Uint16(udp)
	if q.Stamped() {
		q.stamp(m, at)
	}
	return n, q.accepts(m)
}

// classOf returns the type of service, or traffic class, and time to live, or hop limit, of an IP
// header.
func classOf(ip []byte) (class, ttl uint8) {
	if ip[0]>>4 == 4 {
		return ip[1], ip[8]
	}
	return ip[0]<<4 | ip[1]>>4, ip[7]
}

// stamp notes when a datagram came: now, and to the NIC at that time if it is not zero.
func (q *udpRxQueue) stamp(m *datagramMeta, at time.Time) {
	m.stamps.software = q.conn.stack.clock.Now().UnixNano()
	if !at.IsZero() {
		m.stamps.nic = at.UnixNano()
	}
}

func charge(n int) int64 { return int64(max(n, chargeLeast)) }

// chargeAll returns the charge of n bytes that are datagrams of a size, the last maybe shorter.
func chargeAll(n, size int) int64 {
	all := int64(n/size) * charge(size)
	if rest := n % size; rest > 0 {
		all += charge(rest)
	}
	return all
}

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
func (q *udpRxQueue) Flush() (done bool) {
	q.conn.rd.notify()
	return false
}

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
func (q *udpRxQueue) dequeue(buf []byte) (receivedDatagram, tcpip.Error) {
	if q.reading.first == nil {
		if r, terr, ok := q.refill(buf); ok {
			return r, terr
		}
	}
	m, payload := q.reading.next()
	q.charged.Add(-charge(len(payload)))
	r := receivedDatagram{n: copy(buf, payload), total: len(payload), to: m.to, class: m.class,
		ttl: m.ttl, stamps: m.stamps,
		from: tcpip.FullAddress{NIC: nicID, Addr: m.from, Port: m.port}}
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
func (q *udpRxQueue) joinSegments(b []byte, r *receivedDatagram) {
	size, room := r.n, min(len(b), maxPayload4)
	if size == 0 || r.total != size || r.segment != 0 {
		return
	}
	for n := 1; n < maxJoined; {
		if q.reading.first == nil {
			q.takeIncoming()
		}
		if q.reading.first == nil {
			return
		}
		m, payload := q.reading.next()
		next := receivedDatagram{total: len(payload), to: m.to, class: m.class, ttl: m.ttl,
			from: tcpip.FullAddress{NIC: nicID, Addr: m.from, Port: m.port}}
		if !r.joins(&next, size, room) {
			return
		}
		if len(payload) == size {
			payload = q.reading.nextWithin(min(room-r.n, (maxJoined-n)*size))
		}
		next.total = len(payload)
		q.charged.Add(-chargeAll(next.total, size))
		copy(b[r.n:], payload)
		q.reading.dropBytes(next.total)
		if n += (next.total + size - 1) / size; r.join(&next, size) {
			return
		}
	}
}

// joinEndpoint does what joinSegments does, for what netstack has delivered. conn.rd.mu is held.
func (c *UDPConn) joinEndpoint(b []byte, r *receivedDatagram) {
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
func (r *receivedDatagram) joins(next *receivedDatagram, size, room int) bool {
	return next.total > 0 && next.total <= min(size, room-r.n) && next.from == r.from &&
		next.to == r.to && next.class == r.class && next.ttl == r.ttl
}

// join adds next, of one datagram or of several of the size, to r, and reports whether nothing can
// be behind it.
func (r *receivedDatagram) join(next *receivedDatagram, size int) (last bool) {
	r.n += next.total
	r.total, r.segment = r.n, size
	return next.total%size != 0
}

// takeIncoming moves incoming to reading, which is empty.
func (q *udpRxQueue) takeIncoming() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.reading, q.incoming = q.incoming, datagramQueue{}
}

// refill moves incoming to reading. If incoming is empty, it reads the endpoint instead: ok is
// true, and r and terr are the endpoint's.
func (q *udpRxQueue) refill(buf []byte) (r receivedDatagram, terr tcpip.Error, ok bool) {
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

// datagramMeta describes a datagram whose payload is in a block, or several, one behind the other.
type datagramMeta struct {
	from, to tcpip.Address
	port     uint16 // of from
	at, n    uint16 // offset and length of the payload in the block, bytes
	segment  uint16 // bytes of each of several datagrams but for the last; 0: there is one

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
	p := s.blockFor(len(payload))
	l.at, l.n, l.segment = uint16(p.used), uint16(len(payload)), 0
	p.metas[p.written] = *l
	p.written++
	p.used += copy(p.bytes[p.used:], payload)
}

// addSegments appends datagrams that l describes: of one size, but for the last, which may be
// shorter. It copies their payloads, each of which is of 1 to blockBytes.
func (s *datagramQueue) addSegments(l *datagramMeta, payloads [][]byte) {
	for len(payloads) > 0 {
		size := len(payloads[0])
		p := s.blockFor(size)
		l.at, l.segment = uint16(p.used), uint16(size)
		n := min((blockBytes-p.used)/size, len(payloads))
		for _, b := range payloads[:n] {
			p.used += copy(p.bytes[p.used:], b)
		}
		l.n = uint16(p.used - int(l.at))
		p.metas[p.written] = *l
		p.written++
		payloads = payloads[n:]
	}
}

// blockFor returns the last block, with room for one more datagram of n bytes.
func (s *datagramQueue) blockFor(n int) *datagramBlock {
	p := s.last
	if p == nil || p.written == blockDatagrams || n > blockBytes-p.used {
		p = blockPool.Get().(*datagramBlock)
		p.next, p.written, p.read, p.used = nil, 0, 0, 0
		if s.first == nil {
			s.first = p
		} else {
			s.last.next = p
		}
		s.last = p
	}
	return p
}

// next returns the oldest datagram of a queue that is not empty. Both results are valid until drop.
func (s *datagramQueue) next() (*datagramMeta, []byte) {
	p := s.first
	l := &p.metas[p.read]
	n := int(l.n)
	if l.segment != 0 {
		n = min(n, int(l.segment))
	}
	return l, p.bytes[l.at : int(l.at)+n]
}

// nextWithin returns the payloads of the oldest datagram and of those that were added with it, as
// many as limit bytes hold, which is at least that one.
func (s *datagramQueue) nextWithin(limit int) []byte {
	p := s.first
	l := &p.metas[p.read]
	n := int(l.n)
	if n > limit {
		n = limit / int(l.segment) * int(l.segment)
	}
	return p.bytes[l.at : int(l.at)+n]
}

// drop removes the oldest datagram.
func (s *datagramQueue) drop() {
	_, payload := s.next()
	s.dropBytes(len(payload))
}

// dropBytes removes the oldest datagram, or it and those added with it that next or nextWithin
// returned, of n bytes together.
func (s *datagramQueue) dropBytes(n int) {
	p := s.first
	if l := &p.metas[p.read]; n < int(l.n) {
		l.at, l.n = l.at+uint16(n), l.n-uint16(n)
		return
	}
	if p.read++; p.read < p.written {
		return
	}
	if s.first = p.next; s.first == nil {
		s.last = nil
	}
	blockPool.Put(p)
}

// A socket that is served (ServePackets) has no queue that its workers share: what each receive
// queue has for it is gathered in a shard, and answered at the end of the queue's batch.

const (
	// maxShards bounds the receive queues that have a shard each; what others have goes through the
	// socket's queue to shard 0.
	maxShards = 128
	// shardBytes holds the payloads of a batch.
	shardBytes = 64 << 10
	// shardPaths bounds the peers whose path a shard finds without a lock; a power of two.
	shardPaths = 1024
)

// ServePackets calls handler with what the socket receives, until the socket is closed, a read
// deadline passes or the stack ends, and returns why, as a read does. A second call meanwhile is
// EBUSY; a read meanwhile may get what shard 0 would.
//
// The handler is called on the goroutine that looks at a receive queue, once per batch, with up to
// 64 datagrams; shard K is queue K-1's. So no goroutine is woken, and no lock is shared by queues.
// Datagrams that do not come that way are handled on the goroutine that called ServePackets, as
// shard 0: fragments, those to groups, those that waited before, those of links other than package
// link/rdma's, and the kernel's with Config.Host. They may be overtaken by others.
//
// While the handler runs its receive queue stands still, that of all sockets. So it must not wait:
// not for locks that are held long, not for channels, reads, name lookups or other hosts. What
// takes longer than some tens of microseconds is for a goroutine of its own, with copies, and is
// answered by WriteToUDPAddrPort later. It may call the socket's methods, Close too, but must not
// close the stack nor end its goroutine. Replies leave in order, without waiting: those for which
// the ring has no room are lost and counted, as errors of sending. A shard takes 300 KiB.
//
// If the handler panics, ServePackets panics with that value and the handler's stack; other sockets
// go on. When ServePackets returns no call of the handler is under way, and what was not handled
// can be read.
func (c *UDPConn) ServePackets(handler packets.Handler) error {
	s := &packetServer{conn: c, handler: handler}
	if !c.rxq.server.CompareAndSwap(nil, s) {
		return c.readError(os.NewSyscallError("recvmmsg", syscall.EBUSY))
	}
	own := newPacketShard(s, 0)
	own.bytes = make([]byte, shardBytes+maxPayload6)
	err := s.gatherQueued(own)
	for err == nil && s.panicked.Load() == nil {
		own.serveBatch()
		err = s.gatherQueued(own)
	}
	c.rxq.server.CompareAndSwap(s, nil)
	s.endShards()
	if p := s.panicked.Load(); p != nil {
		panic(*p)
	}
	return c.readError(err)
}

// packetServer is one call of ServePackets.
type packetServer struct {
	conn     *UDPConn
	handler  packets.Handler
	shards   [maxShards]atomic.Pointer[packetShard] // by receive queue; nil: none yet
	panicked atomic.Pointer[string]                 // why, and where; nil: not
}

// gatherQueued waits for what comes through the socket's queue and endpoint, and adds it to own.
// That is nothing if the handler has panicked.
func (s *packetServer) gatherQueued(own *packetShard) error {
	c := s.conn
	c.rd.mu.Lock()
	defer c.rd.mu.Unlock()
	for s.panicked.Load() == nil && !own.mayBeFull() {
		if err := c.check(&c.rd); err != nil && own.n == 0 {
			return err
		}
		terr := own.takeQueued()
		switch {
		case terr == nil:
		case own.n > 0:
			return nil
		case wouldBlock(terr):
			c.rd.park()
		default:
			return c.orClosedErr(syscallError("recvmsg", terr))
		}
	}
	return nil
}

// endShards waits for calls of the handler, and lets none begin.
func (s *packetServer) endShards() {
	for i := range s.shards {
		if shard := s.shards[i].Load(); shard != nil {
			shard.endCalls()
		}
	}
}

// shardOf returns that of a receive queue, or nil if there are too many.
func (s *packetServer) shardOf(queue int) *packetShard {
	if queue >= maxShards {
		return nil
	}
	shard := s.shards[queue].Load()
	if shard == nil { // the queue's worker alone is here
		shard = newPacketShard(s, queue+1)
		s.shards[queue].Store(shard)
	}
	return shard
}

// sinkOf returns what takes the datagrams of a receive queue.
func (q *udpRxQueue) sinkOf(queue int) rdma.DatagramSink {
	if s := q.server.Load(); s != nil {
		if shard := s.shardOf(queue); shard != nil {
			return shard
		}
	}
	return q
}

// packetShard gathers and answers the datagrams of one receive queue. It implements
// rdma.DatagramSink, whose methods the queue's worker calls; shard 0 is ServePackets' own.
type packetShard struct {
	server  *packetServer
	number  int
	n, used int // packets, and bytes
	bytes   []byte
	packets [maxBatch]packets.Packet
	metas   [maxBatch]datagramMeta
	ends    [maxBatch]pathRef
	replies [maxBatch][maxHeaders + packets.Room]byte // with room for their headers
	paths   [shardPaths]replyPath
	out     batchScratch
	slow    []int  // packets whose replies have no template
	batch   uint64 // counts calls of the handler

	mu    sync.Mutex // held while the handler runs
	ended bool       // guarded by mu
}

// hostPair holds a peer's address and that of ours to which it sent, by the bytes of the IP header:
// IPv4's are in the first word, and the others are zero.
type hostPair [4]uint64

// pairOf reads an IP header.
func pairOf(ip []byte) hostPair {
	if ip[0]>>4 == 4 {
		return hostPair{binary.LittleEndian.Uint64(ip[12:20])}
	}
	ip = ip[8:header.IPv6MinimumSize]
	return hostPair{binary.LittleEndian.Uint64(ip), binary.LittleEndian.Uint64(ip[8:]),
		binary.LittleEndian.Uint64(ip[16:]), binary.LittleEndian.Uint64(ip[24:])}
}

// pairOfAddresses returns the pair of two addresses of the same version of IP. If ours is not known
// it is that of no IP header.
func pairOfAddresses(peer, own tcpip.Address) (p hostPair) {
	var b [2 * net.IPv6len]byte
	copy(b[copy(b[:], peer.AsSlice()):], own.AsSlice())
	for i := range p {
		p[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	if own.Len() == 0 {
		p[2] = 1
	}
	return p
}

// slot spreads pairs over the paths of a shard.
func (p *hostPair) slot() uint16 {
	x := p[0]
	if p[3]|p[2] != 0 {
		x ^= (p[1]*0x9e3779b97f4a7c15 ^ p[2]) + p[3]
	}
	return uint16(x * 0x9e3779b97f4a7c15 >> 48 % shardPaths)
}

// replyPath holds what is known of a pair of hosts: its addresses in either form, and the path to
// the peer from the address of ours.
type replyPath struct {
	pair      hostPair
	uses      uint32 // how many pairs have been here
	from, to  tcpip.Address
	peer, own netip.Addr
	path      *peerPath // nil: not looked for
	epoch     uint64    // of the stack when it was found
	template  *headerTemplate
	batch     uint64 // of the shard, in which the template was looked at
}

// pathRef names a path of a shard while the same pair has it.
type pathRef struct {
	uses uint32
	slot uint16
}

// is reports whether k is that of a pair.
func (k *replyPath) is(pair *hostPair) bool { return k.uses != 0 && k.pair == *pair }

// begin makes k that of another pair, whose addresses these are.
func (k *replyPath) begin(pair *hostPair, from, to tcpip.Address) {
	*k = replyPath{pair: *pair, uses: max(k.uses+1, 1), from: from, to: to,
		peer: fromAddress(from), own: fromAddress(to)}
}

// pathFor returns the path of the hosts of a datagram, which may take another pair's place, and the
// reference to it.
func (s *packetShard) pathFor(from, to tcpip.Address) (*replyPath, pathRef) {
	pair := pairOfAddresses(from, to)
	slot := pair.slot()
	k := &s.paths[slot]
	if !k.is(&pair) {
		k.begin(&pair, from, to)
	}
	return k, pathRef{k.uses, slot}
}

// hostsOf returns source and destination of an IP header.
func hostsOf(ip []byte) (from, to tcpip.Address) {
	if ip[0]>>4 == 4 {
		return tcpip.AddrFrom4Slice(ip[12:16]), tcpip.AddrFrom4Slice(ip[16:20])
	}
	return tcpip.AddrFrom16Slice(ip[8:24]), tcpip.AddrFrom16Slice(ip[24:40])
}

func newPacketShard(s *packetServer, number int) *packetShard {
	return &packetShard{server: s, number: number, bytes: make([]byte, shardBytes)}
}

// Stamped implements rdma.DatagramSink.
func (s *packetShard) Stamped() bool { return s.server.conn.rxq.Stamped() }

// Deliver implements rdma.DatagramSink.
func (s *packetShard) Deliver(ip, udp []byte, at time.Time) bool {
	n := len(udp) - header.UDPMinimumSize
	if int(binary.BigEndian.Uint16(udp[4:])) != len(udp) || n > blockBytes {
		return false
	}
	if s.n == maxBatch || len(udp) > len(s.bytes)-s.used {
		s.Flush()
	}
	pair := pairOf(ip)
	slot := pair.slot()
	k := &s.paths[slot]
	if !k.is(&pair) {
		from, to := hostsOf(ip)
		k.begin(&pair, from, to)
	}
	m, q := &s.metas[s.n], &s.server.conn.rxq
	m.from, m.to, m.port = k.from, k.to, binary.BigEndian.Uint16(udp)
	m.class, m.ttl = classOf(ip)
	if !q.accepts(m) {
		return false
	}
	m.stamps = stamps{}
	if q.Stamped() {
		q.stamp(m, at)
	}
	payload := s.bytes[s.used : s.used+n]
	copy(payload, udp[header.UDPMinimumSize:])
	s.addPacket(payload, k, pathRef{k.uses, slot})
	return true
}

// addPacket makes payload, which is at the end of bytes, the datagram that the next of metas
// describes, and k the path of its hosts.
func (s *packetShard) addPacket(payload []byte, k *replyPath, ref pathRef) {
	m, p := &s.metas[s.n], &s.packets[s.n]
	p.Payload = payload[:len(payload):len(payload)]
	p.From = netip.AddrPortFrom(k.peer, m.port)
	p.To = netip.AddrPortFrom(k.own, s.server.conn.local.Port)
	p.TOS, p.Reply = m.class, s.replies[s.n][maxHeaders:maxHeaders]
	if ns := cmp.Or(m.stamps.nic, m.stamps.software); ns != 0 {
		p.At = time.Unix(0, ns)
	}
	s.ends[s.n] = ref
	s.n++
	s.used += len(payload)
}

// mayBeFull says that there may be no room for what the socket's queue returns next.
func (s *packetShard) mayBeFull() bool {
	joins := ControlMessages(s.server.conn.control.Load())&ReceiveSegments != 0
	return s.n == maxBatch || s.used > shardBytes || s.n > 0 && joins
}

// takeQueued takes the socket's oldest datagram, or those that were read as one. conn.rd.mu is
// held.
func (s *packetShard) takeQueued() tcpip.Error {
	c := s.server.conn
	if c.raddr != nil && s.n == 0 {
		if terr := c.ep.LastError(); terr != nil {
			return terr
		}
	}
	r, terr := c.rxq.dequeue(s.bytes[s.used:])
	if terr != nil {
		return terr
	}
	rest := s.bytes[s.used : s.used+r.n]
	for more := true; more; more = len(rest) > 0 {
		n := len(rest)
		if r.segment != 0 {
			n = min(n, r.segment)
		}
		s.metas[s.n] = datagramMeta{from: r.from.Addr, to: r.to, port: r.from.Port,
			class: r.class, ttl: r.ttl, stamps: r.stamps}
		k, ref := s.pathFor(r.from.Addr, r.to)
		s.addPacket(rest[:n], k, ref)
		rest = rest[n:]
	}
	return nil
}

// Flush implements rdma.DatagramSink: it ends a batch of the receive queue.
func (s *packetShard) Flush() (done bool) {
	if s.n == 0 {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.server.conn.rxq.counts.PacketsReceived.IncrementBy(uint64(s.n))
	if s.ended {
		s.handBack()
		return false
	}
	s.serveBatch()
	return true
}

// serveBatch calls the handler with what was gathered, and sends the answers. mu is held, but that
// of shard 0, which one goroutine has.
func (s *packetShard) serveBatch() {
	if s.n > 0 && s.callHandler() {
		s.sendReplies()
	}
	clear(s.packets[:s.n]) // which may have memory of the handler's
	s.n, s.used = 0, 0
}

// callHandler calls the handler. False: it panicked.
func (s *packetShard) callHandler() (ok bool) {
	defer func() {
		if ok {
			return
		}
		text := fmt.Sprintf("%v\n\nhandler of ServePackets:\n%s", recover(), debug.Stack())
		s.server.panicked.CompareAndSwap(nil, &text)
		s.ended = true
		s.server.conn.rxq.server.CompareAndSwap(s.server, nil)
		s.server.conn.rd.notify()
	}()
	s.server.handler(s.number, s.packets[:s.n])
	return true
}

// endCalls keeps calls of the handler from beginning.
func (s *packetShard) endCalls() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
}

// handBack queues what was gathered, to be read. mu is held.
func (s *packetShard) handBack() {
	q := &s.server.conn.rxq
	q.mu.Lock()
	for i := range s.packets[:s.n] {
		if !q.closed {
			q.charged.Add(charge(len(s.packets[i].Payload)))
			q.incoming.add(&s.metas[i], s.packets[i].Payload)
		}
	}
	q.mu.Unlock()
	q.Flush()
	s.n, s.used = 0, 0
}

// sendReplies sends the answers: those on paths with a header template with one doorbell, and then
// the others.
func (s *packetShard) sendReplies() {
	c, n := s.server.conn, 0
	o, now, epoch := c.ownOptions(), c.stack.moment(), c.stack.epoch.Load()
	s.batch++
	direct := c.stack.datagrams != nil && c.stack.host == nil && o.segment == 0 &&
		o.stamps == 0 && c.raddr == nil && c.check(&c.wr) == nil &&
		c.stack.outage.refuse("sendto") == nil
	for i := range s.packets[:s.n] {
		m, b := &s.metas[i], s.packets[i].Reply
		if len(b) == 0 {
			if c.local.Addr.Len() == 0 { // it may be answered later, from the same address
				c.replySources.remember(c.stack, c.peerOf(m), m.to)
			}
			continue
		}
		var h *headerTemplate
		if direct {
			h = s.templateFor(i, header.UDPMinimumSize+len(b), now, epoch)
		}
		if h == nil {
			s.slow = append(s.slow, i)
			continue
		}
		s.addReply(n, i, h, &o)
		n++
	}
	if n > 0 {
		s.writeReplies(n)
	}
	for _, i := range s.slow {
		m := &s.metas[i]
		from := m.to
		if c.stack.isGroup(from) {
			from = c.bound()
		}
		if err := c.send(s.packets[i].Reply, c.peerOf(m), from, "sendto", o); err != nil {
			c.stack.udp.stats.PacketSendErrors.Increment()
		}
	}
	s.slow = s.slow[:0]
}

// addReply makes the reply to packet i datagram n of out: in one piece, behind its headers, if it
// is where the handler found room for it.
func (s *packetShard) addReply(n, i int, h *headerTemplate, o *sendOptions) {
	c, b, to := s.server.conn, s.packets[i].Reply, s.metas[i].port
	room := &s.replies[i]
	if &b[0] != &room[maxHeaders] {
		s.out.addDatagram(c, n, h, b, to, o)
		return
	}
	frame := room[maxHeaders-h.size : maxHeaders+len(b)]
	h.completeIn(frame, c.local.Port, to, header.UDPMinimumSize+len(b))
	h.mark(frame, o)
	s.out.datagrams[n] = rdma.Datagram{Headers: frame}
}

// peerOf returns where a datagram came from.
func (c *UDPConn) peerOf(m *datagramMeta) tcpip.FullAddress {
	return tcpip.FullAddress{NIC: nicID, Addr: m.from, Port: m.port}
}

// templateFor returns the header template for a reply of n bytes, its header included, to packet i,
// or nil. What is known of a path holds for the batch.
func (s *packetShard) templateFor(i, n int, now moment, epoch uint64) *headerTemplate {
	ref := s.ends[i]
	k := &s.paths[ref.slot]
	if k.uses != ref.uses {
		m := &s.metas[i] // another pair of the batch has taken its place
		k, _ = s.pathFor(m.from, m.to)
	}
	if k.batch != s.batch {
		k.batch, k.template = s.batch, nil
		if s.findPath(k, epoch) {
			k.template = k.path.freshTemplate(0, now)
		}
	}
	if h := k.template; h != nil && n <= h.limit {
		return h
	}
	return nil
}

// findPath reports whether the path of k is known.
func (s *packetShard) findPath(k *replyPath, epoch uint64) bool {
	if k.path != nil && k.epoch == epoch {
		return true
	}
	r := &s.server.conn.routes
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.epoch != epoch {
		return false
	}
	k.path, k.epoch = r.routes[routeKey{k.to, k.from}], epoch
	return k.path != nil
}

// writeReplies hands the first n datagrams of out to the link.
func (s *packetShard) writeReplies(n int) {
	c := s.server.conn
	queue := max(s.number-1, 0)
	ds, lost := s.out.datagrams[:n], 0
	for rest := ds; len(rest) > 0; {
		sent, err := c.stack.datagrams.WriteReplies(queue, rest)
		if rest = rest[sent:]; err == nil {
			break
		}
		if _, filtered := err.(*tcpip.ErrNotPermitted); filtered {
			rest, lost = rest[1:], lost+1
			continue
		}
		lost += len(rest)
		break
	}
	clear(ds) // the payloads may be the handler's
	c.stack.udp.stats.PacketsSent.IncrementBy(uint64(n - lost))
	c.stack.udp.stats.PacketSendErrors.IncrementBy(uint64(lost))
}

// udpSockets holds the UDP sockets of a stack.
type udpSockets struct {
	ports udpPortTable // the link finds sinks in it
	stats tcpip.UDPStats

	stampsLost atomic.Uint64 // of datagrams sent, for want of room in the error queue
	pacing     pacedSockets
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
func (s *udpPortTable) find(queue int, v6 bool, port uint16) rdma.DatagramSink {
	if b := s.slot(udpPortKey{v6, port}); b != nil {
		if b := b.Load(); b != nil {
			return b.sinkOf(queue)
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
