package tcpfix

import (
	"encoding/binary"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// resender is a retransmission timer for connections whose own does not run.
//
// Behaviour: netstack counts the packets in flight (sender.Outstanding) and arms its timer only
// while there are some. While it recovers from a loss (RFC 6675) it does not count what a SACK
// reports lost, and when the acknowledgement comes it subtracts all of it: the count ends below the
// truth, often at 0. With RACK (RFC 8985) each acknowledgement then turns the retransmission timer
// off and the timer of the tail loss probe on. That sends one segment again, finds Outstanding at 0
// and arms nothing (transport/tcp/snd.go postXmit, SetPipe, rack.go schedulePTO). If the probe or
// its acknowledgement is lost, nothing is ever sent again. A round trip measured while Outstanding
// is 0 does not end the doubling of the timeout (updateRTO), so that it grows to minutes.
//
// Fix: the first unacknowledged segment of such a flow is sent again from here, when netstack has
// sent no data and the peer has acknowledged none for a while. The acknowledgement moves netstack
// on. A peer that stays silent ends the connection, see timeOut. The count is right until netstack
// repeats something and once all is acknowledged, so only flows in between are kept, and none
// without a loss.
//
// Upstream: docs/upstream/04-standstill.md. No longer needed when TestNetstackStalls fails.
type resender struct {
	clock tcpip.Clock
	post  Poster
	// deliver receives a frame anew, and path returns the round trip of a flow's handshake, 0 if
	// that is not known.
	deliver func(frame []byte)
	path    func(hash uint64) time.Duration
	sackOK  func(hash uint64) bool // SACK is permitted
	// longest returns the length of the longest IP packet that the link sends, in bytes.
	longest func(tcpip.NetworkProtocolNumber) int

	ends   []atomic.Uint64 // by hash: 32 bits of it, and where the flow's data ends
	number atomic.Int32    // of flows kept
	count  atomic.Uint64   // of segments sent
	silent atomic.Uint64   // connections ended, as their peer was
	spared atomic.Uint64   // segments that netstack sent again for nothing, dropped
	idle   atomic.Uint64   // segments that a timer had sent again, and that the peer had
	told   atomic.Uint64   // frames that tell netstack of losses
	shards [resendShards]resendShard

	mu     sync.Mutex  // guards what follows
	timer  tcpip.Timer // nil: not needed yet
	armed  bool        // the timer is set
	at     tcpip.MonotonicTime
	closed bool
}

// Poster posts what build returns, if anything, to the queue of the packet like, with nothing of
// its flow posted in between. It returns false if netstack has given the connection up: nothing of
// it is to be sent any more.
type Poster func(like *gstack.PacketBuffer, build func() *gstack.PacketBuffer) (alive bool)

// resendShard describes a part of the flows. Its mutex is taken with that of a send queue held.
type resendShard struct {
	mu    sync.Mutex
	flows map[hdr.Tuple]*resendFlow // outgoing
	_     [48]byte
}

const (
	resendShards = 16
	resendEnds   = 1 << 14 // a power of two; of two flows in one place the later stays
	// maxResendFlows bounds the flows of a shard, maxResendParts the packets of a flow. What is
	// beyond has netstack's timers only.
	maxResendFlows = 512
	maxResendParts = 8192
	// resendTick says how often flows are looked at, while there are some.
	resendTick = 50 * time.Millisecond
	// resendIdle is after how long without data in flight a flow is forgotten: netstack has seen
	// the last acknowledgement by then.
	resendIdle = time.Second
)

// open makes r ready. post is called from the timer's goroutine.
func (r *resender) open(clock tcpip.Clock, post Poster) {
	r.clock, r.post, r.ends = clock, post, make([]atomic.Uint64, resendEnds)
	r.deliver, r.path = func([]byte) {}, func(uint64) time.Duration { return 0 }
	r.sackOK = func(uint64) bool { return true }
	r.longest = func(tcpip.NetworkProtocolNumber) int { return math.MaxUint16 }
	for i := range r.shards {
		r.shards[i].flows = make(map[hdr.Tuple]*resendFlow)
	}
}

// shard returns where a flow's state is, by its hash.
func (r *resender) shard(hash uint64) *resendShard { return &r.shards[hash>>60&(resendShards-1)] }

// sent takes note of an outgoing segment, and reports whether it is superfluous. gaps says that
// SACK has told of gaps in the flow lately.
func (r *resender) sent(pkt *gstack.PacketBuffer, s *hdr.Segment, gaps bool) (drop bool) {
	size, limits := uint32(s.Payload), s.Flags()&(hdr.FlagSYN|hdr.FlagRST) != 0
	if s.Flags()&hdr.FlagFIN != 0 {
		size++
	}
	if size == 0 && !limits && r.number.Load() == 0 {
		return false
	}
	t, hash := s.Flow()
	shard := r.shard(hash)
	if limits {
		r.ends[hash&(resendEnds-1)].Store(0)
		r.forget(shard, t)
		return false
	}
	seq, _ := hdr.Numbers(s.TCP())
	end, repeated := seq, false
	if size > 0 {
		end, repeated = r.repeats(pkt, hash, seq, seq+size)
	}
	begins := repeated || isSuper(pkt, s) && (gaps || r.path(hash) >= keepFrom)
	if !begins && r.number.Load() == 0 {
		return false
	}
	shard.mu.Lock()
	defer shard.mu.Unlock()
	f := shard.flows[*t]
	if f == nil {
		if !begins || !r.begin() || len(shard.flows) == maxResendFlows {
			return false
		}
		if f = (&resendFlow{una: seq, end: end, longest: r.longest}); !repeated {
			f.told = true
			f.measure(r.path(hash))
		}
		shard.flows[*t] = f
		r.number.Add(1)
	}
	now := r.clock.NowMonotonic()
	if f.paced.passes == pkt {
		f.paced.passes = nil
		f.note(s, now)
		return false
	}
	if repeated {
		f.eifel.begin(pkt, s, f.end)
	}
	if repeated && !f.own {
		if owner, ok := pkt.Owner.(connection); ok {
			owner.CountResend(seq + size)
		}
	}
	if repeated && (f.superfluous(seq, seq+size, now) || f.sentTwice(seq, seq+size, now)) {
		r.spared.Add(1)
		return true
	}
	if repeated && !gaps && len(f.repair.sacked) == 0 {
		f.timed.add(span{seq, seq + size})
	}
	f.repeated = f.repeated || repeated
	before, own := f.dataAt, f.own
	if repeated && r.sackOK(hash) && f.noteProbe(seq, seq+size, now) {
		r.soon(0)
	}
	timeout, refused := repeated && f.timedOut(seq, now), repeated && f.sendsRefused(now)
	if timeout {
		f.silent.noteTimeout(now, f.dataAt)
	}
	if repeated && !f.own {
		f.noteAgain(span{seq, seq + size}, now)
	}
	f.note(s, now)
	if size > 0 {
		f.add(pkt, seq, size, now)
	}
	switch {
	case refused:
		f.goBackTo(seq)
	case timeout:
		f.goBack()
	}
	if size > 0 && f.dataAt == now {
		f.back.noteSent(seq, seq+size, f.dataStamp, now.Sub(before))
	}
	return size > 0 && !own &&
		r.paceResend(shard, t, f, delayed{seq, seq + size, repeated, pkt}, now)
}

// isSuper reports whether a packet is cut by the NIC.
func isSuper(pkt *gstack.PacketBuffer, s *hdr.Segment) bool {
	return pkt.GSOOptions.Type != gstack.GSONone && s.Payload > int(pkt.GSOOptions.MSS)
}

// repeats reports whether data from seq to end has been sent before, as far as is known, and where
// the flow's data ends. Where another device has sent it, or another flow is in the place of this
// one, the packet's owner tells.
func (r *resender) repeats(pkt *gstack.PacketBuffer, hash uint64, seq, end uint32) (last uint32,
	repeated bool) {
	last, known := r.end(hash)
	if !known {
		if owner, ok := pkt.Owner.(connection); ok {
			last, known = owner.SentBefore()
		}
	}
	if repeated = known && hdr.Before(seq, last); repeated {
		end = last
	}
	r.ends[hash&(resendEnds-1)].Store(hash>>32<<32 | uint64(end))
	return end, repeated
}

// end returns where the data of a flow ends that has been sent, if that is known.
func (r *resender) end(hash uint64) (last uint32, known bool) {
	slot := r.ends[hash&(resendEnds-1)].Load()
	return uint32(slot), slot>>32 == hash>>32 && slot != 0
}

// received takes note of what an incoming segment acknowledges. It may change the timestamp that
// the segment echoes, see goBack, and take its SACK option out, see hideTail.
func (r *resender) received(s *hdr.Segment) (c Changes) {
	if r.number.Load() == 0 {
		return 0
	}
	t, hash := s.Flow()
	shard := r.shard(hash)
	if s.Flags()&(hdr.FlagSYN|hdr.FlagRST) != 0 {
		r.forget(shard, t)
		return 0
	}
	shard.mu.Lock()
	defer shard.mu.Unlock()
	f := shard.flows[*t]
	if f == nil || s.Flags()&hdr.FlagACK == 0 {
		return 0
	}
	now := r.clock.NowMonotonic()
	f.ackAt = now
	f.fitPackets()
	moved := f.acknowledged(s, now)
	if moved {
		f.eifel.judge(s, f.una)
	}
	if moved && f.repeated && f.finLeft() {
		f.due = true
		r.soon(finWait)
	}
	if f.timed.told(s) {
		r.idle.Add(1)
	}
	if f.noteReport(s, now) {
		c |= repairBegun
	}
	switch p := &f.repair; {
	case p.due:
		r.soon(0)
	case p.on && len(p.sacked) > 0:
		r.soon(f.reordering())
	}
	if f.repeated && !f.repair.on && f.hideTail(s) {
		c |= SACKRemoved
	}
	if f.back.age(s) || !moved && f.hideEcho(s) {
		c |= EchoAged
	}
	return c
}

// noteNeedless counts what an acknowledgement that is held back says of what was sent again.
func (r *resender) noteNeedless(s *hdr.Segment) {
	if r.number.Load() == 0 {
		return
	}
	t, hash := s.Flow()
	shard := r.shard(hash)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if f := shard.flows[*t]; f != nil && f.timed.told(s) {
		r.idle.Add(1)
	}
}

// forget drops a flow that begins or ends.
func (r *resender) forget(shard *resendShard, t *hdr.Tuple) {
	if r.number.Load() == 0 {
		return
	}
	shard.mu.Lock()
	defer shard.mu.Unlock()
	r.drop(shard, *t)
}

// drop is called with the shard's mutex held.
func (r *resender) drop(shard *resendShard, t hdr.Tuple) {
	if f := shard.flows[t]; f != nil {
		f.release(len(f.parts))
		f.paced.close()
		delete(shard.flows, t)
		r.number.Add(-1)
	}
}

const (
	// resendWait says how long after the last data or acknowledgement something is sent again, plus
	// two round trips; twice as long each time that nothing comes of it, up to maxResendWait. It is
	// longer than netstack's first timeout.
	resendWait    = 250 * time.Millisecond
	firstWait     = time.Second     // while no round trip is known: RFC 6298 section 2.1
	maxResendWait = time.Minute     // RFC 6298 section 2.5
	maxTimeout    = 2 * time.Minute // up to which netstack's own doubles
	// maxResends says how often the same data is sent again, as netstack does by default
	// (TCP_RETR2), where the connection does not say for how long.
	maxResends = 15
)

// resendFlow holds the data of one flow that the peer has not acknowledged. The shard's mutex
// guards it.
type resendFlow struct {
	parts []resendPart // in order of sequence numbers
	// what comes before is acknowledged, once told; until then the first sent
	una   uint32
	end   uint32              // of what was sent
	told  bool                // the peer has acknowledged something
	moved tcpip.MonotonicTime // when data was sent, or some acknowledged
	since tcpip.MonotonicTime // when data was sent while none was unacknowledged
	limit time.Duration       // for which the peer may be silent; 0: not asked yet
	tries int                 // since the peer acknowledged something
	due   bool                // to be sent now
	rtt   time.Duration       // the shortest; 0: not known
	// what it was while nothing was missing, which one acknowledgement raises by an eighth at most
	recent time.Duration

	macs   [12]byte // of the Ethernet header sent last: destination and source
	ack    uint32   // sent last
	window uint16
	stamp  uint32 // timestamp sent last; 0: none
	echo   uint32
	at     tcpip.MonotonicTime // when that was

	ackAt     tcpip.MonotonicTime // when the peer sent an acknowledgement last
	mss       uint32              // the most that a packet on the wire has carried
	dataAt    tcpip.MonotonicTime // when netstack sent data last
	dataStamp uint32              // with this timestamp; 0: none
	silent    silence
	own       bool // what is sent next comes from here, not from netstack
	back      goBack
	round     round
	repeated  bool // something was sent again: netstack may arm no timer
	timed     timedResends
	repair    repair
	refused   refusal
	paced     pacedResends
	eifel     eifel

	longest func(tcpip.NetworkProtocolNumber) int // the resender's
}

// resendPart describes a packet with data, and a reference to it.
type resendPart struct {
	seq, end uint32
	pkt      *gstack.PacketBuffer
}

// timedResends holds what was sent again last though the peer had told of no gap: by a tail loss
// probe, or after a timeout. Such a segment that the peer had is no sign of frames that are late or
// out of order: the peer, or the path, was slow for a moment.
type timedResends struct {
	last  [4]span
	known int
}

func (x *timedResends) add(s span) {
	if x.known == len(x.last) {
		x.known = copy(x.last[:], x.last[1:])
	}
	x.last[x.known] = s
	x.known++
}

// told reports whether a segment tells that one of these has come twice (RFC 2883), and forgets it.
func (x *timedResends) told(s *hdr.Segment) bool {
	if x.known == 0 {
		return false
	}
	sack := s.Options().SACK
	if len(sack) < 10 || !startsBelow(s, sack) {
		return false
	}
	from, to := binary.BigEndian.Uint32(sack[2:]), binary.BigEndian.Uint32(sack[6:])
	for i, r := range x.last[:x.known] {
		if !hdr.Before(from, r.seq) && hdr.Before(from, to) && !hdr.Before(r.end, to) {
			x.known = i + copy(x.last[i:], x.last[i+1:x.known])
			return true
		}
	}
	return false
}

// note remembers what the headers of an outgoing segment tell the peer, and their MACs: that of the
// next hop may be another one by the time that data is sent again.
func (f *resendFlow) note(s *hdr.Segment, now tcpip.MonotonicTime) {
	copy(f.macs[:], s.Frame)
	_, f.ack = hdr.Numbers(s.TCP())
	f.window = s.Window()
	if stamp := s.Options().Timestamp; stamp != nil {
		f.stamp, f.at = binary.BigEndian.Uint32(stamp[2:]), now
		f.echo = binary.BigEndian.Uint32(stamp[6:])
		if s.Payload > 0 && !f.own {
			f.dataStamp = f.stamp
		}
	}
	if s.Payload > 0 && !f.own {
		f.dataAt, f.round.size = now, 0
	}
	f.own = false
}

// add takes a reference to a packet with data, unless there is one that has it.
func (f *resendFlow) add(pkt *gstack.PacketBuffer, seq, size uint32, now tcpip.MonotonicTime) {
	end, at := seq+size, len(f.parts)
	f.fitPackets()
	if at == 0 {
		f.since = now
	}
	f.moved, f.mss = now, max(f.mss, f.onWire(pkt, size))
	if !f.told && hdr.Before(seq, f.una) {
		f.una = seq
	}
	if hdr.Before(f.end, end) {
		f.end = end
	}
	for at > 0 && hdr.Before(seq, f.parts[at-1].end) {
		at--
	}
	old := at < len(f.parts) && !hdr.Before(seq, f.parts[at].seq) &&
		!hdr.Before(f.parts[at].end, end)
	if !old && hdr.Before(f.una, end) && len(f.parts) < maxResendParts {
		f.parts = append(f.parts, resendPart{})
		copy(f.parts[at+1:], f.parts[at:])
		f.parts[at] = resendPart{seq, end, pkt.IncRef()}
	}
}

// acknowledged lets go of what a segment of the peer's acknowledges, and reports whether that is
// anything new.
func (f *resendFlow) acknowledged(s *hdr.Segment, now tcpip.MonotonicTime) bool {
	_, ack := hdr.Numbers(s.TCP())
	if f.told && !hdr.Before(f.una, ack) || hdr.Before(f.end, ack) {
		return false
	}
	newly := hdr.Before(f.una, ack)
	f.una, f.told, f.moved, f.tries, f.silent = ack, true, now, 0, silence{}
	n := 0
	for n < len(f.parts) && !hdr.Before(ack, f.parts[n].end) {
		n++
	}
	f.release(n)
	// RFC 7323 section 4.1: what acknowledges nothing new may echo something long past
	if stamp := s.Options().Timestamp; stamp != nil && f.stamp != 0 && newly {
		ms := int32(f.stampAt(now) - binary.BigEndian.Uint32(stamp[6:]))
		f.measure(time.Duration(ms) * time.Millisecond)
	}
	return true
}

// measure takes note of a round trip. What a peer echoes after an acknowledgement was lost makes it
// too long.
func (f *resendFlow) measure(rtt time.Duration) {
	if rtt = max(rtt, time.Millisecond); f.rtt == 0 || rtt < f.rtt {
		f.rtt = rtt
	}
	if f.recent == 0 {
		f.recent = rtt
	}
	if len(f.repair.sacked) == 0 && !f.back.on {
		f.recent = min(rtt, f.recent+f.recent/8)
	}
}

// release lets go of the first n packets.
func (f *resendFlow) release(n int) {
	for i := range f.parts[:n] {
		f.parts[i].pkt.DecRef()
	}
	left := copy(f.parts, f.parts[n:])
	clear(f.parts[left:])
	f.parts = f.parts[:left]
}

// wait returns how long the flow may stand still.
func (f *resendFlow) wait() time.Duration {
	d := firstWait
	if f.rtt > 0 {
		d = resendWait + 2*f.rtt
	}
	return max(min(d<<min(f.tries, maxResends), maxResendWait), f.silent.nextTimeout(d))
}

// silence counts netstack's timeouts since the peer acknowledged something last. The timeout
// doubles for as long (RFC 6298 section 5.5): what is sent from here must not come in between. But
// netstack's timeout stays long where it should not, and then nothing is waited for.
type silence struct {
	timeouts int
	last     time.Duration // the last timeout; 0: not known
}

// noteTimeout notes that netstack has sent the first segment again, and data before that at before.
func (s *silence) noteTimeout(now, before tcpip.MonotonicTime) {
	s.timeouts = min(s.timeouts+1, maxResends)
	if before != (tcpip.MonotonicTime{}) {
		s.last = now.Sub(before)
	}
}

// nextTimeout returns how long after netstack's last timeout its next is over, if its first one was
// no longer than first.
func (s *silence) nextTimeout(first time.Duration) time.Duration {
	switch {
	case s.timeouts == 0:
		return 0
	case s.last == 0:
		return 2 * first
	}
	return min(2*s.last, first<<s.timeouts, maxTimeout) + 2*resendTick
}

// stampAt returns the timestamp that netstack would send now: it counts milliseconds.
func (f *resendFlow) stampAt(now tcpip.MonotonicTime) uint32 {
	return f.stamp + uint32(now.Sub(f.at).Milliseconds())
}

// update writes what is new in the header of a segment sent again.
func (f *resendFlow) update(frame []byte, l *hdr.Packet, seq uint32, now tcpip.MonotonicTime) {
	tcp := frame[l.L4:]
	copy(frame, f.macs[:])
	binary.BigEndian.PutUint32(tcp[4:], seq)
	f.renew(tcp, now)
}

// renew writes into a TCP header what netstack would write there now, besides the checksum.
func (f *resendFlow) renew(tcp []byte, now tcpip.MonotonicTime) {
	binary.BigEndian.PutUint32(tcp[8:], f.ack)
	binary.BigEndian.PutUint16(tcp[14:], f.window)
	if stamp := hdr.OptionsOf(tcp).Timestamp; stamp != nil {
		binary.BigEndian.PutUint32(stamp[2:], f.stampAt(now))
		binary.BigEndian.PutUint32(stamp[6:], f.echo)
	}
}

// begin arms the timer, and reports whether flows may be kept.
func (r *resender) begin() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.armed {
		return !r.closed
	}
	r.armed, r.at = true, r.clock.NowMonotonic().Add(resendTick)
	if r.timer == nil {
		r.timer = r.clock.AfterFunc(resendTick, r.expire)
	} else {
		r.timer.Reset(resendTick)
	}
	return true
}

