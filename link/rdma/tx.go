package rdma

import (
	"encoding/binary"
	"errors"
	"runtime"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
)

const (
	// fullRingWait is how long room is waited for before a packet is refused: in a full ring, or of a segment in a full backlog.
	fullRingWait = time.Millisecond
	// reservedPackets is for how many packets room is kept that only urgent ones get.
	reservedPackets = 32
)

// sender is one send queue and what its users share. All but count is guarded by the queue's lock.
type sender struct {
	q           *dv.TxQueue
	packet      dv.TxPacket // scratch
	reserve     int         // blocks that ordinary packets leave free
	flows       *flows
	vlan        uint16 // 0: frames are sent without a tag
	backlog     backlog
	completions completionTimer
	count       txCounters
}

func newSender(q *dv.TxQueue, vlan uint16, flows *flows) *sender {
	blocks := q.Free()
	s := &sender{
		q: q, vlan: vlan, flows: flows, packet: dv.TxPacket{Bufs: make([][]byte, 0, 8)},
		reserve: min(2*reservedPackets, blocks/8),
	}
	s.completions.init(s.check)
	s.backlog.timer = time.AfterFunc(time.Hour, s.expire)
	s.backlog.timer.Stop()
	return s
}

// WritePackets implements gstack.LinkWriter. It copies: the packets stay the caller's. It returns how many were taken; the
// error is that of the next one.
func (e *Endpoint) WritePackets(list gstack.PacketBufferList) (int, tcpip.Error) {
	return e.write(list.AsSlice(), fullRingWait)
}

// writePacket is WritePackets for one packet.
func (e *Endpoint) writePacket(pkt *gstack.PacketBuffer) tcpip.Error {
	one := [1]*gstack.PacketBuffer{pkt}
	_, err := e.write(one[:], fullRingWait)
	return err
}

// writeBurst writes packets that may as well be lost, and does not wait for room.
func (e *Endpoint) writeBurst(pkts []*gstack.PacketBuffer) {
	_, _ = e.write(pkts, 0)
}

// write takes each run of packets of one queue there; patience is how long a full ring is waited for.
func (e *Endpoint) write(pkts []*gstack.PacketBuffer, patience time.Duration) (int, tcpip.Error) {
	if e.closed.Load() {
		return 0, &tcpip.ErrClosedForSend{}
	}
	if len(e.tx) == 1 {
		return e.tx[0].write(pkts, patience)
	}
	for done := 0; ; {
		t := e.senderOf(pkts[done])
		end := done + 1
		for end < len(pkts) && e.senderOf(pkts[end]) == t {
			end++
		}
		n, err := t.write(pkts[done:end], patience)
		if done += n; err != nil || done == len(pkts) {
			return done, err
		}
	}
}

// senderOf is the queue of a packet's flow.
func (e *Endpoint) senderOf(pkt *gstack.PacketBuffer) *sender {
	hash := pkt.Hash
	if hash == 0 {
		hash = headerHash(headers(pkt))
	}
	return e.tx[int(hash%uint32(len(e.tx)))]
}

// write posts packets and rings the doorbell once. It looks for completions first, for one of them may say that the queue is in
// error, which nobody else might find out.
func (s *sender) write(pkts []*gstack.PacketBuffer, patience time.Duration) (int, tcpip.Error) {
	s.q.Lock()
	defer s.q.Unlock()
	return s.writeLocked(pkts, patience)
}

// writeLocked is write with the queue's lock held.
func (s *sender) writeLocked(pkts []*gstack.PacketBuffer, patience time.Duration) (int, tcpip.Error) {
	s.reclaim()
	for i, pkt := range pkts {
		if err := s.send(pkt, patience); err != nil {
			s.flush()
			s.count.packets.Add(uint64(i))
			return i, err
		}
	}
	s.flush()
	s.count.packets.Add(uint64(len(pkts)))
	return len(pkts), nil
}

// resend is the resender's poster.
func (e *Endpoint) resend(like *gstack.PacketBuffer, build func() *gstack.PacketBuffer) {
	if e.closed.Load() {
		return
	}
	s := e.senderOf(like)
	s.q.Lock()
	defer s.q.Unlock()
	if pkt := build(); pkt != nil {
		one := [1]*gstack.PacketBuffer{pkt}
		_, _ = s.writeLocked(one[:], 0) // lost like any packet
		pkt.DecRef()
	}
}

// reclaim looks for completions and gives the room to what waits for it first. It reports whether there were any.
func (s *sender) reclaim() bool {
	done := s.q.Reap() > 0
	if done {
		s.drain()
	}
	return done
}

// send posts one packet, or has it wait for room: a TCP segment in the backlog, whatever else here.
func (s *sender) send(pkt *gstack.PacketBuffer, patience time.Duration) tcpip.Error {
	s.flows.sent(pkt)
	k := kindOf(headers(pkt))
	err := s.tryPost(pkt, k)
	if err == dv.ErrRingFull && s.reclaim() {
		err = s.tryPost(pkt, k)
	}
	if err == dv.ErrRingFull && s.queueable(k) {
		err = s.enqueue(pkt)
	}
	if err == dv.ErrRingFull {
		err = s.awaitRoom(pkt, k, patience)
	}
	return s.netstackError(err)
}

