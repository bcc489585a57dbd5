package stack

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rdma-netstack/rdma-netstack/link/rdma"
)

// boxes is all sockets that datagrams can be put to directly, by version of IP and port. Sockets that share a port (ReusePort) are not
// among them, so that there is more than one to a port only if these are bound to different addresses; then netstack chooses.
type boxes struct {
	mu   sync.Mutex
	open map[boxKey][]*box // guarded by mu

	// only is read by the link without a lock: the box of a port that has only one. Pages of it are made when needed.
	only [2][256]atomic.Pointer[[256]atomic.Pointer[box]]
}

type boxKey struct {
	v6   bool
	port uint16
}

// find implements what rdma.Endpoint.SetDatagramSinks wants.
func (s *boxes) find(v6 bool, port uint16) rdma.DatagramSink {
	if b := s.slot(boxKey{v6, port}); b != nil {
		if b := b.Load(); b != nil {
			return b
		}
	}
	return nil
}

// slot is where the box of a port is, or nil if there never was one near.
func (s *boxes) slot(k boxKey) *atomic.Pointer[box] {
	page := s.page(k).Load()
	if page == nil {
		return nil
	}
	return &page[k.port&0xff]
}

func (s *boxes) page(k boxKey) *atomic.Pointer[[256]atomic.Pointer[box]] {
	if k.v6 {
		return &s.only[1][k.port>>8]
	}
	return &s.only[0][k.port>>8]
}

// add is for a socket that is bound.
func (s *boxes) add(b *box) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.open = make(map[boxKey][]*box)
	}
	for _, k := range b.keys() {
		if page := s.page(k); page.Load() == nil {
			page.Store(new([256]atomic.Pointer[box]))
		}
		s.open[k] = append(s.open[k], b)
		s.choose(k)
	}
}

// remove is for a socket about to be closed.
func (s *boxes) remove(b *box) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range b.keys() {
		s.open[k] = slices.DeleteFunc(s.open[k], func(o *box) bool { return o == b })
		s.choose(k)
	}
}

// choose fills the slot of k in. mu is held.
func (s *boxes) choose(k boxKey) {
	switch at, open := s.slot(k), s.open[k]; len(open) {
	case 0:
		delete(s.open, k)
		at.Store(nil)
	case 1:
		at.Store(open[0])
	default:
		at.Store(nil)
	}
}

// keys are those of the socket's family.
func (b *box) keys() []boxKey {
	port := b.conn.local.Port
	switch b.conn.family {
	case inet4:
		return []boxKey{{false, port}}
	case inet6:
		return []boxKey{{true, port}}
	}
	return []boxKey{{false, port}, {true, port}}
}