// resendDue is a flow to send something of.
type resendDue struct {
	key  hdr.Tuple
	flow *resendFlow
	like *gstack.PacketBuffer // of the flow; a reference
	size int                  // segments; 0: what is missing
}

// expire is the timer's.
func (r *resender) expire() {
	r.mu.Lock()
	r.armed = false
	r.mu.Unlock()
	if r.number.Load() > 0 {
		r.begin()
	}
	r.sendDue()
}

// repeat has all flows wait anew, and sends something of each.
func (r *resender) repeat() {
	for i := range r.shards {
		shard := &r.shards[i]
		shard.mu.Lock()
		for _, f := range shard.flows {
			f.linkUp(r.clock.NowMonotonic())
		}
		shard.mu.Unlock()
	}
	r.sendDue()
}

// sendDue sends what is due.
func (r *resender) sendDue() {
	for i := range r.shards {
		shard := &r.shards[i]
		for _, d := range r.due(shard) {
			if d.size == 0 {
				r.sendRepair(shard, d)
			} else {
				r.send(shard, d)
			}
			d.like.DecRef()
		}
	}
}

// send sends the first segments of a flow again, or forgets the flow.
func (r *resender) send(shard *resendShard, d resendDue) {
	if r.timeOut(shard, d) {
		return
	}
	for i := range d.size {
		if r.post(d.like, func() *gstack.PacketBuffer {
			shard.mu.Lock()
			defer shard.mu.Unlock()
			if i > 0 {
				return d.flow.next(r.clock.NowMonotonic())
			}
			return d.flow.first(r.clock.NowMonotonic())
		}) {
			r.count.Add(1)
			continue
		}
		shard.mu.Lock()
		defer shard.mu.Unlock()
		if shard.flows[d.key] == d.flow {
			r.drop(shard, d.key)
		}
		return
	}
}

