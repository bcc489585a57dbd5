package tcpfix

import (
	"encoding/binary"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// Behaviour: after a timeout netstack sends again from the first unacknowledged segment on, a few
// at first (slow start). The acknowledgement of that segment has RACK (RFC 8985) find that
// everything sent before it is lost, which begins a fast recovery, although the timeout has begun
// one: the congestion window becomes 0.7 of what little it is. In it all segments count as in
// flight, for only what SACK tells makes them lost there (transport/tcp/snd.go SetPipe): more than
// the window, so that one segment is sent, and then nothing until the next timeout. After an outage
// a flight of 700 segments is repaired by two segments each timeout.
//
// Fix: after a timeout, and once the link carries frames again, the timestamp that an
// acknowledgement of the flight echoes is made older than the retransmission, until all of the
// flight is acknowledged. RACK takes no account of such an acknowledgement of a segment sent twice
// (section 6.2 step 2), and netstack goes on in slow start. The round trip is measured that much
// too long, and TCP.SpuriousRecovery counts a recovery that was not (RFC 3522).
//
// Not reported upstream. No longer needed when TestGoBackOfNetstack fails.

// echoAge is by how many ms the echo is made older. netstack rounds the time of a segment and its
// timestamp each by itself.
const echoAge = 2

// timeoutGap is the least time between two timeouts of a segment: netstack's retransmission timer
// doubles, from 120 ms by default.
const timeoutGap = 100 * time.Millisecond

// answerGap is longer than netstack takes to send again what an acknowledgement shows to be lost.
const answerGap = 10 * time.Millisecond

// goBack is the state of that for one flow.
type goBack struct {
	on    bool
	end   uint32 // of what was sent before
	stamp uint32 // of netstack's copy of the first segment; 0: that is acknowledged
}

// linkUp notes that the link carries frames again.
func (f *resendFlow) linkUp() {
	f.tries, f.due = 0, true
	if !f.back.on {
		f.goBack()
	}
}

// timedOut reports whether netstack sends data from seq on again because of a timeout, as far as is
// known: it is what the peer waits for, netstack has sent nothing for a while, and no
// acknowledgement has had it do so.
func (f *resendFlow) timedOut(seq uint32, now tcpip.MonotonicTime) bool {
	return !f.own && !hdr.Before(f.una, seq) && now.Sub(f.dataAt) >= timeoutGap &&
		now.Sub(f.ackAt) >= answerGap
}

// goBack has echoes made older. What netstack has sent again in vain begins with the flow's first
// segment after a timeout, and is the last after a tail loss probe alone.
func (f *resendFlow) goBack() {
	if f.dataStamp != 0 && len(f.parts) > 0 && !hdr.Before(f.una, f.parts[0].seq) &&
		hdr.Before(f.parts[0].end, f.end) {
		f.back = goBack{true, f.end, f.dataStamp}
	}
}

// age makes the timestamp that an acknowledgement echoes older, and reports whether it did.
func (b *goBack) age(s *hdr.Segment) bool {
	if !b.on || s.Flags()&hdr.FlagACK == 0 {
		return false
	}
	if _, ack := hdr.Numbers(s.TCP()); !hdr.Before(ack, b.end) {
		b.on = false
		return false
	}
	stamp := s.Options().Timestamp
	if stamp == nil {
		return false
	}
	echo := binary.BigEndian.Uint32(stamp[6:])
	if b.stamp != 0 && hdr.Before(b.stamp, echo) {
		echo = b.stamp // netstack's copy of the segment is older than the one that came
	}
	b.stamp = 0
	binary.BigEndian.PutUint32(stamp[6:], echo-echoAge)
	return true
}
