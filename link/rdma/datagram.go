package rdma

import (
	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// WriteDatagram sends a UDP datagram outside the stack: headers are Ethernet, IP without options or
// extensions, and UDP, complete but for both checksums, which the NIC writes. It copies both
// slices. The error is ErrNotSupported if the NIC does not compute checksums or BindStack was not
// called, ErrNoBufferSpace if the ring stays full.
func (e *Endpoint) WriteDatagram(headers, payload []byte) tcpip.Error {
	one := [1]Datagram{{headers, payload}}
	_, err := e.WriteDatagrams(one[:])
	return err
}

// Datagram is what WriteDatagram sends.
type Datagram struct{ Headers, Payload []byte }

// WriteDatagrams is WriteDatagram for several, in order, with one doorbell for as many as go to one
// queue in a row. It returns how many were taken; the error is that of the next one.
func (e *Endpoint) WriteDatagrams(ds []Datagram) (int, tcpip.Error) {
	x := e.fastPath.Load()
	switch {
	case e.closed.Load():
		return 0, &tcpip.ErrClosedForSend{}
	case x == nil || !e.csum:
		return 0, &tcpip.ErrNotSupported{}
	}
	r := region(regionTransmit)
	defer endRegion(r)
	sent := 0
	for sent < len(ds) {
		t, end := e.datagramQueue(&ds[sent]), sent+1
		for end < len(ds) && e.datagramQueue(&ds[end]) == t {
			end++
		}
		n, err := t.writeDatagrams(ds[sent:end])
		x.countDatagrams(ds[sent : sent+n])
		if sent += n; err != nil {
			return sent, err
		}
	}
	return sent, nil
}

// datagramQueue keeps the datagrams of one pair of addresses and ports on one queue.
func (e *Endpoint) datagramQueue(d *Datagram) *sender {
	if len(e.tx) == 1 {
		return e.tx[0]
	}
	var p hdr.Packet
	p.ParseSent(d.Headers)
	return e.tx[int(p.QueueHash(d.Headers)%uint32(len(e.tx)))]
}

func (x *fastPath) countDatagrams(ds []Datagram) {
	for i := range ds {
		x.countSent(ds[i].Headers[hdr.EthLen]>>4 == 6,
			uint64(len(ds[i].Headers)+len(ds[i].Payload)))
	}
}

// writeDatagrams sends one or more. It stops at the first that cannot be sent.
func (s *sender) writeDatagrams(ds []Datagram) (int, tcpip.Error) {
	s.lock()
	defer s.unlock()
	s.reclaim()
	var err error
	sent := 0
	for sent < len(ds) {
		if err = s.awaitDatagram(&ds[sent]); err != nil {
			s.refuseDatagram(&ds[sent], err)
			break
		}
		sent++
	}
	s.flush()
	s.count.packets.Add(uint64(sent))
	return sent, s.netstackError(err)
}

// awaitDatagram posts a datagram, waiting for room if need be.
func (s *sender) awaitDatagram(d *Datagram) error {
	err := s.tryDatagram(d.Headers, d.Payload)
	if err == dv.ErrRingFull {
		s.count.waits.Add(1)
		for w := s.startWait(fullRingWait); err == dv.ErrRingFull && s.makeRoom(&w); {
			err = s.tryDatagram(d.Headers, d.Payload)
		}
	}
	return err
}

// tryDatagram posts a datagram unless it is others' turn.
func (s *sender) tryDatagram(headers, payload []byte) error {
	size := len(headers) + len(payload)
	if !s.backlog.empty() && !s.backlog.mayBypass(size) {
		return dv.ErrRingFull
	}
	err := s.postDatagram(headers, payload)
	if err == nil {
		s.backlog.bypassed += size
	}
	return err
}

func (s *sender) postDatagram(headers, payload []byte) error {
	if s.q.Free() < s.reserve+dv.MaxBlocks {
		return dv.ErrRingFull
	}
	s.describeDatagram(headers, payload)
	err := s.q.Post(&s.packet)
	if taps := s.taps.Load(); taps != nil && err == nil {
		s.capturePosted(*taps)
	}
	clear(s.packet.Bufs)
	if err == nil {
		s.posted++
	}
	return err
}

// describeDatagram makes s.packet the datagram, whose slices stay the caller's.
func (s *sender) describeDatagram(headers, payload []byte) {
	p := &s.packet
	p.Flags, p.MSS, p.Bufs = dv.TxL3Csum|dv.TxL4Csum, 0, append(p.Bufs[:0], headers, payload)
	s.addVLAN()
}
