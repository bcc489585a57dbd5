package packet

import (
	"bytes"
	"container/list"
	"encoding/binary"
	"net/netip"
	"sync"
	"time"
)

// Only the first fragment of a datagram says which port it is for, and any of them may come first.
// So a port with the host's MAC keeps fragments until their datagram is whole, and hands them on
// then, in order, if it is for a port of ours. Linux puts all of them together as well; its sockets
// for our ports take nothing that came by the interface.
const (
	// fragmentTime4 and fragmentTime6 say how long fragments wait for the others: Linux's defaults
	// of net.ipv4.ipfrag_time and net.ipv6.ip6frag_time.
	fragmentTime4 = 30 * time.Second
	fragmentTime6 = 60 * time.Second
	// maxFragmentBytes bounds what is kept, in bytes of memory: net.ipv4.ipfrag_high_thresh.
	maxFragmentBytes = 4 << 20
	// fragmentOverhead estimates what is kept beside a frame, and for each datagram, in bytes.
	fragmentOverhead = 256
)

// fragments keeps the fragments of a port with the host's MAC. Any goroutine may use it.
type fragments struct {
	mu      sync.Mutex
	byKey   map[fragmentKey]*fragmented // guarded by mu, as is what follows
	oldest  list.List                   // of *fragmented, the oldest first
	bytes   int                         // of all
	discard uint64                      // fragments that were kept in vain
}

// fragmentKey tells datagrams apart (RFC 791 section 3.2, RFC 8200 section 4.5).
type fragmentKey struct {
	from, to netip.Addr
	id       uint32
	proto    byte // of IPv4
}

// fragmented holds what has come of one datagram.
//
//	          first fragment, or two that overlap
//	unknown ─────────────────────────────────────▶ foreign: nothing of it is kept
//	   │
//	   │ first fragment, to a port of ours
//	   ▼
//	  ours ──▶ whole: its frames are handed on
//
// It is forgotten once it is whole, when its time is over, and when there is no room.
type fragmented struct {
	key     fragmentKey
	until   time.Time
	foreign bool
	total   int            // bytes of the datagram; 0: the last fragment has not come
	have    int            // bytes that have come
	parts   []fragmentPart // by their offsets; they do not overlap
	bytes   int            // of memory
	age     *list.Element
}

// fragmentPart holds one fragment: the bytes from at to end of the datagram.
type fragmentPart struct {
	at, end int
	frame   []byte
}

// fragment describes a frame with a fragment.
type fragment struct {
	key     fragmentKey
	at, end int  // of the datagram
	more    bool // others follow
	proto   byte // of the first: the transport protocol
	ports   bool // of the first: it has a port
	port    uint16
}

// add takes in a fragment, of which it keeps a copy. It returns the frames of its datagram once
// that is whole, and whether the fragment may be ours.
func (f *fragments) add(t *portTable, p *fragment, frame []byte,
	now time.Time) (whole [][]byte, taken bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forgetExpired(now)
	d := f.byKey[p.key]
	if d == nil {
		d = f.open(p.key, now)
	}
	if p.at == 0 && !d.foreign && !p.isFor(t) {
		f.disown(d)
	}
	if !d.foreign && !f.keep(d, p, frame) {
		f.disown(d)
	}
	if d.foreign {
		d.have += p.end - p.at
	}
	if !p.more {
		d.total = p.end
	}
	switch {
	case d.total == 0 || d.have < d.total:
	case d.foreign:
		f.forget(d)
	default:
		for _, part := range d.parts {
			whole = append(whole, part.frame)
		}
		f.forget(d)
	}
	f.makeRoom()
	return whole, !d.foreign
}

// isFor says whether a first fragment is for a port of ours.
func (p *fragment) isFor(t *portTable) bool {
	return p.ports && (p.proto == protoTCP || p.proto == protoUDP) &&
		t.hasPort(portKey{p.key.to, p.port, p.proto == protoUDP})
}

