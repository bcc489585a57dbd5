package rdma

import (
	"errors"

	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/dv"
)

// tryPost posts one packet unless others go first. The queue's lock is held here and below.
func (s *sender) tryPost(pkt *gstack.PacketBuffer, k kind) error {
	if k != kindControl && !s.backlog.empty() &&
		(k != kindOther || !s.backlog.mayBypass(pkt.Size())) {
		return dv.ErrRingFull
	}
	err := s.post(pkt, k)
	if err == nil {
		s.backlog.bypassed += pkt.Size()
	}
	return err
}

// post puts one packet into the ring.
func (s *sender) post(pkt *gstack.PacketBuffer, k kind) error {
	if s.q.Free() < s.reserve+dv.MaxBlocks && !k.urgent() {
		return dv.ErrRingFull
	}
	s.describe(pkt)
	err := s.q.Post(&s.packet)
	if taps := s.taps.Load(); taps != nil && err == nil {
		s.capturePosted(*taps)
	}
	clear(s.packet.Bufs) // the views are the caller's
	if err != nil {
		return err
	}
	s.posted++
	if s.packet.MSS > 0 {
		s.count.lso.Add(1)
	}
	return nil
}

// describe makes s.packet the packet, whose views stay the caller's.
func (s *sender) describe(pkt *gstack.PacketBuffer) {
	p := &s.packet
	p.Flags, p.MSS = 0, 0
	if gso := &pkt.GSOOptions; gso.Type != gstack.GSONone && gso.NeedsCsum {
		p.Flags = dv.TxL3Csum | dv.TxL4Csum
		if int(gso.MSS) < pkt.Data().Size() {
			p.MSS, p.HdrLen = int(gso.MSS), pkt.HeaderSize()
		}
	}
	p.Bufs = p.Bufs[:0]
	views, offset := pkt.AsViewList()
	for v := views.Front(); v != nil; v = v.Next() {
		b := v.AsSlice()
		if offset >= len(b) {
			offset -= len(b)
			continue
		}
		p.Bufs = append(p.Bufs, b[offset:])
		offset = 0
	}
	s.addVLAN()
}

// netstackError is what the stack is told, and counts it.
func (s *sender) netstackError(err error) tcpip.Error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, dv.ErrRingFull):
		s.count.dropped.Add(1)
		return &tcpip.ErrNoBufferSpace{}
	case errors.Is(err, dv.ErrFrameSize):
		s.count.errors.Add(1)
		return &tcpip.ErrMessageTooLong{}
	default:
		s.count.errors.Add(1)
		return &tcpip.ErrClosedForSend{}
	}
}
