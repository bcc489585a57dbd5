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

// box is where the link puts datagrams for one socket. It implements rdma.DatagramSink.
type box struct {
	conn   *UDPConn
	counts *tcpip.UDPStats
	fill   atomic.Int64 // charged for what waits to be read, bytes

	mu      sync.Mutex
	came    sack // guarded by mu
	drained bool // the endpoint has nothing, or its news are under way to arrived; guarded by mu
	closed  bool // guarded by mu

	taken sack // to be read before came; guarded by conn.rd.mu
}

// Deliver implements rdma.DatagramSink.
func (b *box) Deliver(ip, udp []byte) bool {
	n := int(binary.BigEndian.Uint16(udp[4:])) - header.UDPMinimumSize
	if n != len(udp)-header.UDPMinimumSize || n > pouchBytes {
		return false
	}
	var l letter
	if ip[0]>>4 == 4 {
		l.from, l.to = tcpip.AddrFrom4Slice(ip[12:16]), tcpip.AddrFrom4Slice(ip[16:20])
	} else {
		l.from, l.to = tcpip.AddrFrom16Slice(ip[8:24]), tcpip.AddrFrom16Slice(ip[24:40])
	}
	l.port = binary.BigEndian.Uint16(udp)
	if !b.wants(&l) {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || !b.drained { // it must not overtake what waits in the endpoint
		return false
	}
	b.counts.PacketsReceived.Increment()
	if b.fill.Load() >= b.conn.ep.SocketOptions().GetReceiveBufferSize() {
		b.counts.ReceiveBufferErrors.Increment()
		return true
	}
	b.fill.Add(charge(n))
	b.came.add(&l, udp[header.UDPMinimumSize:])
	return true
}

func charge(n int) int64 { return int64(max(n, chargeLeast)) }

// wants says whether a letter to the socket's port is the socket's: to the address it is bound to and from the peer it is connected to, if it
// is bound or connected. What to do with others is netstack's to know.
func (b *box) wants(l *letter) bool {
	c := b.conn
	if c.local.Addr.Len() != 0 && c.local.Addr != l.to {
		return false
	}
	return c.raddr == nil || c.remote.Addr == l.from && c.remote.Port == l.port
}

// Flush implements rdma.DatagramSink: it wakes the reader.
func (b *box) Flush() { b.conn.rd.poke() }

// open is for a socket that hears of arrivals. Until then everything comes through the endpoint.
func (b *box) open(c *UDPConn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.conn, b.counts = c, &c.stack.udp
	b.drained = c.ep.Readiness(waiter.ReadableEvents) == 0
}

// arrived is told that the endpoint has something. From then on nothing is put into the box until that is read.
func (b *box) arrived() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drained = false
}

// take removes the oldest datagram, or the oldest of the endpoint if the box is empty. conn.rd.mu is held.
func (b *box) take(buf []byte) (received, tcpip.Error) {
	if b.taken.first == nil {
		if r, terr, ok := b.fetch(buf); ok {
			return r, terr
		}
	}
	l, payload := b.taken.next()
	b.fill.Add(-charge(len(payload)))
	r := received{n: copy(buf, payload), total: len(payload), to: l.to, from: tcpip.FullAddress{NIC: nicID, Addr: l.from, Port: l.port}}
	b.taken.drop()
	return r, nil
}

// fetch gets what came. If that is nothing, it reports ok and what the endpoint has.
func (b *box) fetch(buf []byte) (r received, terr tcpip.Error, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.taken, b.came = b.came, sack{}
	if b.taken.first != nil {
		return r, nil, false
	}
	r, terr = b.conn.takeQueued(buf)
	b.drained = b.conn.ep.Readiness(waiter.ReadableEvents) == 0
	return r, terr, true
}

// close loses what has not been read and takes no more.
func (b *box) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed, b.came = true, sack{}
}
