package tcpfix

import (
	"encoding/binary"
	"sync"
	"sync/atomic"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// zeroWindow has netstack take ACKs while its receive window is 0.
//
// Behaviour: a window is announced in units of 2^scale bytes, and netstack rounds down. When the
// last bytes of a window no longer make a unit it announces 0, which takes back what it had
// granted. The peer may have sent those bytes by then. netstack finds every segment that follows
// outside its window, ACKs included, as their sequence number is behind those bytes. If the
// application reads nothing before it has written, as an echo server, its own data is never
// acknowledged and both ends wait for ever. Linux rounds up (net/ipv4/tcp_output.c,
// tcp_select_window), and its ACKs rely on a receiver that accepts this (tcp_acceptable_seq).
//
// Fix: an ACK without data that is less than one unit beyond a zero window gets the sequence number
// that netstack expects. It says the same.
//
// Upstream: no issue is known. No longer needed when netstack takes such an ACK itself.
// TestZeroWindow compares what is changed; no test shows netstack's part.
type zeroWindow struct {
	count atomic.Int32 // len(flows); 0 almost always, and then nothing below is touched

	mu    sync.Mutex
	flows map[hdr.Tuple]uint32 // the ACK number sent with window 0, by outgoing flow
}

const (
	maxZeroWindows = 4096
	// maxWindowUnit is the largest window unit, RFC 7323 section 2.3.
	maxWindowUnit = 1 << 14
)

// sent takes note of an outgoing segment.
func (z *zeroWindow) sent(s *hdr.Segment) {
	const mask = hdr.FlagACK | hdr.FlagRST | hdr.FlagSYN
	zero := s.Window() == 0 && s.Flags()&mask == hdr.FlagACK
	if !zero && z.count.Load() == 0 {
		return
	}
	key, _ := s.Flow()
	z.mu.Lock()
	defer z.mu.Unlock()
	switch {
	case !zero:
		delete(z.flows, *key)
	case z.flows == nil || len(z.flows) >= maxZeroWindows:
		z.flows = map[hdr.Tuple]uint32{}
		fallthrough
	default:
		_, z.flows[*key] = hdr.Numbers(s.TCP())
	}
	z.count.Store(int32(len(z.flows)))
}

// received changes an incoming ACK where that is needed, and reports whether it did.
func (z *zeroWindow) received(s *hdr.Segment) bool {
	const mask = hdr.FlagsSpecial | hdr.FlagFIN | hdr.FlagACK
	if z.count.Load() == 0 || s.Flags()&mask != hdr.FlagACK || s.Payload != 0 {
		return false
	}
	key, _ := s.Flow()
	z.mu.Lock()
	next, ok := z.flows[*key]
	z.mu.Unlock()
	seq, _ := hdr.Numbers(s.TCP())
	if beyond := seq - next; !ok || beyond == 0 || beyond >= maxWindowUnit {
		return false
	}
	binary.BigEndian.PutUint32(s.TCP()[4:], next)
	return true
}
