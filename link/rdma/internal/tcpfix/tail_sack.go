package tcpfix

import (
	"encoding/binary"

	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// Behaviour: where a whole flight is lost netstack's tail loss probe sends the last segment again.
// The SACK of it has RACK (RFC 8985) find that all others are lost, which begins a fast recovery.
// In that, a segment counts as lost only if SACK tells of two segments behind it, or of three
// blocks (RFC 6675 section 4; transport/tcp/snd.go SetPipe): here all count as in flight, more than
// the window. One is sent again, and after the timeout two each: see go_back.go. 50 ms without a
// path cost a transfer of 3 MB/s, with a window of 256 KiB, 15 s.
//
// Fix: after something was sent again, a SACK option that tells of less than that is taken out
// while far more is missing. The timeout comes then, and netstack goes on in slow start, until all
// of the flight is acknowledged without such SACK. RFC 2018 section 4 lets a receiver of data send
// none.
//
// Not reported upstream. No longer needed when TestGoBackOfNetstack fails.

// tailFlight is from how many segments in flight on that is done.
const tailFlight = 8

// onWire is how much of a packet with size bytes a frame carries.
func onWire(pkt *gstack.PacketBuffer, size uint32) uint32 {
	if gso := &pkt.GSOOptions; gso.Type != gstack.GSONone {
		return min(size, uint32(gso.MSS))
	}
	return size
}

// hideTail overwrites the SACK option of a segment if netstack is better off without.
func (f *resendFlow) hideTail(s *hdr.Segment) (hidden bool) {
	sack := s.Options().SACK
	_, ack := hdr.Numbers(s.TCP())
	if sack == nil || len(sack) >= 2+3*8 ||
		!f.back.on && int32(f.end-ack) < int32(tailFlight*f.mss) {
		return false
	}
	sum := uint32(0)
	for b := sack[2:]; len(b) >= 8; b = b[8:] {
		from, to := binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])
		if !hdr.Before(ack, from) || hdr.Before(f.end, to) {
			return false // a duplicate's (RFC 2883), or of data not known here
		}
		sum += to - from
	}
	if sum >= 2*f.mss {
		return false
	}
	for i := range sack {
		sack[i] = hdr.OptNop
	}
	return true
}
