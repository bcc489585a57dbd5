package rdma

import (
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/dv"
)

// StampTaker owns a packet of netstack's whose sender wants to know when it was sent.
// Its methods are called with a send queue's lock held, and must not send.
type StampTaker interface {
	tcpip.PacketOwner
	// Posted notes that the packet was handed to the NIC, or to the kernel. frame holds
	// the packet from its Ethernet header on, good until Posted returns; checksums may be missing.
	// byNIC says that Sent follows, unless the packet is lost with its queue.
	Posted(frame [][]byte, byNIC bool)
	// Sent says when the NIC had sent the packet.
	Sent(at time.Time)
}

// stampPause says how soon the completion of a packet is looked for whose time is wanted. The pause
// grows while there is none, to completionInterval.
const stampPause = 100 * time.Microsecond

// stampLooks says how often a sender looks for that completion right behind the doorbell, for the
// few microseconds that a NIC takes. The sooner it is seen, the better the NIC's clock is known.
const stampLooks = 100

// stampedQueue lists what a send queue has besides if its completions have time stamps.
type stampedQueue interface {
	txQueue
	Clock() (dv.Clock, bool)
}

// sendStamps keeps what a sender knows of the packets in one queue whose time is wanted. The
// queue's lock guards it.
type sendStamps struct {
	queue   stampedQueue
	system  clock.Clock
	time    nicTime
	waiting int           // packets whose completion is to come
	fresh   bool          // one of them was posted since the last look
	pause   time.Duration // until the next look
}

// askStamp asks the NIC to stamp s.packet, if it can and the owner is a StampTaker.
func (s *sender) askStamp(owner tcpip.PacketOwner) {
	taker, ok := owner.(StampTaker)
	q, stamped := s.q.(stampedQueue)
	if !ok || !stamped {
		return
	}
	if _, ok = q.Clock(); !ok {
		return
	}
	if s.stamps == nil || s.stamps.queue != q {
		s.stamps = &sendStamps{queue: q, system: s.clock}
	}
	s.packet.Flags |= dv.TxStamp
	s.packet.Stamper = &stampWish{taker, s.stamps}
}

// tellPosted tells the owner of s.packet that it was posted, unless there was an error.
func (s *sender) tellPosted(owner tcpip.PacketOwner, err error) {
	byNIC := s.packet.Flags&dv.TxStamp != 0
	s.packet.Flags &^= dv.TxStamp
	s.packet.Stamper = nil
	taker, ok := owner.(StampTaker)
	if !ok || err != nil {
		return
	}
	if byNIC {
		st := s.stamps
		st.waiting, st.fresh, st.pause = st.waiting+1, true, stampPause
	}
	taker.Posted(s.packet.Bufs, byNIC)
}

// stampWish tells the taker of one packet when it was sent. It implements dv.Stamper.
type stampWish struct {
	taker  StampTaker
	stamps *sendStamps
}

// Stamp implements dv.Stamper.
func (w *stampWish) Stamp(ticks uint64) {
	st := w.stamps
	st.waiting--
	if ticks == 0 {
		return
	}
	st.time.compare(st.queue.Clock, ticks, st.system.Now())
	if at := st.time.of(ticks); !at.IsZero() {
		w.taker.Sent(at)
	}
}

// lookForStamps looks for the completions of packets whose doorbell was rung just now.
func (s *sender) lookForStamps() {
	s.stamps.fresh = false
	for range stampLooks {
		if s.stamps.waiting == 0 {
			break
		}
		if s.reclaim() {
			s.ring() // for what had waited for room
		}
	}
}
