package rdma

import (
	"encoding/binary"
	"sync"

	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// Flow is a TCP connection or the flow of a connected UDP socket, seen from here. Addresses of IPv4
// have 4 bytes.
type Flow struct {
	Proto                 uint8 // of IP: 6 or 17
	Local, Remote         tcpip.Address
	LocalPort, RemotePort uint16
}

// Flows is a set of flows. The zero value and nil are empty; its methods may be called at the same
// time.
type Flows struct {
	mu    sync.RWMutex
	all   map[Flow]struct{}
	noted int // by note
}

// maxNoted bounds what note adds: a flood of SYNs.
const maxNoted = 1 << 16

// Add adds a flow.
func (s *Flows) Add(f Flow) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(f)
}

func (s *Flows) add(f Flow) {
	if s.all == nil {
		s.all = map[Flow]struct{}{}
	}
	s.all[f] = struct{}{}
}

// note adds a flow that begins. Beyond maxNoted it does nothing.
func (s *Flows) note(f Flow) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.noted < maxNoted {
		s.noted++
		s.add(f)
	}
}

// Remove removes a flow, if it is there.
func (s *Flows) Remove(f Flow) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, f)
}

// Has says whether a flow is in the set.
func (s *Flows) Has(f Flow) bool {
	if s == nil {
		return false
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	_, has := s.all[f]
	return has
}

// All returns the flows, in no order.
func (s *Flows) All() []Flow {
	s.mu.RLock()
	defer s.mu.RUnlock()
	all := make([]Flow, 0, len(s.all))
	for f := range s.all {
		all = append(all, f)
	}
	return all
}

// flowOf is the flow of a received TCP segment or datagram.
func flowOf(frame []byte, l *hdr.Packet) Flow {
	src, dst, size := l.L3+12, l.L3+16, 4
	if l.EtherType == hdr.TypeIPv6 {
		src, dst, size = l.L3+8, l.L3+24, 16
	}
	return Flow{
		Proto:      l.Proto,
		Local:      tcpip.AddrFromSlice(frame[dst:][:size]),
		Remote:     tcpip.AddrFromSlice(frame[src:][:size]),
		LocalPort:  binary.BigEndian.Uint16(frame[l.L4+2:]),
		RemotePort: binary.BigEndian.Uint16(frame[l.L4:]),
	}
}
