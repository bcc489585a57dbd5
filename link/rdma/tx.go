package rdma

import (
	"context"
	"encoding/binary"
	"errors"
	"runtime"
	"slices"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// WritePackets implements gstack.LinkWriter. It copies: the packets stay the caller's. It returns
// how many were taken; the error is that of the next one.
func (e *Endpoint) WritePackets(list gstack.PacketBufferList) (int, tcpip.Error) {
	return e.write(list.AsSlice(), fullRingWait)
}

// writeBurst writes packets that may as well be lost, and does not wait for room.
func (e *Endpoint) writeBurst(pkts []*gstack.PacketBuffer) {
	_, _ = e.write(pkts, 0)
}

// writePacket writes one packet, whose headers p are, by the key of e.flows.
func (e *Endpoint) writePacket(pkt *gstack.PacketBuffer, p hdr.Segment) tcpip.Error {
	if e.closed.Load() {
		return &tcpip.ErrClosedForSend{}
	}
	r := region(regionTransmit)
	defer endRegion(r)
	s := e.senderOf(pkt, &p)
	s.lock()
	defer s.unlock()
	s.reclaim()
	err := s.send(pkt, &p, fullRingWait)
	if err == nil {
		s.count.packets.Add(1)
	}
	s.flush()
	return err
}

// write parses each packet once and posts it. The lock of a queue is held, and its doorbell waits,
// for as long as packets for that queue follow each other. maxWait is how long one packet waits for
// room.
func (e *Endpoint) write(pkts []*gstack.PacketBuffer, maxWait time.Duration) (int, tcpip.Error) {
	if e.closed.Load() {
		return 0, &tcpip.ErrClosedForSend{}
	}
	r := region(regionTransmit)
	var locked *sender
	var err tcpip.Error
	first, done := 0, 0 // the first packet for locked
	for ; done < len(pkts); done++ {
		p := hdr.ParseSent(pkts[done], e.flows.Key())
		s := e.senderOf(pkts[done], &p)
		if s != locked {
			locked.finish(done - first)
			locked, first = s, done
			s.begin()
		}
		if err = s.send(pkts[done], &p, maxWait); err != nil {
			if _, filtered := err.(*tcpip.ErrNotPermitted); filtered && len(pkts) > 1 {
				err = nil // it is about this one
				continue
			}
			s.refuseRest(pkts[done+1:])
			break
		}
	}
	locked.finish(done - first)
	endRegion(r)
	return done, err
}

// begin takes the queue's lock and looks for completions: one of them may say that the queue is in
// error, which nobody else might find out.
func (s *sender) begin() {
	s.lock()
	s.reclaim()
}

// finish rings the doorbell for n packets and gives the lock back. A nil sender has none.
func (s *sender) finish(n int) {
	if s == nil {
		return
	}
	s.flush()
	s.count.packets.Add(uint64(n))
	s.unlock()
}

// senderOf returns the queue of a packet's flow.
func (e *Endpoint) senderOf(pkt *gstack.PacketBuffer, p *hdr.Segment) *sender {
	if len(e.tx) == 1 {
		return e.tx[0]
	}
	hash := pkt.Hash
	if hash == 0 {
		hash = p.QueueHash(p.Frame)
	}
	return e.tx[int(hash%uint32(len(e.tx)))]
}

// resend is the tcpfix.Poster.
func (e *Endpoint) resend(like *gstack.PacketBuffer, build func() *gstack.PacketBuffer) bool {
	p := hdr.ParseSent(like, e.flows.Key())
	if e.closed.Load() || !e.bound().connected(&p) {
		return false
	}
	s := e.senderOf(like, &p)
	s.lock()
	defer s.unlock()
	pkt := build()
	if pkt == nil {
		return true
	}
	defer pkt.DecRef()
	s.reclaim()
	p = hdr.ParseSent(pkt, e.flows.Key())
	if s.send(pkt, &p, 0) == nil { // else lost like any packet
		s.count.packets.Add(1)
	}
	s.flush()
	return true
}

// reclaim looks for completions and gives the room to what waits for it first. It reports whether
// there were any.
func (s *sender) reclaim() bool {
	if s.q.Reap() == 0 {
		return false
	}
	s.moved()
	s.drain()
	return true
}

// send posts one packet, or has it wait for room: a TCP segment in the backlog, any other here.
func (s *sender) send(pkt *gstack.PacketBuffer, p *hdr.Segment, maxWait time.Duration) tcpip.Error {
	hdr.LabelFlow(p.Frame, s.label)
	if why := s.filteredPacket(pkt, p.Frame); why != "" {
		s.captureRefused(pkt, why)
		if p.Proto == hdr.ProtoUDP {
			return &tcpip.ErrNotPermitted{} // EPERM, as of Linux's sendto
		}
		return nil
	}
	grown, drop := s.flows.Sent(pkt, p)
	if drop {
		return nil
	}
	if grown != nil {
		defer grown.DecRef()
		pkt = grown
	}
	s.admit.sent(p)
	k := kindOf(p)
	if k == kindReset {
		s.resets.sent(p)
	}
	err := s.tryPost(pkt, k)
	if err == dv.ErrRingFull && s.reclaim() {
		err = s.tryPost(pkt, k)
	}
	if err == dv.ErrRingFull && s.queueable(k) {
		err = s.enqueue(pkt)
	}
	if err == dv.ErrRingFull {
		err = s.awaitRoom(pkt, k, maxWait)
	}
	return s.refuse(pkt, err)
}

// filteredPacket says why the filter drops a packet of netstack's whose headers are in frame. What
// has no transport header there begins with it in its data: messages of NDP and MLD, first
// fragments, and what raw sockets send.
func (s *sender) filteredPacket(pkt *gstack.PacketBuffer, frame []byte) string {
	const judged = 20 // bytes of these headers: ports and flags of TCP, types of ICMP
	if s.filter != nil && len(pkt.TransportHeader().Slice()) == 0 {
		frame = append(slices.Clip(frame), pkt.Data().AsRange().Capped(judged).ToSlice()...)
	}
	return s.filtered(frame)
}

// filtered says why the filter drops a packet, and counts it; "": it does not. frame begins with
// the Ethernet header.
func (s *sender) filtered(frame []byte) string {
	if s.filter == nil || len(frame) < hdr.EthLen {
		return ""
	}
	switch binary.BigEndian.Uint16(frame[12:]) {
	case hdr.TypeIPv4, hdr.TypeIPv6:
	default:
		return ""
	}
	why := s.filter.Send(frame[hdr.EthLen:])
	if why != "" {
		s.count.filtered.Add(1)
	}
	return why
}

// awaitRoom waits for room, with the queue's lock released in between, so that packets which may
// use the reserve get it: by polling while the ring moves, and asleep once it is known to stand
// still, as while the port is paused. Urgent packets do not wait: their sender may be a worker in
// the middle of a delivery.
func (s *sender) awaitRoom(pkt *gstack.PacketBuffer, k kind, maxWait time.Duration) error {
	if k.urgent() {
		maxWait = 0
	}
	s.count.waits.Add(1)
	for w := s.startWait(maxWait); s.makeRoom(&w); {
		err := s.tryPost(pkt, k)
		if err == dv.ErrRingFull && s.queueable(k) {
			err = s.enqueue(pkt)
		}
		if err != dv.ErrRingFull {
			return err
		}
	}
	return dv.ErrRingFull
}

// roomWait is one packet's wait for room.
type roomWait struct {
	until    time.Time
	progress uint64 // sender.progress when it began
	polls    int    // looks for completions after the first
}

func (s *sender) startWait(d time.Duration) roomWait {
	return roomWait{until: s.clock.Now().Add(d), progress: s.progress}
}

// standstillPolls says how many looks for completions in vain, during one wait, show that the ring
// stands still. There are fewer in a wait during which other goroutines had the processor.
const standstillPolls = 100

// makeRoom looks for completions. If there are none it lets others run, with the queue's lock
// released; false once the wait is over.
func (s *sender) makeRoom(w *roomWait) bool {
	s.ring()
	if s.reclaim() {
		return true
	}
	left := s.clock.Until(w.until)
	if s.clock.Virtual() || left <= 0 {
		s.still = s.still || w.polls >= standstillPolls && s.progress == w.progress
		return false
	}
	w.polls++
	still := s.still
	s.unlock()
	if still {
		_ = s.clock.Sleep(context.Background(), left)
	} else {
		runtime.Gosched()
	}
	s.lock()
	s.reclaim()
	return true
}

// moved takes note of completions.
func (s *sender) moved() {
	s.progress++
	s.still = false
}

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
	s.packet.Holder, s.packet.Held = pkt, false
	if pkt.Owner != nil {
		s.askStamp(pkt.Owner)
	}
	err := s.q.Post(&s.packet)
	s.packet.Holder = nil
	if s.packet.Held {
		pkt.IncRef() // the queue's, until the NIC has sent it
	}
	if taps := s.taps.Load(); taps != nil && err == nil {
		s.capturePosted(*taps)
	}
	if pkt.Owner != nil {
		s.tellPosted(pkt.Owner, err)
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
	p.Flags, p.MSS, p.UDP = 0, 0, false
	if gso := &pkt.GSOOptions; gso.Type != gstack.GSONone && gso.NeedsCsum {
		p.Flags = dv.TxL3Csum | dv.TxL4Csum
		headers := pkt.HeaderSize()
		if mss := s.segmentSize(gso, headers); mss < pkt.Data().Size() {
			p.MSS, p.HdrLen = mss, headers
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

// segmentSize returns how many bytes of payload a segment has at most behind so many bytes of
// headers. A connection may have been made when the MTU was larger: Linux looks at it for each
// segment (net/ipv4/tcp_output.c tcp_current_mss), netstack only at first, and by messages that a
// packet was too big, which lower it for good.
func (s *sender) segmentSize(gso *gstack.GSO, headers int) int {
	limit := &s.limits.v4
	if gso.Type == gstack.GSOTCPv6 {
		limit = &s.limits.v6
	}
	if most := int(limit.Load()) + hdr.EthLen - headers; most > 0 {
		return min(int(gso.MSS), most)
	}
	return int(gso.MSS)
}

// netstackError returns what the stack is told, and counts it.
func (s *sender) netstackError(err error) tcpip.Error {
	if _, filtered := err.(filteredError); filtered {
		return &tcpip.ErrNotPermitted{}
	}
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

// WriteDatagram sends a UDP datagram outside the stack: headers are Ethernet, IP without options or
// extensions, and UDP, complete except for both checksums, which the NIC writes, and the flow label
// of IPv6, which is written into headers unless there is one. What headers have behind those is
// payload, too. It copies both slices. The error is ErrNotSupported if the NIC does not compute
// checksums or BindStack was not called, ErrNoBufferSpace if the ring stays full.
func (e *Endpoint) WriteDatagram(headers, payload []byte) tcpip.Error {
	one := [1]Datagram{{Headers: headers, Payload: payload}}
	_, err := e.WriteDatagrams(one[:])
	return err
}

// Datagram holds what WriteDatagram sends, or, with Segment, several datagrams of so many bytes of
// payload each, of which the last may be shorter. Headers are then those of one datagram with all
// of the payload, and their lengths are changed. The NIC cuts up what it can; see cutDatagrams.
// A datagram that is in Headers as a whole, without Segment, takes the least to send.
type Datagram struct {
	Headers, Payload []byte
	Segment          int
}

// Count returns how many datagrams go out.
func (d *Datagram) Count() int {
	if d.Segment <= 0 || len(d.Payload) <= d.Segment {
		return 1
	}
	return (len(d.Payload) + d.Segment - 1) / d.Segment
}

// WriteDatagrams is WriteDatagram for several, in order, with one doorbell for as many as go to one
// queue in a row. It returns how many were taken; the error is that of the next one, of which the
// first segments may have been sent.
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
		n, err := t.writeDatagrams(ds[sent:end], fullRingWait)
		x.countDatagrams(ds[sent : sent+n])
		if sent += n; err != nil {
			return sent, err
		}
	}
	return sent, nil
}

// WriteReplies does what WriteDatagrams does for what answers datagrams of a receive queue, on its
// worker, see [Endpoint.SetDatagramSinks]: all go to one send queue, so that workers do not wait
// for each other, and none waits for room.
func (e *Endpoint) WriteReplies(queue int, ds []Datagram) (int, tcpip.Error) {
	x := e.fastPath.Load()
	switch {
	case e.closed.Load():
		return 0, &tcpip.ErrClosedForSend{}
	case x == nil || !e.csum:
		return 0, &tcpip.ErrNotSupported{}
	}
	r := region(regionTransmit)
	defer endRegion(r)
	n, err := e.tx[queue%len(e.tx)].writeDatagrams(ds, 0)
	x.countDatagrams(ds[:n])
	return n, err
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
	var sent [2]traffic // by version of IP
	for i := range ds {
		d, n, c := &ds[i], ds[i].Count(), &sent[0]
		if d.Headers[hdr.EthLen]>>4 == 6 {
			c = &sent[1]
		}
		c.packets += uint64(n)
		c.bytes += uint64(n*len(d.Headers) + len(d.Payload))
	}
	for i, c := range sent {
		if c.packets > 0 {
			x.countSent(i == 1, c.packets, c.bytes)
		}
	}
}

// writeDatagrams sends one or more, each of which waits for room for maxWait at most. It stops at
// the first that cannot be sent.
func (s *sender) writeDatagrams(ds []Datagram, maxWait time.Duration) (int, tcpip.Error) {
	s.lock()
	defer s.unlock()
	s.reclaim()
	var err error
	sent := s.postWhole(ds)
	for sent < len(ds) {
		d := ds[sent]
		if err = s.awaitDatagram(&d, maxWait); err != nil {
			s.refuseDatagram(&d, err)
			break
		}
		sent++
	}
	s.flush()
	return sent, s.netstackError(err)
}

// postWhole posts datagrams of one piece each, from the first on, for as long as that is all there
// is to do, and returns how many. About the one behind them awaitDatagram decides.
func (s *sender) postWhole(ds []Datagram) int {
	if s.filter != nil || !s.backlog.empty() {
		return 0
	}
	p, taps, n := &s.packet, s.taps.Load(), 0
	p.MSS, p.UDP, p.Bufs = 0, false, append(p.Bufs[:0], nil)
	for ; n < len(ds); n++ {
		d := &ds[n]
		if len(d.Payload) > 0 || d.Segment != 0 || s.q.Free() < s.reserve+dv.MaxBlocks {
			break
		}
		hdr.LabelFlow(d.Headers, s.label)
		p.Flags, p.Bufs[0] = dv.TxL3Csum|dv.TxL4Csum, d.Headers
		s.addVLAN()
		if s.q.Post(p) != nil {
			break
		}
		s.backlog.bypassed += len(d.Headers)
		if taps != nil {
			s.capturePosted(*taps)
		}
	}
	p.Bufs[0] = nil // which is the caller's
	s.posted += uint64(n)
	s.count.packets.Add(uint64(n))
	return n
}

// filteredError gives the reason for which the filter drops a datagram.
type filteredError string

func (e filteredError) Error() string { return string(e) }

// awaitDatagram posts what d stands for, piece by piece, waiting for room if need be. What has not
// been posted stays in d.
func (s *sender) awaitDatagram(d *Datagram, maxWait time.Duration) error {
	if why := s.filtered(d.Headers); why != "" {
		return filteredError(why)
	}
	if !s.fitsPort(d) {
		return dv.ErrFrameSize
	}
	for {
		n, err := s.tryDatagram(d)
		if err == dv.ErrRingFull {
			s.count.waits.Add(1)
			for w := s.startWait(maxWait); err == dv.ErrRingFull && s.makeRoom(&w); {
				n, err = s.tryDatagram(d)
			}
		}
		if err != nil {
			return err
		}
		s.count.packets.Add(1)
		if d.Payload = d.Payload[n:]; len(d.Payload) == 0 {
			return nil
		}
	}
}

// fitsPort reports whether the datagrams that are cut off d are no longer than the port takes. Of
// others the queue knows.
func (s *sender) fitsPort(d *Datagram) bool {
	if d.Count() == 1 {
		return true
	}
	limit := &s.limits.v4
	if d.Headers[hdr.EthLen]>>4 == 6 {
		limit = &s.limits.v6
	}
	most := int(limit.Load()) + hdr.EthLen - len(d.Headers)
	return most <= 0 || d.Segment <= most
}

// Datagrams of one call, all of one size but for the last, go to the NIC as one packet that it cuts
// up (USO), and to the kernel below packet sockets likewise (VIRTIO_NET_HDR_GSO_UDP_L4). A queue
// says how many bytes of payload it takes so; where it takes none they are posted one by one.

// cutDatagrams returns how many bytes of d's payload are posted next: what the queue cuts up, or
// one datagram.
func (s *sender) cutDatagrams(d *Datagram) int {
	if d.Count() == 1 {
		return len(d.Payload)
	}
	size := d.Segment
	if most := s.q.MaxDatagrams(); most >= len(d.Payload) {
		return len(d.Payload)
	} else if most > size {
		size = most / size * size
	}
	return size
}

// tryDatagram posts the next of what d stands for unless it is others' turn, and returns how many
// bytes of payload that was.
func (s *sender) tryDatagram(d *Datagram) (int, error) {
	n := s.cutDatagrams(d)
	size := len(d.Headers) + n
	if !s.backlog.empty() && !s.backlog.mayBypass(size) {
		return 0, dv.ErrRingFull
	}
	if d.Segment > 0 {
		hdr.SetDatagramLength(d.Headers, n)
	}
	err := s.postDatagram(d.Headers, d.Payload[:n], d.Segment)
	if err == nil {
		s.backlog.bypassed += size
	}
	return n, err
}

func (s *sender) postDatagram(headers, payload []byte, segment int) error {
	if s.q.Free() < s.reserve+dv.MaxBlocks {
		return dv.ErrRingFull
	}
	s.describeDatagram(headers, payload, segment)
	err := s.q.Post(&s.packet)
	if taps := s.taps.Load(); taps != nil && err == nil {
		s.capturePosted(*taps)
	}
	clear(s.packet.Bufs)
	if err != nil {
		return err
	}
	s.posted++
	if s.packet.MSS > 0 {
		s.count.lso.Add(1)
		s.count.uso.Add(1)
	}
	return nil
}

// describeDatagram makes s.packet the datagram, or several of segment bytes of payload, whose
// slices stay the caller's.
func (s *sender) describeDatagram(headers, payload []byte, segment int) {
	hdr.LabelFlow(headers, s.label)
	p := &s.packet
	p.Flags, p.MSS, p.Bufs = dv.TxL3Csum|dv.TxL4Csum, 0, append(p.Bufs[:0], headers)
	if len(payload) > 0 {
		p.Bufs = append(p.Bufs, payload)
	}
	if p.UDP = segment > 0 && len(payload) > segment; p.UDP {
		p.MSS, p.HdrLen = segment, len(headers)
	}
	s.addVLAN()
}

// addVLAN gives the packet about to be posted the tag of our VLAN, if we are in one. Its priority
// (PCP) is the class selector of the packet's DSCP, its upper three bits, as the NIC itself maps
// DSCP where it is told to trust it.
func (s *sender) addVLAN() {
	p := &s.packet
	if s.vlan == 0 || len(p.Bufs) == 0 {
		return
	}
	p.Flags |= dv.TxVLAN
	p.VLAN = dv.VLANTag(hdr.ClassSelector(p.Bufs[0]), s.vlan)
}
