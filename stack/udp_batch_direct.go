package stack

import (
	"net/netip"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/rdma-netstack/rdma-netstack/link/rdma"
)

// maxBatch is how many datagrams one doorbell is rung for at most.
const maxBatch = 64

// ReadBatchAddrPort waits for one datagram and then takes as many as have arrived, at most as many as there are buffers and addresses. A
// datagram fills its buffer up to the buffer's capacity, which is cut or extended to what came; what does not fit is lost. It returns how many it took.
// Addresses are as of [UDPConn.ReadFromUDPAddrPort].
func (c *UDPConn) ReadBatchAddrPort(bufs [][]byte, from []netip.AddrPort) (int, error) {
	limit := min(len(bufs), len(from))
	if limit == 0 {
		return 0, nil
	}
	c.rd.mu.Lock()
	defer c.rd.mu.Unlock()
	r, err := c.receiveLocked(bufs[0][:cap(bufs[0])], "recvmmsg")
	if err != nil {
		return 0, c.readError(err)
	}
	for n := 0; ; {
		bufs[n], from[n] = bufs[n][:r.n], c.family.addrPort(r.from, c.stack.zone(r.from.Addr))
		if n++; n == limit {
			return n, nil
		}
		var terr tcpip.Error
		if r, terr = c.take(bufs[n][:cap(bufs[n])]); terr != nil {
			return n, nil // an error, if it is one, is the next call's
		}
	}
}

// WriteBatchAddrPort sends each buffer to the address of the same number, in order and, where nothing is in the way of that, with one turn of the NIC.
// It returns how many were sent; the error is that of the next one, as of [UDPConn.WriteToUDPAddrPort].
func (c *UDPConn) WriteBatchAddrPort(bufs [][]byte, to []netip.AddrPort) (int, error) {
	o := batchScratchPool.Get().(*batchScratch)
	defer batchScratchPool.Put(o)
	limit := min(len(bufs), len(to))
	for sent := 0; ; {
		if sent += c.writeDirect(o, bufs[sent:limit], to[sent:limit]); sent == limit {
			return sent, nil
		}
		if _, err := c.WriteToUDPAddrPort(bufs[sent], to[sent]); err != nil {
			return sent, err
		}
		sent++
	}
}

// batchScratch is scratch memory of a batch.
type batchScratch struct {
	headers   [maxBatch][maxHeaders]byte
	datagrams [maxBatch]rdma.Datagram
}

var batchScratchPool = sync.Pool{New: func() any { return new(batchScratch) }}

// writeDirect sends the first datagrams of a batch directly, up to one whose headers are not ready or that is refused, and returns how many it sent.
func (c *UDPConn) writeDirect(o *batchScratch, bufs [][]byte, to []netip.AddrPort) int {
	if c.stack.datagrams == nil || c.raddr != nil || c.check(&c.wr) != nil {
		return 0
	}
	r := &c.routes
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.epoch != c.stack.epoch.Load() {
		return 0
	}
	n, now := 0, time.Now()
	for n < min(len(bufs), maxBatch) && c.addDirect(o, n, bufs[n], to[n], now) {
		n++
	}
	ds := o.datagrams[:n]
	sent, err := c.stack.datagrams.WriteDatagrams(ds)
	clear(ds) // the payloads are the caller's
	c.stack.udp.PacketsSent.IncrementBy(uint64(sent))
	if _, full := err.(*tcpip.ErrNoBufferSpace); full { // lost, as of send
		c.stack.udp.PacketSendErrors.Increment()
		sent++
	}
	return sent
}

// addDirect makes b, for the address to, datagram i of the batch; false if it is not for the direct way. routes.mu is held for reading.
func (c *UDPConn) addDirect(o *batchScratch, i int, b []byte, to netip.AddrPort, now time.Time) bool {
	a, err := c.destinationAddrPort(to)
	if err != nil || c.checkSend(b, a) != 0 {
		return false
	}
	p := c.routes.routes[routeKey{c.source(a), a.Addr}]
	if p == nil {
		return false
	}
	n := header.UDPMinimumSize + len(b)
	h := p.freshTemplate(n, now)
	if h == nil {
		return false
	}
	o.datagrams[i] = rdma.Datagram{Headers: c.fillHeaders(h, &o.headers[i], a.Port, n), Payload: b}
	return true
}
