package rdma

import (
	"errors"

	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/capture"
)

// capture records s.packet: as sent, or with the reason why it is not. The queue's lock is held
// here and below.
func (s *sender) capture(taps []*capture.Tap, refusal string) {
	if !s.captured.Begin(taps, capture.Out, s.number) {
		return
	}
	p := &s.packet
	f := capture.Frame{Bufs: p.Bufs, Tag: p.VLAN, Tagged: p.Flags&dv.TxVLAN != 0,
		Unsummed: p.Flags&dv.TxL4Csum != 0}
	if p.MSS > 0 {
		f.MSS, f.Headers = p.MSS, p.HdrLen
	}
	s.captured.Add(&f)
	if refusal != "" {
		s.captured.Drop(0, refusal)
	}
	s.captured.Commit()
}

// capturePosted records the packet that has just been posted.
func (s *sender) capturePosted(taps []*capture.Tap) {
	refusal := ""
	if s.kind == BackendNone {
		refusal = "there is neither device nor packet port"
	}
	s.capture(taps, refusal)
}

// captureRefused records a packet that is not sent.
func (s *sender) captureRefused(pkt *gstack.PacketBuffer, refusal string) {
	if taps := s.taps.Load(); taps != nil {
		s.describe(pkt)
		s.capture(*taps, refusal)
		clear(s.packet.Bufs) // the views are the caller's
	}
}

// refuse notes that a packet is not sent and returns what the stack is told; nil without an error.
func (s *sender) refuse(pkt *gstack.PacketBuffer, err error) tcpip.Error {
	if err != nil {
		s.captureRefused(pkt, refusalOf(err))
	}
	return s.netstackError(err)
}

// refuseRest records the packets behind one that was refused: their sender drops them, too.
func (s *sender) refuseRest(pkts []*gstack.PacketBuffer) {
	if s.taps.Load() == nil {
		return
	}
	for _, pkt := range pkts {
		s.captureRefused(pkt, "a packet in front of it was not sent")
	}
}

// refuseDatagram is refuse for a datagram that is no packet of the stack's.
func (s *sender) refuseDatagram(d *Datagram, err error) {
	if taps := s.taps.Load(); taps != nil {
		s.describeDatagram(d.Headers, d.Payload)
		s.capture(*taps, refusalOf(err))
		clear(s.packet.Bufs)
	}
}

// refusalOf is the reason in a capture.
func refusalOf(err error) string {
	switch {
	case errors.Is(err, dv.ErrRingFull):
		return "the send ring had no room in time"
	case errors.Is(err, dv.ErrFrameSize):
		return "it is too short or too long for the port"
	}
	return err.Error()
}