// timeOut ends a connection whose peer has been silent for too long, as netstack's timer would, by
// a reset from the peer. It reports whether it did.
func (r *resender) timeOut(shard *resendShard, d resendDue) bool {
	owner, ok := d.like.Owner.(connection)
	if !ok {
		return false
	}
	shard.mu.Lock()
	silent := d.flow.silentFor(r.clock.NowMonotonic())
	shard.mu.Unlock()
	limit := owner.TimeOut(silent)
	shard.mu.Lock()
	d.flow.limit = limit
	if silent < limit || shard.flows[d.key] != d.flow {
		shard.mu.Unlock()
		return false
	}
	frame := d.flow.reset(d.like)
	r.drop(shard, d.key)
	shard.mu.Unlock()
	r.silent.Add(1)
	r.deliver(frame)
	return true
}

// silentFor returns for how long data has waited without anything from the peer.
func (f *resendFlow) silentFor(now tcpip.MonotonicTime) time.Duration {
	return min(now.Sub(f.since), now.Sub(f.ackAt))
}

// reset makes the peer's reset of the connection of a packet.
func (f *resendFlow) reset(like *gstack.PacketBuffer) []byte {
	frame := append([]byte(nil), hdr.SentHeaders(like)[:like.HeaderSize()]...)
	var l hdr.Packet
	l.ParseSent(frame)
	frame = frame[:l.L4+hdr.TCPLen]
	tcp, addresses := frame[l.L4:], frame[l.L3+12:l.L3+20]
	if l.EtherType == hdr.TypeIPv6 {
		addresses = frame[l.L3+8 : l.L3+40]
	}
	copy(frame, f.macs[:])
	swapHalves(frame[:12])
	swapHalves(addresses)
	swapHalves(tcp[:4])
	binary.BigEndian.PutUint32(tcp[4:], f.ack)
	binary.BigEndian.PutUint32(tcp[8:], f.una)
	tcp[12], tcp[13] = hdr.TCPLen/4<<4, hdr.FlagRST|hdr.FlagACK
	l.Seal(frame)
	return frame
}

