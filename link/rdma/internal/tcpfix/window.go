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
// Upstream: docs/upstream/13-window-taken-back.md. No longer needed when TestWindowTakenBack fails.
type zeroWindow struct {
	count atomic.Int32 // len(flows); 0 almost always, and then nothing below is touched

	mu    sync.Mutex
	flows map[hdr.Tuple]uint32 // the ACK number sent with window 0, by outgoing flow
}

const (
	maxZeroWindows = 4096
	// maxWindowUnit gives the largest window unit, RFC 7323 section 2.3.
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

// narrowWindow has netstack send again what does not fit a window that has become smaller.
//
// Behaviour: netstack takes the window of every acknowledgement, of one that others have overtaken
// too (RFC 9293 section 3.10.7.4 has it compare SND.WL1 and SND.WL2). A window may also take back
// what was granted, when the peer rounds it down or lowers it. While something is in flight
// netstack sends a segment only if all of it fits, or one of the maximum size does
// (transport/tcp/snd.go maybeSendSegment), lost segments too. After a timeout that sends nothing no
// timer is armed: nothing counts as in flight, and only a window of 0 is probed. If the peer has
// nothing to say the connection stands still for good.
//
// Fix: a window that is smaller than a segment and than what has been sent is raised to a segment,
// or to what has been sent if that is less. RFC 9293 section 3.8.6 has what was sent before the
// window was lowered sent again. It is not raised further: netstack takes the window of an
// overtaken acknowledgement from the latest one on, where the peer may have no room. A netstack
// that keeps what comes beyond its window has no memory left for what is missing.
//
// Upstream: docs/upstream/08-window-order.md. No longer needed when the row "an acknowledgement
// that was overtaken has a small window" of tests/conformance/tcp passes without it.
type narrowWindow struct {
	// limit is above every window field that means less than a segment with any peer so far.
	limit atomic.Uint32
	// peers has, by hash: 32 bits of it, whether SACK is permitted, the MSS, the window's scale.
	peers []atomic.Uint64
}

const (
	narrowPeers = 1 << 14 // a power of two; of two flows in one place the later stays
	narrowSACK  = 1 << 24 // of a peer
)

func (n *narrowWindow) open() { n.peers = make([]atomic.Uint64, narrowPeers) }

// received raises the window of a segment where that is needed, and reports whether it did. r knows
// what was sent.
func (n *narrowWindow) received(s *hdr.Segment, r *resender) bool {
	window := uint32(s.Window())
	if s.Flags()&(hdr.FlagSYN|hdr.FlagRST) != 0 {
		if s.Flags()&hdr.FlagSYN != 0 {
			n.begins(s)
		}
		return false
	}
	if window >= n.limit.Load() || window == 0 || s.Flags()&hdr.FlagACK == 0 {
		return false
	}
	_, hash := s.Flow()
	peer := n.peers[hash&(narrowPeers-1)].Load()
	end, known := r.end(hash)
	if !known || peer>>32 != hash>>32 {
		return false
	}
	mss, scale := uint32(peer>>8&0xffff), peer&0xff
	_, ack := hdr.Numbers(s.TCP())
	least := min(mss, end-ack)
	if !hdr.Before(ack, end) || window<<scale >= least {
		return false
	}
	binary.BigEndian.PutUint16(s.TCP()[14:], uint16((least-1)>>scale+1))
	return true
}

// begins takes note of a SYN or SYN-ACK.
func (n *narrowWindow) begins(s *hdr.Segment) {
	mss, scale, sack := hdr.SYNOptions(s.TCP())
	_, hash := s.Flow()
	peer := hash>>32<<32 | uint64(mss)<<8 | uint64(scale)
	if sack {
		peer |= narrowSACK
	}
	n.peers[hash&(narrowPeers-1)].Store(peer)
	for limit := uint32(mss)>>scale + 1; ; {
		old := n.limit.Load()
		if limit <= old || n.limit.CompareAndSwap(old, limit) {
			return
		}
	}
}

// sackPermitted reports whether the SYN of a flow's peer is known to have permitted SACK.
func (n *narrowWindow) sackPermitted(hash uint64) bool {
	peer := n.peers[hash&(narrowPeers-1)].Load()
	return peer>>32 == hash>>32 && peer&narrowSACK != 0
}