// open makes room for a datagram of which nothing has come.
func (f *fragments) open(key fragmentKey, now time.Time) *fragmented {
	lasts := fragmentTime4
	if key.to.Is6() {
		lasts = fragmentTime6
	}
	d := &fragmented{key: key, until: now.Add(lasts), bytes: fragmentOverhead}
	d.age = f.oldest.PushBack(d)
	if f.byKey == nil {
		f.byKey = map[fragmentKey]*fragmented{}
	}
	f.byKey[key] = d
	f.bytes += d.bytes
	return d
}

// keep adds a fragment to its datagram. False: it overlaps others, and so nothing of the datagram
// is to be used (RFC 5722 section 3). One that has come before is not kept twice: as Linux has it,
// for IPv4 too, also one that is within others (inet_frag_queue_insert in
// net/ipv4/inet_fragment.c).
func (f *fragments) keep(d *fragmented, p *fragment, frame []byte) bool {
	i := 0
	for i < len(d.parts) && d.parts[i].at < p.at {
		i++
	}
	if d.covers(p) {
		return true
	}
	if i > 0 && d.parts[i-1].end > p.at || i < len(d.parts) && d.parts[i].at < p.end ||
		d.total != 0 && (p.end > d.total || !p.more) ||
		!p.more && i < len(d.parts) {
		return false
	}
	d.parts = append(d.parts, fragmentPart{})
	copy(d.parts[i+1:], d.parts[i:])
	d.parts[i] = fragmentPart{p.at, p.end, bytes.Clone(frame)}
	d.have += p.end - p.at
	d.bytes += len(frame) + fragmentOverhead
	f.bytes += len(frame) + fragmentOverhead
	return true
}

// covers says whether all bytes of a fragment have come.
func (d *fragmented) covers(p *fragment) bool {
	next := p.at
	for _, part := range d.parts {
		if part.at <= next && next < part.end {
			next = part.end
		}
	}
	return next >= p.end
}

// disown notes that a datagram is not ours.
func (f *fragments) disown(d *fragmented) {
	f.bytes -= d.bytes - fragmentOverhead
	d.foreign, d.parts, d.bytes = true, nil, fragmentOverhead
}

// forget removes a datagram.
func (f *fragments) forget(d *fragmented) {
	delete(f.byKey, d.key)
	f.oldest.Remove(d.age)
	f.bytes -= d.bytes
}

// forgetExpired removes what has waited long enough.
func (f *fragments) forgetExpired(now time.Time) {
	for e := f.oldest.Front(); e != nil; e = f.oldest.Front() {
		d := e.Value.(*fragmented)
		if now.Before(d.until) {
			return
		}
		f.discard += uint64(len(d.parts))
		f.forget(d)
	}
}

// makeRoom removes the oldest datagrams where there are more than may be kept.
func (f *fragments) makeRoom() {
	for f.bytes > maxFragmentBytes {
		d := f.oldest.Front().Value.(*fragmented)
		f.discard += uint64(len(d.parts))
		f.forget(d)
	}
}

// discarded returns how many fragments were kept in vain.
func (f *fragments) discarded() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.discard
}

const (
	fragmentBits   = 0x3fff // of IPv4: more fragments, or an offset
	moreFragments4 = 0x2000
	extensionLen   = 8 // the least length of an extension header of IPv6, and a fragment's

	extHopByHop, extRouting, extFragment, extDestination = 0, 43, 44, 60
)

// parseFragment reads a frame without tag. Not ok: it is no fragment, or one that no host can use,
// which Linux refuses, and answers where that is due.
func parseFragment(frame []byte) (p fragment, ok bool) {
	if len(frame) < ethLen+ipv4Len {
		return p, false
	}
	switch ip := frame[ethLen:]; binary.BigEndian.Uint16(frame[12:]) {
	case typeIPv4:
		if binary.BigEndian.Uint16(ip[6:])&fragmentBits != 0 {
			return parseFragment4(ip)
		}
	case typeIPv6:
		if len(ip) >= ipv6Len && isExtension(ip[6]) {
			return parseFragment6(ip)
		}
	}
	return p, false
}

