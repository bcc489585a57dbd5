package sim

import (
	"errors"
	"fmt"

	"github.com/rdma-netstack/rdma-netstack/link/rdma"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/racing"
)

// checkLink checks, when no connection is left, that the link knows of each frame that the queues
// of all devices, and packet sockets, have given it, and of each that it gave them.
func (h *ourHost) checkLink() error {
	if racing.Detector {
		return nil
	}
	s := h.stack.LinkStats()
	received, rings := h.books.frames()
	var sockets socketCounts
	if h.netdev != nil {
		sockets = h.netdev.counts()
	}
	if rings != s.Rings.TxFrames || sockets.Posted != s.Packet.TxFrames {
		return fmt.Errorf("the link has posted %d frames to rings and %d to packet sockets, these "+
			"got %d and %d", s.Rings.TxFrames, s.Packet.TxFrames, rings, sockets.Posted)
	}
	all := received + sockets.Received + s.RxACKsLate + s.TxGivenUp
	return errors.Join(linkReceived(&s, all, all), linkSent(&s))
}

// linkSent checks that each packet that the link took from the stack was posted, waits, or was
// dropped for a reason.
func linkSent(s *rdma.Stats) error {
	gone := s.Rings.TxFrames + s.Packet.TxFrames + s.None.TxFrames + s.TxBacklog +
		s.TxBacklogDropped + s.TxSpared + s.TxLeftOut
	if gone > s.TxPackets || gone+s.TxErrors < s.TxPackets {
		return fmt.Errorf("the link took %d packets from the stack and knows of %d: %+v",
			s.TxPackets, gone, *s)
	}
	return nil
}

// linkReceived checks that each of so many frames, or of a few less, was dropped for one reason,
// delivered, merged with one other at least, or an ACK that a later one supersedes or that is kept.
func linkReceived(s *rdma.Stats, least, most uint64) error {
	dropped := s.RxSteered
	for _, n := range s.RxDrops() {
		dropped += n
	}
	known := dropped + s.RxPackets + s.RxSupersededACKs + s.RxACKsKept
	if most < known+s.RxMerged-s.RxMerged/2 || least > known+s.RxMerged {
		return fmt.Errorf("queues gave the link %d to %d frames, it dropped %d, merged %d, "+
			"left out %d ACKs, kept %d and delivered %d packets", least, most, dropped, s.RxMerged,
			s.RxSupersededACKs, s.RxACKsKept, s.RxPackets)
	}
	return nil
}
