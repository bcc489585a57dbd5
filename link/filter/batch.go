package filter

import (
	"encoding/binary"
	"math/bits"
	"sync/atomic"
	"time"
)

// Batch judges the packets that one goroutine receives. The zero value is ready.
type Batch struct {
	f      *Filter
	c      *compiled
	in     *program         // of c; nil: there is none
	own    [2]*addressIndex // c.special
	time   moment
	packet Packet
	// decided holds the numbers of so many rules, one for each packet decided about, that End is to
	// count: the next packet would wait for an addition to one of many counts.
	decided [1 << 8]uint8
	count   uint8
	entry   pending
	// drops counts packets that rules have dropped since the last one that was counted by its
	// source, for them all: the next one is from sampleAt on, which follows what batches drop.
	drops, sampleAt uint32
}

// firstHits says how many counts of a list, that of the policy first, a batch adds to at its end. A
// batch of more than 255 packets adds to them before.
const firstHits = 64

// pending holds packets that are to be added to a count.
type pending struct {
	to *atomic.Uint64
	n  uint64
}

// flush adds them.
func (p *pending) flush() {
	if p.n > 0 {
		p.to.Add(p.n)
		p.n = 0
	}
}

// moment holds the time at which packets of a batch are judged, read from the clock when it is
// asked for first.
type moment struct {
	sinceMade int64 // in nanoseconds
	known     bool
}

// nanoseconds returns the time since f was made.
func (m *moment) nanoseconds(f *Filter) int64 {
	if !m.known {
		m.sinceMade, m.known = int64(f.clock.Since(f.made)), true
	}
	return m.sinceMade
}

// seconds returns the time since f was made.
func (m *moment) seconds(f *Filter) uint32 { return uint32(m.nanoseconds(f) / int64(time.Second)) }

// Begin begins a batch of packets, up to End, which are judged by the list as it is now, all as of
// one time, and reports whether they need be judged at all. f may be nil.
func (b *Batch) Begin(f *Filter) bool {
	if f == nil {
		return false
	}
	b.f, b.c, b.time = f, f.current.Load(), moment{}
	if b.c == nil || !b.c.judges[Input] {
		return false
	}
	b.in, b.own = b.c.chains[Input], b.c.special
	return true
}

// End publishes the counts.
func (b *Batch) End() {
	var hits [firstHits]uint64
	touched := uint64(0) // which of them are not 0
	for _, n := range b.decided[:b.count] {
		hits[n&(firstHits-1)]++
		touched |= 1 << (n & (firstHits - 1))
	}
	b.count, b.sampleAt = 0, max(b.sampleAt/2, sampledDrops)
	for ; touched != 0; touched &= touched - 1 {
		n := bits.TrailingZeros64(touched)
		b.c.hits[Input][n].Add(hits[n])
	}
	b.entry.flush()
}

// countHit counts a packet that a rule has decided; 0: the policy.
func (b *Batch) countHit(n uint32) {
	if n < firstHits && b.count < uint8(len(b.decided)-1) {
		b.decided[b.count] = uint8(n)
		b.count++
	} else {
		b.c.hits[Input][n].Add(1)
	}
}

// Looked says what Look has found of a packet.
type Looked uint16

const (
	passed  Looked = 1<<16 - 1 - iota
	further        // to be judged by receiveFurther
	unusual        // to be judged by receiveAny
	// turnedAway says, with the number of one of the first rules or the policy's, that this drops
	// the packet, which is counted.
	turnedAway = unusual - firstHits
	// ofClass says, with the number of the class of the source, that no entry has it; with rest,
	// that it takes more to tell.
	ofClass    = turnedAway - (rest + 1)
	lastLooked = ofClass
)

// Passes reports whether the packet passes, and is counted.
func (l Looked) Passes() bool { return l == passed }

// Receive says why a received packet, from its IP header on, is dropped; "": it is not.
func (b *Batch) Receive(ip []byte) string {
	if l := b.Look(ip); !l.Passes() {
		return b.Decide(ip, l)
	}
	return ""
}

