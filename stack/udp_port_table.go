package stack

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rdma-netstack/rdma-netstack/link/rdma"
)

// udpPortTable is all sockets that datagrams can be put to directly, by version of IP and port. Sockets that share a port (ReusePort) are not
// among them, so that there is more than one to a port only if these are bound to different addresses; then netstack chooses.
type udpPortTable struct {
	mu      sync.Mutex
	sockets map[udpPortKey][]*udpRxQueue // guarded by mu

	// single is read by the link without a lock: the box of a port that has only one. Pages of it are made when needed.
	single [2][256]atomic.Pointer[[256]atomic.Pointer[udpRxQueue]]
}

type udpPortKey struct {
	v6   bool
	port uint16
}

// find implements what rdma.Endpoint.SetDatagramSinks wants.
func (s *udpPortTable) find(v6 bool, port uint16) rdma.DatagramSink {
	if b := s.slot(udpPortKey{v6, port}); b != nil {
		if b := b.Load(); b != nil {
			return b
		}
	}
	return nil
}

// slot is where the box of a port is, or nil if there never was one near.
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

// add is for a socket that is bound.
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

// remove is for a socket about to be closed.
func (s *udpPortTable) remove(b *udpRxQueue) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range b.keys() {
		s.sockets[k] = slices.DeleteFunc(s.sockets[k], func(o *udpRxQueue) bool { return o == b })
		s.update(k)
	}
}

// update fills the slot of k in. mu is held.
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

// keys are those of the socket's family.
func (b *udpRxQueue) keys() []udpPortKey {
	port := b.conn.local.Port
	switch b.conn.family {
	case inet4:
		return []udpPortKey{{false, port}}
	case inet6:
		return []udpPortKey{{true, port}}
	}
	return []udpPortKey{{false, port}, {true, port}}
}