func parseFragment4(ip []byte) (p fragment, ok bool) {
	head, total := int(ip[0]&15)*4, int(binary.BigEndian.Uint16(ip[2:]))
	if ip[0]>>4 != 4 || head < ipv4Len || total <= head || total > len(ip) {
		return p, false
	}
	field := binary.BigEndian.Uint16(ip[6:])
	p.key = fragmentKey{netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:])),
		uint32(binary.BigEndian.Uint16(ip[4:])), ip[9]}
	p.at, p.more = int(field&0x1fff)*8, field&moreFragments4 != 0
	p.end, p.proto = p.at+total-head, ip[9]
	p.findPorts(ip[:total], head)
	return p, p.isUsable(65535 - head)
}

func parseFragment6(ip []byte) (p fragment, ok bool) {
	total := ipv6Len + int(binary.BigEndian.Uint16(ip[4:]))
	if ip[0]>>4 != 6 || total > len(ip) {
		return p, false
	}
	ip = ip[:total]
	next, at, plain := skipExtensions(ip, ip[6], ipv6Len)
	if !plain || next != extFragment || at+extensionLen >= total {
		return p, false
	}
	field := binary.BigEndian.Uint16(ip[at+2:])
	p.key = fragmentKey{from: netip.AddrFrom16([16]byte(ip[8:])),
		to: netip.AddrFrom16([16]byte(ip[24:])), id: binary.BigEndian.Uint32(ip[at+4:])}
	p.at, p.more = int(field&^7), field&1 != 0
	p.proto = ip[at]
	at += extensionLen
	p.end = p.at + total - at
	if p.at == 0 {
		if p.proto, at, plain = skipExtensions(ip, p.proto, at); !plain {
			return p, false
		}
	}
	p.findPorts(ip, at)
	return p, p.isUsable(65535)
}

// findPorts notes the destination port of a first fragment, whose transport header is at an offset
// of its packet.
func (p *fragment) findPorts(ip []byte, at int) {
	const ports = 4
	if p.at == 0 && at+ports <= len(ip) {
		p.ports, p.port = true, binary.BigEndian.Uint16(ip[at+2:])
	}
}

// isUsable says whether the datagram is no longer than there can be, and the fragment of a length
// that others can follow.
func (p *fragment) isUsable(longest int) bool {
	return p.end <= longest && (!p.more || p.end%8 == 0)
}

// isExtension says whether a protocol number is that of an extension header of IPv6.
func isExtension(next byte) bool {
	switch next {
	case extHopByHop, extRouting, extFragment, extDestination:
		return true
	}
	return false
}

// skipExtensions passes over extension headers of an IPv6 packet but a fragment's, from the one at
// an offset on, whose number is next. Not plain: they are cut off, or a host answers them, as Linux
// does (RFC 8200 sections 4.2 and 4.4).
func skipExtensions(ip []byte, next byte, at int) (proto byte, behind int, plain bool) {
	for first := true; next == extHopByHop || next == extRouting || next == extDestination; {
		if at+extensionLen > len(ip) {
			return next, at, false
		}
		size := extensionLen * (1 + int(ip[at+1]))
		const segmentsLeft = 3
		switch {
		case at+size > len(ip), next == extHopByHop && !first:
			return next, at, false
		case next == extRouting:
			if ip[at+segmentsLeft] != 0 {
				return next, at, false
			}
		case !areSkipped(ip[at+2 : at+size]):
			return next, at, false
		}
		next, at, first = ip[at], at+size, false
	}
	return next, at, true
}

// areSkipped says whether options are well-formed, and such that a host which does not know one
// goes on to the next: their two highest bits are 0.
func areSkipped(options []byte) bool {
	for len(options) > 0 {
		switch {
		case options[0] == 0: // Pad1, which has no length
			options = options[1:]
		case options[0]>>6 != 0 || len(options) < 2 || len(options) < 2+int(options[1]):
			return false
		default:
			options = options[2+int(options[1]):]
		}
	}
	return true
}
