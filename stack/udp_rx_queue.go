package stack

import (
	"encoding/binary"
	"sync"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/waiter"
)

// Most datagrams need nothing of netstack: they are not fragmented, are for one host, and only one
// socket can receive them. The link delivers these to the socket's queue directly
// (link/rdma/sink.go), and a reader takes all that have come while it holds the lock once. All
// others reach the socket's endpoint, which is read when the queue is empty.

// chargeLeast is the least that a datagram counts against the socket's receive buffer, in bytes:
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

// Deliver implements rdma.DatagramSink.
func (q *udpRxQueue) Deliver(ip, udp []byte) bool {
	n := int(binary.BigEndian.Uint16(udp[4:])) - header.UDPMinimumSize
	if n != len(udp)-header.UDPMinimumSize || n > blockBytes {
		return false
	}
	var m datagramMeta
	if ip[0]>>4 == 4 {
		m.from, m.to = tcpip.AddrFrom4Slice(ip[12:16]), tcpip.AddrFrom4Slice(ip[16:20])
	} else {
		m.from, m.to = tcpip.AddrFrom16Slice(ip[8:24]), tcpip.AddrFrom16Slice(ip[24:40])
	}
	m.port = binary.BigEndian.Uint16(udp)
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
	q.conn, q.counts = c, &c.stack.udp
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
	r := received{n: copy(buf, payload), total: len(payload), to: m.to,
		from: tcpip.FullAddress{NIC: nicID, Addr: m.from, Port: m.port}}
	q.reading.drop()
	return r, nil
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
	r, terr = q.conn.dequeueEndpoint(buf)
	q.endpointEmpty = q.conn.ep.Readiness(waiter.ReadableEvents) == 0
	return r, terr, true
}

// close drops what has not been read; Deliver refuses from now on.
func (q *udpRxQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed, q.incoming = true, datagramQueue{}
}
