package tcpfix

import (
	"encoding/binary"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// synSlots is for how many connections there is room, a power of two.
const synSlots = 1024

// synTable keeps a T for each of some connections, by the hash of their flow: of two in one slot
// the later stays. mu guards it.
type synTable[T any] struct {
	mu    sync.Mutex
	slots []synSlot[T]
}

// synSlot is what is kept of one connection.
type synSlot[T any] struct {
	key uint64 // see slot; 0: free
	of  T
}

func newSYNTable[T any]() synTable[T] { return synTable[T]{slots: make([]synSlot[T], synSlots)} }

// slot finds the slot of a segment's flow, and the key it has if it is that flow's. mu is held.
func (x *synTable[T]) slot(s *hdr.Segment) (*synSlot[T], uint64) {
	_, hash := s.Flow()
	key := hash | 1
	return &x.slots[key>>32&(synSlots-1)], key
}

// since returns a function that returns how long ago now is.
func since(clock tcpip.Clock) func() time.Duration {
	start := clock.NowMonotonic()
	return func() time.Duration { return clock.NowMonotonic().Sub(start) }
}

// changeHeader has change write to the TCP header of an outgoing segment, and makes good its
// checksum (RFC 1624), which the NIC computes anew where it was asked to.
func changeHeader(s *hdr.Segment, change func(tcp []byte)) {
	tcp := s.TCP()[:int(s.TCP()[12]>>4)*4]
	before := checksum.Checksum(tcp, 0)
	change(tcp)
	sum := checksum.Combine(^binary.BigEndian.Uint16(tcp[16:]), ^before)
	binary.BigEndian.PutUint16(tcp[16:], ^checksum.Combine(sum, checksum.Checksum(tcp, 0)))
}