// Look does the part of Receive that is enough for most packets. The caller passes what it returns
// to Decide, unless the packet passes.
//
// Whole TCP segments and datagrams without options or extension headers are decided by two looks:
// at the source and at the destination port. Look calls nothing and checks each index before it is
// used, so that the compiler saves no registers.
func (b *Batch) Look(ip []byte) Looked {
	in := b.in
	if len(ip) < usualLen4 || in == nil {
		return unusual
	}
	s, entries := &in.v4, b.own[0]
	var key uint64
	var proto, high, low, flags uint8 // flags: of TCP
	switch h := (*[usualLen4]byte)(ip); {
	case h[0] == 4<<4|ipv4Len/4 && h[6]&((offsetBits|moreBit)>>8) == 0 && h[7] == 0:
		key = uint64(binary.BigEndian.Uint32(h[12:]))
		proto, high, low, flags = h[9], h[ipv4Len+2], h[ipv4Len+3], h[usualLen4-1]
	case h[0]>>4 == 6 && len(ip) >= usualLen6:
		h := (*[usualLen6]byte)(ip)
		s, entries = &in.v6, b.own[1]
		key = bigEndian64(h[8:])
		proto, high, low, flags = h[6], h[ipv6Len+2], h[ipv6Len+3], h[usualLen6-1]
	default:
		return unusual
	}
	k := usualKind(proto)
	if !k.isOf(proto) {
		return unusual
	}
	x := &s.by.high
	cell := x.cellOf(key)
	class := x.root.cells.code(cell)
	if class == rest {
		if entries != nil {
			return further
		}
		class = x.runs.codeIn(x.runs.wordOf(cell), key)
		by, n, drops := s.deniedBy[class], b.count, b.drops+1
		if by != 0 && drops < b.sampleAt && n != uint8(len(b.decided)-1) &&
			(k != kindTCP && high < firstDialPort>>8 || k == kindTCP && isFirstSYN(flags)) {
			b.decided[n], b.count, b.drops = by, n+1, drops
			return turnedAway + Looked(by)
		}
		return ofClass + Looked(class)
	}
	if entries != nil && entries.high.look(key) != 0 {
		return further
	}
	o := s.outcomeOf(uint32(class), k, high, low)
	n := b.count
	if n == uint8(len(b.decided)-1) {
		return Looked(o)
	}
	b.decided[n] = uint8(o)
	switch {
	case o < firstHits:
		b.count = n + 1
		return passed
	case o == refusedDatagram, o == refusedSegment && isFirstSYN(flags):
		b.count = n + 1
		return turnedAway
	}
	if by := o &^ (firstHits - 1); by == refusedDatagram ||
		by == refusedSegment && isFirstSYN(flags) {
		if drops := b.drops + 1; drops < b.sampleAt {
			b.drops, b.count = drops, n+1
			return turnedAway + Looked(o-by)
		}
	}
	return Looked(o)
}

// Decide says why a packet that Look does not let pass is dropped; "": it is not, and is counted.
func (b *Batch) Decide(ip []byte, l Looked) string {
	if n := l - turnedAway; n < firstHits {
		return b.in.refusals[n]
	}
	return b.decideLooked(ip, l)
}

// decideLooked does what Decide does for what Look has not decided about.
func (b *Batch) decideLooked(ip []byte, l Looked) string {
	switch {
	case l == further, l == ofClass+rest:
		return b.receiveFurther(ip)
	case l == unusual:
		return b.receiveAny(ip)
	case l >= ofClass:
		return b.decideClass(ip, uint32(l-ofClass))
	}
	return b.decideOutcome(ip, outcome(l))
}

// decideOutcome does what Decide does for a packet that Look has found to be whole.
func (b *Batch) decideOutcome(ip []byte, o outcome) string {
	o = o.asDropped()
	n := uint32(o &^ dropped)
	switch {
	case o >= asked:
		return b.decideAsked(ip, &b.in.byPort.all[o&^asked])
	case o > dropped:
		b.countHit(n)
		return b.drop(ip, n)
	case o == dropped:
		return b.refuse(ip)
	}
	b.countHit(n)
	return ""
}

// decideAsked does what Decide does if that depends on more than source and port.
func (b *Batch) decideAsked(ip []byte, d *decision) string {
	flags := uint8(0)
	if proto, h := usualTransport(ip); proto == protoTCP {
		flags = h[13]
	}
	if d.asks.has(flags) {
		return b.receiveAny(ip)
	}
	n := uint32(d.number)
	if d.verdict == Drop && n == 0 {
		return b.refuse(ip)
	}
	b.countHit(n)
	if d.verdict == Drop {
		return b.drop(ip, n)
	}
	return ""
}

