package stack

import (
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/net/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/rdma-netstack/rdma-netstack/link/rdma"
)

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
