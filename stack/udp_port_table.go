package stack

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rdma-netstack/rdma-netstack/link/rdma"
)

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

// slot is the entry of a port in single, or nil if its page is not allocated.
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

// keys are the table's keys for the socket: one per IP version of its family.
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
