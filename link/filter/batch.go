package filter

import (
	"encoding/binary"
	"math/bits"
	"sync/atomic"
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
	drops   uint64 // by rules that may drop ahead of the filter
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
	b.count = 0
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
	lastLooked
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
	var s *sources
	var entries *addressIndex
	var key uint64
	var proto, high, low uint8
	switch h := (*[usualLen4]byte)(ip); {
	case h[0] == 4<<4|ipv4Len/4 && h[6]&((offsetBits|moreBit)>>8) == 0 && h[7] == 0:
		s, entries, key = &in.v4, b.own[0], uint64(binary.BigEndian.Uint32(h[12:]))
		proto, high, low = h[9], h[ipv4Len+2], h[ipv4Len+3]
	case h[0]>>4 == 6 && len(ip) >= usualLen6:
		h := (*[usualLen6]byte)(ip)
		s, entries, key = &in.v6, b.own[1], bigEndian64(h[8:])
		proto, high, low = h[6], h[ipv6Len+2], h[ipv6Len+3]
	default:
		return unusual
	}
	k := usualKind(proto)
	if !k.isOf(proto) {
		return unusual
	}
	class := s.by.high.look(key)
	if class >= within || entries != nil && entries.high.look(key) != 0 {
		return further
	}
	o := s.outcomeOf(uint32(class), k, high, low)
	n := b.count
	if o >= firstHits || n == uint8(len(b.decided)-1) {
		return Looked(o)
	}
	b.decided[n], b.count = uint8(o), n+1
	return passed
}

// Decide says why a packet that Look does not let pass is dropped; "": it is not, and is counted.
func (b *Batch) Decide(ip []byte, l Looked) string {
	o := outcome(l)
	if o < dropped || o >= asked {
		return b.decideFurther(ip, l)
	}
	n := uint32(o &^ dropped)
	b.countHit(n)
	return b.drop(ip, n)
}

// decideFurther does what Decide does where Look has found no rule that drops.
func (b *Batch) decideFurther(ip []byte, l Looked) string {
	switch l {
	case further:
		return b.receiveFurther(ip)
	case unusual:
		return b.receiveAny(ip)
	}
	n := uint32(l)
	if o := outcome(l); o >= asked {
		d := &b.in.byPort.all[o&^asked]
		flags := uint8(0)
		if proto, h := usualTransport(ip); proto == protoTCP {
			flags = h[13]
		}
		if d.asks.has(flags) {
			return b.receiveAny(ip)
		}
		n = uint32(d.number)
		if d.verdict == Drop {
			b.countHit(n)
			return b.drop(ip, n)
		}
	}
	b.countHit(n)
	return ""
}

// drop says why a whole packet is dropped that a rule is against, from 1, or the policy, 0; "": it
// is not, as what this host has begun lets it pass.
func (b *Batch) drop(ip []byte, n uint32) string {
	if b.letsUsual(ip, n == 0) {
		return ""
	}
	if n > 0 && b.c.spans[n-1] != nil && b.sampleDrop() {
		b.packet.Read(ip)
		b.c.tallySource(int32(n), &b.packet, sampledDrops)
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

// receiveFurther does what Receive does where one look at the source is not enough.
func (b *Batch) receiveFurther(ip []byte) string {
	s, entries := &b.in.v4, b.own[0]
	var src address
	if ip[0]>>4 == 4 {
		src.hi = uint64(binary.BigEndian.Uint32(ip[12:]))
	} else {
		s, entries = &b.in.v6, b.own[1]
		src = address{bigEndian64(ip[8:]), bigEndian64(ip[16:])}
	}
	if entries != nil {
		if n := entries.find(src); n > 0 {
			if b.passesEntry(n) || b.letsUsual(ip, false) {
				return ""
			}
			return b.dropByEntry(n)
		}
	}
	proto, h := usualTransport(ip)
	o := s.outcomeOf(s.by.find(src), usualKind(proto), h[2], h[3])
	return b.Decide(ip, Looked(o))
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
	if n > 0 && c.spans[n-1] != nil && b.sampleDrop() {
		c.tallySource(n, p, sampledDrops)
		b.f.offload.wakeUp()
	}
	return in.why[n]
}

// sampleDrop reports whether a packet that is dropped counts for all that were since the last one.
func (b *Batch) sampleDrop() bool {
	b.drops++
	return b.drops%sampledDrops == 0
}
