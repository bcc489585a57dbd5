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
	time   moment
	packet Packet
	// hits holds what is to be added to the counts of the first rules at the end, and touched which
	// of them are not 0.
	hits    [firstHits]uint64
	touched uint64
	entry   pending
	drops   uint64 // by rules that may drop ahead of the filter
}

// firstHits says how many counts of a list, that of the policy first, a batch adds to at its end.
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
	return b.c != nil && b.c.judges[Input]
}

// End publishes the counts.
func (b *Batch) End() {
	for ; b.touched != 0; b.touched &= b.touched - 1 {
		n := bits.TrailingZeros64(b.touched)
		b.c.hits[Input][n].Add(b.hits[n])
		b.hits[n] = 0
	}
	b.entry.flush()
}

// countHit counts a packet that a rule has decided; 0: the policy.
func (b *Batch) countHit(n uint32) {
	if n < firstHits {
		b.hits[n]++
		b.touched |= 1 << n
	} else {
		b.c.hits[Input][n].Add(1)
	}
}

// Receive says why a received packet, from its IP header on, is dropped; "": it is not.
//
// Whole TCP segments and datagrams without options or extension headers are decided by two looks:
// at the source and at the destination port. What depends on more is left to other functions,
// behind whose calls nothing happens: to save values would take as long as the looks.
func (b *Batch) Receive(ip []byte) string {
	c := b.c
	in := c.chains[Input]
	if len(ip) < usualLen4 || in == nil {
		return b.receiveAny(ip)
	}
	var s *sources
	var entries *addressIndex
	var key uint64
	var proto, high, low uint8
	switch h := (*[usualLen4]byte)(ip); {
	case h[0] == 4<<4|ipv4Len/4 && binary.BigEndian.Uint16(h[6:])&(offsetBits|moreBit) == 0:
		s, entries, key = &in.v4, c.special[0], uint64(binary.BigEndian.Uint32(h[12:]))
		proto, high, low = h[9], h[ipv4Len+2], h[ipv4Len+3]
	case h[0]>>4 == 6 && len(ip) >= usualLen6:
		h := (*[usualLen6]byte)(ip)
		s, entries, key = &in.v6, c.special[1], bigEndian64(h[8:])
		proto, high, low = h[6], h[ipv6Len+2], h[ipv6Len+3]
	default:
		return b.receiveAny(ip)
	}
	if !isUsual(proto) {
		return b.receiveAny(ip)
	}
	class := s.by.high.look(key)
	if class >= within || entries != nil && entries.high.look(key) != 0 {
		return b.receiveFurther(ip)
	}
	o := in.byPort.find(s.tables[uint32(class)+uint32(usualKind(proto))], high, low)
	if o >= dropped {
		return b.dropUsual(ip, o)
	}
	b.countHit(uint32(o))
	return ""
}

// Lengths of headers that are read at once: without options, with the flags of TCP.
const (
	usualLen  = 14
	usualLen4 = ipv4Len + usualLen
	usualLen6 = ipv6Len + usualLen
)

// isUsual reports TCP and UDP, by a branch that both take.
func isUsual(proto uint8) bool { return (proto == protoTCP) != (proto == protoUDP) }

// usualKind returns the kind of TCP or UDP without a branch.
func usualKind(proto uint8) kind { return kind(proto >> 4 & 1) }

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
	c := b.c
	in := c.chains[Input]
	s, entries := &in.v4, c.special[0]
	var src address
	if ip[0]>>4 == 4 {
		src.hi = uint64(binary.BigEndian.Uint32(ip[12:]))
	} else {
		s, entries = &in.v6, c.special[1]
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
	o := in.byPort.find(s.tables[s.by.find(src)+uint32(usualKind(proto))], h[2], h[3])
	if o >= dropped {
		return b.dropUsual(ip, o)
	}
	b.countHit(uint32(o))
	return ""
}

// dropUsual says why a whole packet is dropped whose outcome is not that it is accepted; "": it is
// not, as more rules or what this host has begun let it pass.
func (b *Batch) dropUsual(ip []byte, o outcome) string {
	n := int32(o &^ dropped)
	if o >= asked {
		d := &b.c.chains[Input].byPort.all[o&^asked]
		flags := uint8(0)
		if proto, h := usualTransport(ip); proto == protoTCP {
			flags = h[13]
		}
		if d.asks.has(flags) {
			return b.receiveAny(ip)
		}
		if n = d.number; d.verdict == Accept {
			b.countHit(uint32(n))
			return ""
		}
	}
	b.countHit(uint32(n))
	if b.letsUsual(ip, n == 0) {
		return ""
	}
	if n > 0 && b.c.spans[n-1] != nil && b.sampleDrop() {
		b.packet.Read(ip)
		b.c.tallySource(n, &b.packet, sampledDrops)
		b.f.offload.wakeUp()
	}
	return b.c.chains[Input].why[n]
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
	in := c.chains[Input]
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
