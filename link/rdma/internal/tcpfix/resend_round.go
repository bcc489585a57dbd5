package tcpfix

import (
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// Behaviour: what RACK took for lost before a timeout stays marked (segment.lost), and any later
// acknowledgement finds it and begins a fast recovery, with an older echo, too, see goBack. In it
// netstack sends nothing as long as more counts as in flight than the window. Each acknowledgement
// of what is sent from here sets its timer anew, so that this does not expire either: one segment
// was sent again each 250 ms. A port of a bond that was gone for 0.1 s stopped one of 16 transfers
// for up to 50 s.
//
// Fix: while netstack answers acknowledgements of such a flight with nothing, it is sent again from
// here, as far as it was kept: one segment, and twice as many each time that all of them have been
// acknowledged (slow start, RFC 5681 section 3.1).
//
// Not reported upstream. No longer needed when TestGoBackOfNetstack fails.

// maxRound bounds the segments of a round: what a peer's smallest usual window holds.
const maxRound = 32

// round is what is sent again from here at once.
type round struct {
	size int    // segments; 0: there was none since netstack has sent data
	end  uint32 // of what was sent
}

// stuck reports whether netstack has let pass the acknowledgement of all that was sent in the round
// before without sending anything, in a flight that it has to send again.
func (f *resendFlow) stuck(now tcpip.MonotonicTime) bool {
	return f.back.on && f.told && f.tries == 0 && len(f.parts) > 0 &&
		!hdr.Before(f.una, f.parts[0].seq) && f.dataAt.Before(f.moved) &&
		(f.round.size == 0 || !hdr.Before(f.una, f.round.end)) && now.Sub(f.moved) >= answerGap
}

// begin makes the next round larger if all of the one before was acknowledged.
func (r *round) begin(larger bool) (size int) {
	if r.size = min(2*r.size, maxRound); !larger || r.size == 0 {
		r.size = 1
	}
	return r.size
}

// first makes a packet of the first segment that is not acknowledged, with which a round begins;
// nil: there is none any more.
func (f *resendFlow) first(now tcpip.MonotonicTime) *gstack.PacketBuffer {
	if len(f.parts) == 0 {
		return nil
	}
	f.round.end = f.una
	if hdr.Before(f.una, f.parts[0].seq) {
		f.round.end = f.parts[0].seq
	}
	return f.next(now)
}

// next makes a packet of the segment behind those of the round; nil: it is not kept.
func (f *resendFlow) next(now tcpip.MonotonicTime) *gstack.PacketBuffer {
	if hdr.Before(f.round.end, f.una) {
		f.round.end = f.una
	}
	for i := range f.parts {
		if p := &f.parts[i]; hdr.Before(f.round.end, p.end) {
			if hdr.Before(f.round.end, p.seq) {
				return nil
			}
			return f.segment(p, int(f.round.end-p.seq), now)
		}
	}
	return nil
}

// segment makes a packet of what a part has behind skip bytes. It has the ACK number and the window
// sent last, as the peer may take an older window for a new one.
func (f *resendFlow) segment(p *resendPart, skip int,
	now tcpip.MonotonicTime) *gstack.PacketBuffer {
	f.own = true
	data := p.pkt.Data().AsRange().SubRange(skip)
	if mss := int(p.pkt.GSOOptions.MSS); p.pkt.GSOOptions.Type != gstack.GSONone &&
		data.Size() > mss {
		data = data.Capped(mss)
	}
	payload := data.ToSlice()
	frame := append(append([]byte(nil), hdr.SentHeaders(p.pkt)[:p.pkt.HeaderSize()]...), payload...)
	var l hdr.Packet
	l.ParseSent(frame)
	f.update(frame, &l, p.seq+uint32(skip), now)
	f.round.end = p.end // with a FIN, which is not data
	if skip+len(payload) < p.pkt.Data().Size() {
		frame[l.L4+13] &^= hdr.FlagsLast
		f.round.end = p.seq + uint32(skip+len(payload))
	}
	l.Seal(frame)
	n := len(frame) - len(payload)
	pkt := gstack.NewPacketBuffer(gstack.PacketBufferOptions{
		ReserveHeaderBytes: n, Payload: buffer.MakeWithData(frame[n:]),
	})
	copy(pkt.LinkHeader().Push(n), frame)
	pkt.NetworkProtocolNumber, pkt.TransportProtocolNumber = p.pkt.NetworkProtocolNumber,
		hdr.ProtoTCP
	return pkt
}
