package stack

import (
	"encoding/binary"
	"sync"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/waiter"
)

// Most datagrams need nothing of netstack: they are whole, for one host, and there is one socket that can want them. The link
// puts these into the socket's box directly (link/rdma/sink.go), where a reader finds all that came with one turn of a lock.
// All others reach the socket's endpoint; its queue is read when the box is empty.

// chargeLeast is what a datagram counts for at least against a socket's receive buffer, bytes: about what is kept besides its payload.
const chargeLeast = 64

// udpRxQueue is where the link puts datagrams for one socket. It implements rdma.DatagramSink.
type udpRxQueue struct {
	conn    *UDPConn
	counts  *tcpip.UDPStats
	charged atomic.Int64 // charged for what waits to be read, bytes

	mu            sync.Mutex
	incoming      datagramQueue // guarded by mu
	endpointEmpty bool          // the endpoint has nothing, or its news are under way to arrived; guarded by mu
	closed        bool          // guarded by mu

	reading datagramQueue // to be read before came; guarded by conn.rd.mu
}

// Deliver implements rdma.DatagramSink.
func (b *udpRxQueue) Deliver(ip, udp []byte) bool {
	n := int(binary.BigEndian.Uint16(udp[4:])) - header.UDPMinimumSize
	if n != len(udp)-header.UDPMinimumSize || n > blockBytes {
		return false
	}
	var l datagramMeta
	if ip[0]>>4 == 4 {
		l.from, l.to = tcpip.AddrFrom4Slice(ip[12:16]), tcpip.AddrFrom4Slice(ip[16:20])
	} else {
		l.from, l.to = tcpip.AddrFrom16Slice(ip[8:24]), tcpip.AddrFrom16Slice(ip[24:40])
	}
	l.port = binary.BigEndian.Uint16(udp)
	if !b.accepts(&l) {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || !b.endpointEmpty { // it must not overtake what waits in the endpoint
		return false
	}
	b.counts.PacketsReceived.Increment()
	if b.charged.Load() >= b.conn.ep.SocketOptions().GetReceiveBufferSize() {
		b.counts.ReceiveBufferErrors.Increment()
		return true
	}
	b.charged.Add(charge(n))
	b.incoming.add(&l, udp[header.UDPMinimumSize:])
	return true
}

func charge(n int) int64 { return int64(max(n, chargeLeast)) }

// accepts says whether a letter to the socket's port is the socket's: to the address it is bound to and from the peer it is connected to, if it
// is bound or connected. What to do with others is netstack's to know.
func (b *udpRxQueue) accepts(l *datagramMeta) bool {
	c := b.conn
	if c.local.Addr.Len() != 0 && c.local.Addr != l.to {
		return false
	}
	return c.raddr == nil || c.remote.Addr == l.from && c.remote.Port == l.port
}

// Flush implements rdma.DatagramSink: it wakes the reader.
func (b *udpRxQueue) Flush() { b.conn.rd.notify() }

// open is for a socket that hears of arrivals. Until then everything comes through the endpoint.
func (b *udpRxQueue) open(c *UDPConn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.conn, b.counts = c, &c.stack.udp
	b.endpointEmpty = c.ep.Readiness(waiter.ReadableEvents) == 0
}

// endpointReady is told that the endpoint has something. From then on nothing is put into the box until that is read.
func (b *udpRxQueue) endpointReady() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.endpointEmpty = false
}

// take removes the oldest datagram, or the oldest of the endpoint if the box is empty. conn.rd.mu is held.
func (b *udpRxQueue) take(buf []byte) (received, tcpip.Error) {
	if b.reading.first == nil {
		if r, terr, ok := b.refill(buf); ok {
			return r, terr
		}
	}
	l, payload := b.reading.next()
	b.charged.Add(-charge(len(payload)))
	r := received{n: copy(buf, payload), total: len(payload), to: l.to, from: tcpip.FullAddress{NIC: nicID, Addr: l.from, Port: l.port}}
	b.reading.drop()
	return r, nil
}

// refill gets what came. If that is nothing, it reports ok and what the endpoint has.
func (b *udpRxQueue) refill(buf []byte) (r received, terr tcpip.Error, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reading, b.incoming = b.incoming, datagramQueue{}
	if b.reading.first != nil {
		return r, nil, false
	}
	r, terr = b.conn.takeQueued(buf)
	b.endpointEmpty = b.conn.ep.Readiness(waiter.ReadableEvents) == 0
	return r, terr, true
}

// close loses what has not been read and takes no more.
func (b *udpRxQueue) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed, b.incoming = true, datagramQueue{}
}
