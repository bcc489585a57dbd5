package rdma

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
)

// zeroWindow lets ACKs through to connections of ours whose receive window is shut.
//
// A window is announced in units of 2^scale bytes, and netstack rounds down: when the last few bytes of a window no longer
// make a unit it announces 0, taking back what it had granted. The peer may have sent them by then. netstack now finds
// every segment that follows out of its window, ACKs included, for these have the sequence number behind those bytes; and if
// the application reads nothing before it has written, as an echo server, its own data is never acknowledged and both ends
// wait for ever. (Linux rounds up, net/ipv4/tcp_output.c tcp_select_window, and its ACKs rely on the receiver being
// lenient to this degree, tcp_acceptable_seq.) So an ACK without data that is beyond a shut window by less than one unit gets the
// sequence number that netstack takes: it says the same.
type zeroWindow struct {
	count atomic.Int32 // of flows; 0 almost always, and then nothing below is touched

	mu    sync.Mutex
	flows map[tuple]uint32 // the ACK number sent with window 0, by outgoing flow
}

// tuple is the addresses and ports of a flow, the sender's first.
type tuple [36]byte

const (
	maxZeroWindows = 4096
	// maxUnit is the largest window unit, RFC 7323 section 2.3.
	maxWindowUnit = 1 << 14
)

// tupleOf reads the tuple of a segment with its IP header at h and its TCP header at tcp.
func tupleOf(etherType uint16, h, tcp []byte) (t tuple) {
	if etherType == typeIPv6 {
		copy(t[:32], h[8:ipv6Len])
	} else {
		copy(t[:4], h[12:16])
		copy(t[16:20], h[16:20])
	}
	copy(t[32:], tcp[:4])
	return t
}

// reversed is the tuple of the other direction.
func (t tuple) reversed() (r tuple) {
	copy(r[:16], t[16:32])
	copy(r[16:32], t[:16])
	copy(r[32:34], t[34:])
	copy(r[34:], t[32:34])
	return r
}

// sent takes note of an outgoing segment: its headers from Ethernet on.
func (s *zeroWindow) sent(frame []byte, l *layout) {
	tcp := frame[l.l4:]
	shut := tcp[14]|tcp[15] == 0 && tcp[13]&(flagACK|flagRST|flagSYN) == flagACK
	if !shut && s.count.Load() == 0 {
		return
	}
	key := tupleOf(l.etherType, frame[l.l3:], tcp)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !shut:
		delete(s.flows, key)
	case s.flows == nil || len(s.flows) >= maxZeroWindows:
		s.flows = map[tuple]uint32{}
		fallthrough
	default:
		s.flows[key] = binary.BigEndian.Uint32(tcp[8:])
	}
	s.count.Store(int32(len(s.flows)))
}

// received changes an incoming ACK where that is needed, and reports whether it did. The TCP checksum has been verified
// before.
func (s *zeroWindow) received(frame []byte, l *layout) bool {
	if s.count.Load() == 0 {
		return false
	}
	tcp := frame[l.l4:l.end]
	if tcp[13]&(flagsSpecial|flagFIN|flagACK) != flagACK || int(tcp[12]>>4)*4 != len(tcp) {
		return false
	}
	key := tupleOf(l.etherType, frame[l.l3:], tcp).reversed()
	s.mu.Lock()
	next, ok := s.flows[key]
	s.mu.Unlock()
	if beyond := binary.BigEndian.Uint32(tcp[4:]) - next; !ok || beyond == 0 || beyond >= maxWindowUnit {
		return false
	}
	binary.BigEndian.PutUint32(tcp[4:], next)
	return true
}

// outgoingTCP finds the headers of a TCP segment of the stack's own making.
func (l *layout) outgoingTCP(frame []byte) bool {
	if len(frame) < ethLen+ipv4Len+tcpLen {
		return false
	}
	l.l3 = ethLen
	switch l.etherType = binary.BigEndian.Uint16(frame[12:]); l.etherType {
	case typeIPv4:
		if l.proto = frame[ethLen+9]; binary.BigEndian.Uint16(frame[ethLen+6:])&0x3fff != 0 {
			return false
		}
		l.l4 = ethLen + int(frame[ethLen]&15)*4
	case typeIPv6:
		l.proto = frame[ethLen+6]
		l.l4 = ethLen + ipv6Len
	default:
		return false
	}
	return l.proto == protoTCP && len(frame) >= l.l4+tcpLen
}