// tryPost posts one packet unless it is others' turn.
func (s *sender) tryPost(pkt *gstack.PacketBuffer, k kind) error {
	if k != kindControl && !s.backlog.empty() && (k != kindOther || !s.backlog.mayBypass(pkt.Size())) {
		return dv.ErrRingFull
	}
	err := s.post(pkt, k)
	if err == nil {
		s.backlog.bypassed += pkt.Size()
	}
	return err
}

// netstackError is what the stack is told.
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

// post puts one packet into the ring.
func (s *sender) post(pkt *gstack.PacketBuffer, k kind) error {
	if s.q.Free() < s.reserve+dv.MaxBlocks && !k.urgent() {
		return dv.ErrRingFull
	}
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
	err := s.q.Post(p)
	clear(p.Bufs) // the views are the caller's
	if err != nil {
		return err
	}
	if p.MSS > 0 {
		s.count.lso.Add(1)
	}
	return nil
}

// awaitRoom waits for room, with the queue's lock released in between, so that whoever may use the reserve gets it. Urgent
// packets do not wait: their sender may be a worker in the middle of a delivery.
func (s *sender) awaitRoom(pkt *gstack.PacketBuffer, k kind, patience time.Duration) error {
	if k.urgent() {
		patience = 0
	}
	s.count.waits.Add(1)
	for start := time.Now(); s.makeRoom(start, patience); {
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

// makeRoom looks for completions. If there are none it lets others run, with the queue's lock released; false once this has gone on
// for longer than patience.
func (s *sender) makeRoom(start time.Time, patience time.Duration) bool {
	s.q.Flush()
	if s.reclaim() {
		return true
	}
	if time.Since(start) >= patience {
		return false
	}
	s.q.Unlock()
	runtime.Gosched()
	s.q.Lock()
	s.reclaim()
	return true
}

// headers is the first bytes of an outgoing packet, its Ethernet header first; the stack pushes all headers into one view.
func headers(pkt *gstack.PacketBuffer) []byte {
	views, offset := pkt.AsViewList()
	for v := views.Front(); v != nil; v = v.Next() {
		if b := v.AsSlice(); offset < len(b) {
			return b[offset:]
		}
		offset -= v.Size()
	}
	return nil
}

// kind is how a packet is treated when there is no room.
type kind uint8

const (
	kindOther   kind = iota // its sender waits
	kindSegment             // of TCP: it waits in the backlog
	kindReset               // of TCP: behind its flow's segments if some wait, else as kindControl
	kindControl             // ARP, ICMP, IGMP, NDP: has the reserve, does not wait, and goes first
)

// urgent is true for what the stack answers with while it is being delivered to. Such packets are few and small, and lost
// without harm.
func (k kind) urgent() bool { return k >= kindReset }

// kindOf judges an outgoing frame.
func kindOf(frame []byte) kind {
	if len(frame) < ethLen+ipv4Len {
		return kindControl
	}
	proto, l4 := frame[ethLen+9], ethLen+int(frame[ethLen]&15)*4
	switch binary.BigEndian.Uint16(frame[12:]) {
	case typeIPv4:
	case typeIPv6:
		proto, l4 = frame[ethLen+6], ethLen+ipv6Len
	default:
		return kindControl
	}
	switch proto {
	case protoTCP:
		if len(frame) > l4+13 && frame[l4+13]&flagRST != 0 {
			return kindReset
		}
		return kindSegment
	case protoICMP, protoICMPv6, protoIGMP:
		return kindControl
	}
	return kindOther
}

// headerHash keeps the packets of one pair of addresses and ports on one queue; of fragments, one pair of addresses.
func headerHash(frame []byte) uint32 {
	if len(frame) < ethLen+ipv4Len {
		return 0
	}
	l := layout{etherType: binary.BigEndian.Uint16(frame[12:]), l3: ethLen}
	addresses, ports := uint64(0), uint32(0)
	switch h := frame[ethLen:]; {
	case l.etherType == typeIPv4:
		addresses = binary.BigEndian.Uint64(h[12:])
		if at := int(h[0]&15) * 4; h[9] == protoUDP && binary.BigEndian.Uint16(h[6:])&0x3fff == 0 && len(h) >= at+4 {
			ports = binary.BigEndian.Uint32(h[at:])
		}
	case l.etherType == typeIPv6 && len(h) >= ipv6Len:
		for at := 8; at < ipv6Len; at += 8 {
			addresses = addresses*31 + binary.BigEndian.Uint64(h[at:])
		}
		if h[6] == protoUDP && len(h) >= ipv6Len+4 {
			ports = binary.BigEndian.Uint32(h[ipv6Len:])
		}
	}
	return uint32((addresses ^ uint64(ports)<<16) * 0x9e3779b97f4a7c15 >> 40)
}
