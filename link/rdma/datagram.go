package rdma

import (
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"gvisor.dev/gvisor/pkg/tcpip"
)

// WriteDatagram sends a UDP datagram outside the stack: headers are Ethernet, IP without options or extensions, and UDP, complete but
// for both checksums, which the NIC writes. It copies both slices. The error is ErrNotSupported if the NIC does not
// compute checksums or BindStack was not called, ErrNoBufferSpace if the ring stays full.
func (e *Endpoint) WriteDatagram(headers, payload []byte) tcpip.Error {
	x := e.lane.Load()
	switch {
	case e.closed.Load():
		return &tcpip.ErrClosedForSend{}
	case x == nil || !e.csum:
		return &tcpip.ErrNotSupported{}
	}
	t := e.tx[0]
	if len(e.tx) > 1 {
		t = e.tx[int(headerHash(headers)%uint32(len(e.tx)))]
	}
	if err := t.writeDatagram(headers, payload); err != nil {
		return err
	}
	x.sent(headers[ethLen]>>4 == 6, uint64(len(headers)+len(payload)))
	return nil
}

func (s *sender) writeDatagram(headers, payload []byte) tcpip.Error {
	s.q.Lock()
	defer s.q.Unlock()
	s.begin(len(headers) + len(payload))
	err := s.tryDatagram(headers, payload)
	if err == dv.ErrRingFull {
		s.count.waits.Add(1)
		for start := time.Now(); err == dv.ErrRingFull && s.makeRoom(start, fullRingWait); {
			err = s.tryDatagram(headers, payload)
		}
	}
	s.q.Flush()
	if err == nil {
		s.count.packets.Add(1)
	}
	return s.outcome(err)
}

// tryDatagram posts a datagram unless it is others' turn.
func (s *sender) tryDatagram(headers, payload []byte) error {
	size := len(headers) + len(payload)
	if !s.backlog.empty() && !s.backlog.lets(size) {
		return dv.ErrRingFull
	}
	err := s.postDatagram(headers, payload)
	if err == nil {
		s.backlog.others += size
	}
	return err
}

func (s *sender) postDatagram(headers, payload []byte) error {
	if s.q.Free() < s.reserve+dv.MaxBlocks {
		return dv.ErrRingFull
	}
	p := &s.packet
	p.Flags, p.MSS, p.Bufs = dv.TxL3Csum|dv.TxL4Csum, 0, append(p.Bufs[:0], headers, payload)
	s.tag()
	err := s.q.Post(p)
	clear(p.Bufs) // they are the caller's
	return err
}