// refuse says why the policy drops a whole packet; "": it does not, as what this host has begun
// lets it pass.
func (b *Batch) refuse(ip []byte) string {
	b.countHit(0)
	if b.letsUsual(ip, true) {
		return ""
	}
	return b.in.why[0]
}

// drop says why a whole packet is dropped that a rule is against, from 1; "": it is not, as what
// this host has begun lets it pass.
func (b *Batch) drop(ip []byte, n uint32) string {
	if b.letsUsual(ip, false) {
		return ""
	}
	if drops := b.sampleDrop(); drops > 0 && b.c.spans[n-1] != nil {
		b.c.tallySource(int32(n), usualSource(ip), drops)
		b.f.offload.wakeUp()
	}
	return b.in.why[n]
}

// Lengths of headers that are read at once: without options, with the flags of TCP.
const (
	usualLen  = 14
	usualLen4 = ipv4Len + usualLen
	usualLen6 = ipv6Len + usualLen
)

// usualKind returns the kind of TCP or UDP without a branch, and of others what isOf tells.
func usualKind(proto uint8) kind { return kind(proto >> 4) }

// isOf reports whether a protocol of which usualKind returned k is TCP or UDP, by a branch that
// both take.
func (k kind) isOf(proto uint8) bool { return proto == protoTCP+uint8(k)*(protoUDP-protoTCP) }

// usualTransport returns the protocol and the header behind that of IP of a packet that Receive has
// found to be whole.
func usualTransport(ip []byte) (proto uint8, header *[usualLen]byte) {
	if ip[0]>>4 == 4 {
		return ip[9], (*[usualLen]byte)(ip[ipv4Len:])
	}
	return ip[6], (*[usualLen]byte)(ip[ipv6Len:])
}

// usualSource returns the source of such a packet.
func usualSource(ip []byte) address {
	if ip[0]>>4 == 4 {
		return address{hi: uint64(binary.BigEndian.Uint32(ip[12:]))}
	}
	return address{bigEndian64(ip[8:]), bigEndian64(ip[16:])}
}

// receiveFurther does what Receive does where one look at the source is not enough.
func (b *Batch) receiveFurther(ip []byte) string {
	s, entries, src := &b.in.v4, b.own[0], usualSource(ip)
	if ip[0]>>4 != 4 {
		s, entries = &b.in.v6, b.own[1]
	}
	if entries != nil {
		if n := entries.find(src); n > 0 {
			if b.passesEntry(n) || b.letsUsual(ip, false) {
				return ""
			}
			return b.dropByEntry(n)
		}
	}
	return b.decideClass(ip, s.by.find(src))
}

// decideClass does what Decide does for a packet of which the source's class is known.
func (b *Batch) decideClass(ip []byte, class uint32) string {
	s := &b.in.v4
	if ip[0]>>4 != 4 {
		s = &b.in.v6
	}
	proto, h := usualTransport(ip)
	return b.decideOutcome(ip, s.outcomeOf(class, usualKind(proto), h[2], h[3]))
}

// passesEntry counts a packet of an entry, and reports whether it is let in whatever the list says.
func (b *Batch) passesEntry(n uint32) bool {
	e := b.c.entries[n-1]
	if to := &e.tally.n; b.entry.to != to {
		b.entry.flush()
		b.entry.to = to
	}
	b.entry.n++
	return e.Verdict == Allowed
}

// dropByEntry says why a packet of an entry is dropped.
func (b *Batch) dropByEntry(n uint32) string {
	b.f.offload.wakeUp()
	return b.c.why[n-1]
}

// receiveAny does what Receive does for any packet, rule by rule.
func (b *Batch) receiveAny(ip []byte) string {
	p, c := &b.packet, b.c
	if !p.Read(ip) {
		return "" // which the stack refuses
	}
	if n := c.entryOf(p); n > 0 {
		if b.passesEntry(n) || b.lets(p, ip, false) {
			return ""
		}
		return b.dropByEntry(n)
	}
	in := b.in
	if in == nil {
		return ""
	}
	v, n := in.judge(p, func(r *check) bool {
		if r.bySource != nil {
			return b.f.sourceReaches(c, r, p, b.time.nanoseconds(b.f))
		}
		return c.reaches(Input, r, b.time.nanoseconds(b.f))
	})
	b.countHit(uint32(n))
	if v == Accept {
		b.f.noteFragments(p, &b.time)
		return ""
	}
	if b.lets(p, ip, n == 0) {
		return ""
	}
	if n > 0 {
		if drops := b.sampleDrop(); drops > 0 && c.spans[n-1] != nil {
			c.tallySource(n, p.src, drops)
			b.f.offload.wakeUp()
		}
	}
	return in.why[n]
}