func swapHalves(b []byte) {
	for i, n := 0, len(b)/2; i < n; i++ {
		b[i], b[n+i] = b[n+i], b[i]
	}
}

// due finds the flows of a shard that have waited long enough, and forgets those that need nothing
// any more.
func (r *resender) due(shard *resendShard) (due []resendDue) {
	now := r.clock.NowMonotonic()
	shard.mu.Lock()
	defer shard.mu.Unlock()
	for t, f := range shard.flows {
		if len(f.paced.waiting) > 0 {
			continue
		}
		if f.repairDue(now) && len(f.parts) > 0 {
			due = append(due, resendDue{t, f, f.parts[0].pkt.IncRef(), 0})
			continue
		}
		switch still, stuck := now.Sub(f.moved), f.stuck(now); {
		case len(f.parts) == 0 && still >= resendIdle,
			f.tries >= maxResends && f.limit == 0 && still >= f.wait():
			r.drop(shard, t)
		case f.repeated && len(f.parts) > 0 && (f.due || stuck || still >= f.wait() ||
			f.limit > 0 && f.silentFor(now) >= f.limit):
			f.tries, f.due = f.tries+1, false
			f.moved = now
			due = append(due, resendDue{t, f, f.parts[0].pkt.IncRef(), f.round.begin(stuck)})
		}
	}
	return due
}

