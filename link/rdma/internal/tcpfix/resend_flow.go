package tcpfix

import (
	"encoding/binary"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

const (
	// resendWait is how long after the last data or acknowledgement something is sent again, plus
	// two round trips; twice as long each time that nothing comes of it, up to maxResendWait. It is
	// longer than netstack's first timeout.
	resendWait    = 250 * time.Millisecond
	firstWait     = time.Second // while no round trip is known: RFC 6298 section 2.1
	maxResendWait = time.Minute // RFC 6298 section 2.5
	// maxResends is how often the same data is sent again, as netstack does by default (TCP_RETR2).
	maxResends = 15
)

// resendFlow is the data of one flow that the peer has not acknowledged. The shard's mutex guards
// it.
type resendFlow struct {
	parts []resendPart // in order of sequence numbers
	// what comes before is acknowledged, once told; until then the first sent
	una   uint32
	end   uint32              // of what was sent
	told  bool                // the peer has acknowledged something
	moved tcpip.MonotonicTime // when data was sent, or some acknowledged
	tries int                 // since the peer acknowledged something
	due   bool                // to be sent now
	rtt   time.Duration       // the shortest; 0: not known

	ack    uint32 // sent last
	window uint16
	stamp  uint32 // timestamp sent last; 0: none
	echo   uint32
	at     tcpip.MonotonicTime // when that was

	ackAt     tcpip.MonotonicTime // when the peer sent an acknowledgement last
	mss       uint32              // the most that a packet on the wire has carried
	dataAt    tcpip.MonotonicTime // when netstack sent data last
	dataStamp uint32              // with this timestamp; 0: none
	own       bool                // what is sent next comes from here, not from netstack
	back      goBack
	round     round
}

// resendPart is a packet with data, and a reference to it.
type resendPart struct {
	seq, end uint32
	pkt      *gstack.PacketBuffer
}

// note remembers what the header of an outgoing segment tells the peer.
func (f *resendFlow) note(s *hdr.Segment, now tcpip.MonotonicTime) {
	_, f.ack = hdr.Numbers(s.TCP())
	f.window = s.Window()
	if stamp := s.Options().Timestamp; stamp != nil {
		f.stamp, f.at = binary.BigEndian.Uint32(stamp[2:]), now
		f.echo = binary.BigEndian.Uint32(stamp[6:])
		if s.Payload > 0 && !f.own {
			f.dataStamp = f.stamp
		}
	}
	if s.Payload > 0 && !f.own {
		f.dataAt, f.round.size = now, 0
	}
	f.own = false
}

// add takes a reference to a packet with data, unless there is one that has it.
func (f *resendFlow) add(pkt *gstack.PacketBuffer, seq, size uint32, now tcpip.MonotonicTime) {
	end, at := seq+size, len(f.parts)
	f.moved, f.mss = now, max(f.mss, onWire(pkt, size))
	if !f.told && hdr.Before(seq, f.una) {
		f.una = seq
	}
	if hdr.Before(f.end, end) {
		f.end = end
	}
	for at > 0 && hdr.Before(seq, f.parts[at-1].end) {
		at--
	}
	old := at < len(f.parts) && !hdr.Before(seq, f.parts[at].seq) &&
		!hdr.Before(f.parts[at].end, end)
	if !old && hdr.Before(f.una, end) && len(f.parts) < maxResendParts {
		f.parts = append(f.parts, resendPart{})
		copy(f.parts[at+1:], f.parts[at:])
		f.parts[at] = resendPart{seq, end, pkt.IncRef()}
	}
}

// acknowledged lets go of what a segment of the peer's acknowledges, and reports whether that is
// anything new.
func (f *resendFlow) acknowledged(s *hdr.Segment, now tcpip.MonotonicTime) bool {
	_, ack := hdr.Numbers(s.TCP())
	if f.told && !hdr.Before(f.una, ack) || hdr.Before(f.end, ack) {
		return false
	}
	f.una, f.told, f.moved, f.tries = ack, true, now, 0
	n := 0
	for n < len(f.parts) && !hdr.Before(ack, f.parts[n].end) {
		n++
	}
	f.release(n)
	if stamp := s.Options().Timestamp; stamp != nil && f.stamp != 0 {
		ms := int32(f.stampAt(now) - binary.BigEndian.Uint32(stamp[6:]))
		f.measure(time.Duration(ms) * time.Millisecond)
	}
	return true
}

// measure takes note of a round trip. What a peer echoes after an acknowledgement was lost makes it
// too long.
func (f *resendFlow) measure(rtt time.Duration) {
	if rtt = max(rtt, time.Millisecond); f.rtt == 0 || rtt < f.rtt {
		f.rtt = rtt
	}
}

// release lets go of the first n packets.
func (f *resendFlow) release(n int) {
	for i := range f.parts[:n] {
		f.parts[i].pkt.DecRef()
	}
	left := copy(f.parts, f.parts[n:])
	clear(f.parts[left:])
	f.parts = f.parts[:left]
}

// wait is how long the flow may stand still.
func (f *resendFlow) wait() time.Duration {
	d := firstWait
	if f.rtt > 0 {
		d = resendWait + 2*f.rtt
	}
	return min(d<<f.tries, maxResendWait)
}

// stampAt is the timestamp that netstack would send now: it counts milliseconds.
func (f *resendFlow) stampAt(now tcpip.MonotonicTime) uint32 {
	return f.stamp + uint32(now.Sub(f.at).Milliseconds())
}

// update writes what is new in the header of a segment sent again.
func (f *resendFlow) update(frame []byte, l *hdr.Packet, seq uint32, now tcpip.MonotonicTime) {
	tcp := frame[l.L4:]
	binary.BigEndian.PutUint32(tcp[4:], seq)
	binary.BigEndian.PutUint32(tcp[8:], f.ack)
	binary.BigEndian.PutUint16(tcp[14:], f.window)
	if stamp := hdr.OptionsOf(tcp).Timestamp; stamp != nil {
		binary.BigEndian.PutUint32(stamp[2:], f.stampAt(now))
		binary.BigEndian.PutUint32(stamp[6:], f.echo)
	}
}