// sampleDrop counts a packet that a rule has dropped, and returns how many the packet is to count
// for by its source; 0: others do.
func (b *Batch) sampleDrop() uint64 {
	b.drops++
	if b.drops < b.sampleAt {
		return 0
	}
	drops := b.drops
	b.drops, b.sampleAt = 0, min(drops*sampleGrowth, maxSampled)
	return uint64(drops)
}

// tallySource counts packets that a rule has dropped by the range that their source is in.
func (c *compiled) tallySource(rule int32, src address, n uint64) {
	s := c.spans[rule-1]
	s.all[s.by.find(src)].n.Add(n)
}

// A list says nothing of three kinds of packets that a host cannot do without, so what it would
// drop of them passes:
//
//   - answers to what this host has begun: a TCP connection that it dialled, datagrams from a port
//     that dials use, echo requests. What is sent is noted if the list would drop the answer, for
//     about as long as Linux's conntrack does (net/netfilter/nf_conntrack_proto_*.c);
//   - messages of ICMP about a packet that this host has sent, if the list lets in answers to that;
//   - later fragments of a packet whose first fragment has passed. They have no ports.

// lets reports whether a received packet passes although the list drops it, by the policy if policy
// is set.
func (b *Batch) lets(p *Packet, ip []byte, policy bool) bool {
	switch {
	case policy && p.isHousekeeping():
		return true
	case p.later:
		return b.f.hasFlow(fragmentsOf(p), &b.time, 0)
	case p.isError():
		return b.letsError(p, ip)
	case p.isAnswer() && b.f.hasFlow(receivedFlow(p), &b.time, p.flags):
		b.f.noteFragments(p, &b.time)
		return true
	}
	return false
}

// letsUsual does what lets does for a packet that Receive has found to be whole.
func (b *Batch) letsUsual(ip []byte, policy bool) bool {
	proto, h := usualTransport(ip)
	flags := uint8(0)
	switch {
	case proto == protoTCP:
		if flags = h[13]; isFirstSYN(flags) {
			return false
		}
	case policy && isHousekeepingPort(binary.BigEndian.Uint16(h[:]),
		binary.BigEndian.Uint16(h[2:])):
		return true
	case binary.BigEndian.Uint16(h[2:]) < firstDialPort:
		return false // noteSent remembers no datagrams from such ports
	}
	return b.f.flows.some.Load() && b.hasUsualFlow(ip, flags)
}

// isFirstSYN reports whether a segment with these flags begins a connection.
func isFirstSYN(flags uint8) bool { return flags&(flagSYN|flagACK) == flagSYN }

// hasUsualFlow reports whether the flow of such a packet is remembered, and has it stay so.
func (b *Batch) hasUsualFlow(ip []byte, flags uint8) bool {
	proto, h := usualTransport(ip)
	k := flow{proto: proto, family: 4, remotePort: binary.BigEndian.Uint16(h[:]),
		localPort: binary.BigEndian.Uint16(h[2:])}
	if ip[0]>>4 == 4 {
		k.remote.hi = uint64(binary.BigEndian.Uint32(ip[12:]))
		k.local.hi = uint64(binary.BigEndian.Uint32(ip[16:]))
	} else {
		k.family = 6
		k.remote = address{bigEndian64(ip[8:]), bigEndian64(ip[16:])}
		k.local = address{bigEndian64(ip[24:]), bigEndian64(ip[32:])}
	}
	return b.f.flows.has(&k, b.time.seconds(b.f), flags)
}

// letsError decides about a message of ICMP by the packet that it is about.
func (b *Batch) letsError(p *Packet, ip []byte) bool {
	const messageLen = 8
	var about Packet
	at := p.payload + messageLen
	if at > len(ip) || !about.Read(ip[at:]) || about.later || about.family != p.family ||
		about.src != p.dst {
		return false
	}
	answer := about.reversed()
	if v, _ := b.c.received(&answer); v == Accept {
		return true
	}
	return b.f.hasFlow(receivedFlow(&answer), &b.time, 0)
}