// clear forgets all flows.
func (r *resender) clear() {
	for i := range r.shards {
		shard := &r.shards[i]
		shard.mu.Lock()
		for t := range shard.flows {
			r.drop(shard, t)
		}
		shard.mu.Unlock()
	}
}

// close forgets all flows and keeps none any more. It may be called again.
func (r *resender) close() {
	r.mu.Lock()
	r.closed = true
	if r.timer != nil {
		r.timer.Stop()
	}
	r.mu.Unlock()
	r.clear()
}

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
// Upstream: docs/upstream/05-go-back.md. No longer needed when TestGoBackOfNetstack fails.

// maxRound bounds the segments of a round: on a long path thousands are in flight.
const maxRound = 256

// round holds what is sent again from here at once.
type round struct {
	size int    // segments; 0: there was none since netstack has sent data
	end  uint32 // of what was sent
}

// stuck reports whether netstack has let pass the acknowledgement of all that was sent in the round
// before without sending anything, in a flight that it has to send again: after a timeout, or where
// that round was sent as nothing else was for a while.
func (f *resendFlow) stuck(now tcpip.MonotonicTime) bool {
	if !f.told || f.tries > 0 || len(f.parts) == 0 || hdr.Before(f.una, f.parts[0].seq) ||
		!f.dataAt.Before(f.moved) {
		return false
	}
	gap := answerGap
	switch {
	case !f.back.on && f.round.size == 0:
		return false
	case !f.back.on:
		gap = max(gap, f.rtt) // what was in flight may be acknowledged meanwhile
	}
	return now.Sub(f.moved) >= gap && (f.round.size == 0 || !hdr.Before(f.una, f.round.end))
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
	if most := f.room(p.pkt); data.Size() > most {
		data = data.Capped(most)
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

// Behaviour: after a timeout netstack sends again from the first unacknowledged segment on, a few
// at first (slow start). The acknowledgement of that segment has RACK (RFC 8985) find that
// everything sent before it is lost, which begins a fast recovery, although the timeout has begun
// one: the congestion window becomes 0.7 of what little it is. In it all segments count as in
// flight, for only what SACK tells makes them lost there (transport/tcp/snd.go SetPipe): more than
// the window, so that one segment is sent, and then nothing until the next timeout. After an outage
// a flight of 700 segments is repaired by two segments each timeout.
//
// Fix: after a timeout, and once the link carries frames again, the timestamp that an
// acknowledgement of the flight echoes is made older than the retransmission, until all of the
// flight is acknowledged. RACK takes no account of such an acknowledgement of a segment sent twice
// (section 6.2 step 2), and netstack goes on in slow start. The round trip is measured that much
// too long, and TCP.SpuriousRecovery counts a recovery that was not (RFC 3522).
//
// netstack takes the time of a segment before it makes the packet with the timestamp. On a slow or
// busy machine milliseconds may lie between, so that the timestamp of the segment before, which had
// been sent by then, is the latest that is surely older.
//
// Upstream: docs/upstream/05-go-back.md. No longer needed when TestGoBackOfNetstack fails.

const (
	// echoAge says by how many ms the echo becomes older than the segment before. netstack rounds
	// the time of a segment and its timestamp each by itself.
	echoAge = 2
	// maxEchoAge bounds, in ms, how much older than a segment itself the one before it counts.
	maxEchoAge = 50
	// maxBounds bounds how many times of sending are told apart.
	maxBounds = 256
)

// timeoutGap gives the least time between two timeouts of a segment: netstack's retransmission
// timer doubles, from 120 ms by default.
const timeoutGap = 100 * time.Millisecond

// answerGap is longer than netstack takes to send again what an acknowledgement shows to be lost.
const answerGap = 10 * time.Millisecond

// goBack holds the state of that for one flow.
type goBack struct {
	on   bool
	end  uint32      // of what was sent before
	sent []sentAfter // by netstack, and not acknowledged
}

// sentAfter says that netstack sent the data from seq to end at stamp and later than bound, both in
// units of its timestamps.
type sentAfter struct{ seq, end, stamp, bound uint32 }

// begin makes echoes older until what comes before end is acknowledged. netstack sends from first
// on again, with the timestamp stamp.
func (b *goBack) begin(first, end, stamp uint32) {
	b.on, b.end = true, end
	b.sent = append(b.sent[:0], sentAfter{first, first + 1, stamp, stamp - maxEchoAge})
}

// noteSent notes that netstack has sent data with a timestamp, so long after what it sent before.
func (b *goBack) noteSent(seq, end, stamp uint32, since time.Duration) {
	if !b.on || stamp == 0 {
		return
	}
	if n := len(b.sent); n > 0 {
		last := &b.sent[n-1]
		if n == maxBounds || last.stamp == stamp && last.end == seq {
			if hdr.Before(last.end, end) {
				last.end = end // its bound is older
			}
			return
		}
	}
	bound := stamp - uint32(min((since+time.Millisecond-1).Milliseconds(), maxEchoAge))
	b.sent = append(b.sent, sentAfter{seq, end, stamp, bound})
}

// echoOf returns what an acknowledgement of what comes before ack is to echo in place of echo.
func (b *goBack) echoOf(ack, echo uint32) uint32 {
	left := b.sent[:0]
	for _, x := range b.sent {
		if hdr.Before(x.seq, ack) && hdr.Before(x.bound, echo) {
			echo = x.bound
		}
		if hdr.Before(ack, x.end) {
			left = append(left, x)
		}
	}
	b.sent = left
	return echo - echoAge
}

// linkUp notes that the link carries frames again.
func (f *resendFlow) linkUp(now tcpip.MonotonicTime) {
	f.tries, f.due, f.since = 0, true, now
	if !f.back.on {
		f.goBack()
	}
}

// timedOut reports whether netstack sends data from seq on again because of a timeout, as far as is
// known: it is what the peer waits for, netstack has sent nothing for a while, and no
// acknowledgement has had it do so.
func (f *resendFlow) timedOut(seq uint32, now tcpip.MonotonicTime) bool {
	return !f.own && !hdr.Before(f.una, seq) && now.Sub(f.dataAt) >= timeoutGap &&
		now.Sub(f.ackAt) >= answerGap
}

// goBack makes echoes older. What netstack has sent again in vain begins with the flow's first
// segment after a timeout, and is the last after a tail loss probe alone.
func (f *resendFlow) goBack() {
	if f.dataStamp != 0 && len(f.parts) > 0 && !hdr.Before(f.una, f.parts[0].seq) &&
		hdr.Before(f.parts[0].end, f.end) {
		f.back.begin(f.una, f.end, f.dataStamp)
	}
}

// age makes the timestamp that an acknowledgement echoes older, and reports whether it did.
func (b *goBack) age(s *hdr.Segment) bool {
	if !b.on || s.Flags()&hdr.FlagACK == 0 {
		return false
	}
	_, ack := hdr.Numbers(s.TCP())
	if !hdr.Before(ack, b.end) {
		*b = goBack{}
		return false
	}
	stamp := s.Options().Timestamp
	if stamp == nil {
		return false
	}
	echo := b.echoOf(ack, binary.BigEndian.Uint32(stamp[6:]))
	binary.BigEndian.PutUint32(stamp[6:], echo)
	return true
}

// Behaviour: RACK takes no account of a SACK of what was sent again if the acknowledgement echoes
// an older timestamp than that (transport/tcp/rack.go update). But the echo is that of the last
// segment in sequence (RFC 7323 section 4.3), older than all that was sent again, as long as what
// the peer waits for is missing. Where that is lost once more nothing tells netstack: the timeout
// comes, with a threshold of two segments. Slow start into a queue of 100 ms, with a round trip of
// 200 ms, took 6 s to repair.
//
// Fix: an acknowledgement of nothing new with SACK echoes nothing. RACK then takes no account of
// what comes sooner after it was sent again than the shortest round trip, which is what Linux does.
//
// Upstream: docs/upstream/40-resend-echo.md. No longer needed when TestResendEcho of
// tests/conformance/upstream fails.

// hideEcho takes the echo out of an acknowledgement of nothing new, and reports whether it did.
func (f *resendFlow) hideEcho(s *hdr.Segment) bool {
	o := s.Options()
	if !f.repeated || f.back.on || s.Payload > 0 || o.SACK == nil || o.Timestamp == nil {
		return false
	}
	echo := o.Timestamp[6:10]
	hidden := binary.BigEndian.Uint32(echo) != 0
	clear(echo)
	return hidden
}

// connection represents the connection that a packet is of. The owner of its packets may implement
// it. netstack calls the link with the connection's lock held.
type connection interface {
	// SentBefore returns where the data ends that the connection has sent before the packet, if
	// that is known.
	SentBefore() (end uint32, known bool)
	// CountResend notes that data up to end is sent again.
	CountResend(end uint32)
	// Unread returns how many of the segments received wait for netstack to look at them, at most
	// most. It may be called without that lock.
	Unread(most int) int
	// NoteLost and NoteNeedless say of a flight of which some was sent again, once the peer has all
	// of it, that it had lost something, or that nothing was lost. They may be called without that
	// lock, and do not block.
	NoteLost()
	NoteNeedless()
	// TimeOut returns for how long the peer may leave data unacknowledged without sending anything,
	// more than 0, and is told for how long it has. Reads and writes fail with ETIMEDOUT if that is
	// as long. It is called without that lock.
	TimeOut(silent time.Duration) (limit time.Duration)
}

// Behaviour: where a whole flight is lost netstack's tail loss probe sends the last segment again.
// The SACK of it has RACK (RFC 8985) find that all others are lost, which begins a fast recovery.
// In that, a segment counts as lost only if SACK tells of two segments behind it, or of three
// blocks (RFC 6675 section 4; transport/tcp/snd.go SetPipe): here all count as in flight, more than
// the window. One is sent again, and after the timeout two each: see resend.go. 50 ms without a
// path cost a transfer of 3 MB/s, with a window of 256 KiB, 15 s.
//
// Fix: after something was sent again, a SACK option that tells of less than that is taken out
// while far more is missing. The timeout comes then, and netstack goes on in slow start, until all
// of the flight is acknowledged without such SACK. RFC 2018 section 4 lets a receiver of data send
// none.
//
// Upstream: docs/upstream/05-go-back.md. No longer needed when TestGoBackOfNetstack fails.

// tailFlight is from how many segments in flight on that is done.
const tailFlight = 8

// onWire returns how much of a packet with size bytes a frame carries.
func (f *resendFlow) onWire(pkt *gstack.PacketBuffer, size uint32) uint32 {
	if gso := &pkt.GSOOptions; gso.Type != gstack.GSONone {
		return min(size, uint32(gso.MSS), uint32(f.room(pkt)))
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

// Behaviour: netstack sends a FIN again behind each segment that fast recovery sends again, as RACK
// takes it for lost each time, and counts how often (transport/tcp/rack.go, DoRecovery). The next
// timeout gives the connection up if that is more than TCP_RETR2, 15 by default, without a word to
// the peer, be it milliseconds after the peer has acknowledged all data (snd.go,
// retransmitTimerExpired; Linux counts timeouts only). The FIN is left because netstack as a
// receiver throws away one that came behind a gap: of a segment without data it looks at the byte
// before (rcv.go, handleRcvdSegment).
//
// Fix: where something has been sent again, a FIN that is left when all data is acknowledged is
// sent again finWait later.
//
// Upstream: docs/upstream/06-fin-count.md. No longer needed when the row "a FIN that was sent too
// often to be sent again by a timeout" of tests/conformance/tcp passes without it.

// finWait says how long the acknowledgement of a FIN may come after that of the data before it.
const finWait = time.Millisecond

// finLeft reports whether a FIN is all that the peer has not acknowledged.
func (f *resendFlow) finLeft() bool {
	return len(f.parts) == 1 && f.parts[0].seq == f.una && f.parts[0].pkt.Data().Size() == 0
}

// soon has the timer expire after d, if not earlier. It is set: there are flows.
func (r *resender) soon(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if at := r.clock.NowMonotonic().Add(d); r.armed && !r.closed && at.Before(r.at) {
		r.at = at
		r.timer.Reset(d)
	}
}
