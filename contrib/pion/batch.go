package pion

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// Batch says when a [BatchConn] sends. The zero value stands for 64 packets and 1 ms.
type Batch struct {
	Size int           // packets that are sent together, at most
	Wait time.Duration // how long a packet waits for others, at most
}

// BatchConn sends what is written to it many packets at a time, with one doorbell, for ICE's UDP
// mux and other servers that send each packet by a WriteTo. Reads are the socket's. Its methods may
// be called from any goroutine.
type BatchConn struct {
	net.PacketConn
	socket *stack.UDPConn
	wait   time.Duration
	lost   atomic.Uint64

	mu       sync.Mutex
	timer    *time.Timer     // guarded by mu, as all below
	messages []stack.Message // with memory of their own
	n        int             // that are to be sent
	closed   bool
}

// NewBatchConn takes the socket over, which is not connected: close the BatchConn instead.
func NewBatchConn(c *stack.UDPConn, b Batch) *BatchConn {
	if b.Size <= 0 {
		b.Size = 64
	}
	if b.Wait <= 0 {
		b.Wait = time.Millisecond
	}
	all := make([]stack.Message, b.Size)
	for i := range all {
		all[i].Buffers, all[i].Addr = make([][]byte, 1), new(net.UDPAddr)
	}
	s := &BatchConn{PacketConn: c, socket: c, wait: b.Wait, messages: all}
	s.mu.Lock() // Flush runs at once if this goroutine runs late
	defer s.mu.Unlock()
	s.timer = time.AfterFunc(b.Wait, s.Flush)
	s.timer.Stop()
	return s
}

// WriteTo implements net.PacketConn. It copies both, and sends now or within Batch.Wait; what the
// socket then refuses is counted, see [BatchConn.Lost].
func (s *BatchConn) WriteTo(b []byte, addr net.Addr) (int, error) {
	to, ok := addr.(*net.UDPAddr)
	if !ok || !s.addPacket(b, to.IP, to.Port, to.Zone) {
		return s.socket.WriteTo(b, addr)
	}
	return len(b), nil
}

// WriteToAddrPort does what WriteTo does, and allocates nothing: ICE's mux prefers it.
func (s *BatchConn) WriteToAddrPort(b []byte, to netip.AddrPort) (int, error) {
	a := to.Addr().As16()
	if !s.addPacket(b, a[:], int(to.Port()), to.Addr().Zone()) {
		return s.socket.WriteToUDPAddrPort(b, to)
	}
	return len(b), nil
}

// ReadFromAddrPort does what ReadFrom does, and allocates nothing: ICE's mux prefers it.
func (s *BatchConn) ReadFromAddrPort(b []byte) (int, netip.AddrPort, error) {
	return s.socket.ReadFromUDPAddrPort(b)
}

// addPacket adds a packet to the batch. It does not once the conn is closed.
func (s *BatchConn) addPacket(b, ip []byte, port int, zone string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	m := &s.messages[s.n]
	m.Buffers[0] = append(m.Buffers[0][:0], b...)
	a := m.Addr.(*net.UDPAddr)
	a.IP, a.Port, a.Zone = append(a.IP[:0], ip...), port, zone
	switch s.n++; s.n {
	case len(s.messages):
		s.sendBatch()
	case 1:
		s.timer.Reset(s.wait)
	}
	return true
}

// Flush sends what waits.
func (s *BatchConn) Flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sendBatch()
}

// sendBatch sends what waits, but for what the socket refuses. mu is held.
func (s *BatchConn) sendBatch() {
	s.timer.Stop()
	for rest := s.messages[:s.n]; len(rest) > 0; {
		n, err := s.socket.WriteBatch(rest, 0)
		rest = rest[n:]
		if err != nil {
			s.lost.Add(1)
			rest = rest[1:]
		}
	}
	s.n = 0
}

// Lost returns how many packets the socket has refused to send.
func (s *BatchConn) Lost() uint64 { return s.lost.Load() }

// Close sends what waits and closes the socket.
func (s *BatchConn) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sendBatch()
	s.closed = true
	return s.socket.Close()
}
