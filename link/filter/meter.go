package filter

import (
	"encoding/binary"
	"hash/maphash"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// bySource says of a rule with a limit that each source has one of its own.
type bySource struct {
	set  string // its name: rules that name the same share what is counted
	size int    // how many sources are remembered at least
	bits int    // of a source's address that count
	// deny says for how long a source that stays over the limit is denied at first; 0: it is not
	deny time.Duration
}

// Sizes of a meter, in sources.
const (
	defaultSources = 1 << 16
	maxSources     = 1 << 18 // of all meters of a list
)

// meter holds a token bucket for each of the sources that were seen lately. Its size is fixed: of
// four sources that meet in one place the one that has used least of its limit goes for a fifth.
// What a flood of invented sources pushes out is thus other invented sources, of one packet each.
// Any goroutine may use it.
type meter struct {
	key     maphash.Seed
	places  []place // a power of two
	evicted atomic.Uint64
}

const ways = 4

// place holds the sources of one value of the hash.
type place struct {
	mu      sync.Mutex
	sources [ways]source
}

// source holds the state of one source. Times are nanoseconds since the filter was made.
type source struct {
	of     address
	family uint8 // 0: free
	full   int64 // when the bucket will be full again
	// since tells when the source began to be over its limit, last when it was so last
	since, last int64
}

// Times of a source that is over its limit.
const (
	// sustained says for how long a source is over its limit, again and again, before it is denied.
	sustained = 3 * time.Second
	// interruption says how long it may be within the limit meanwhile.
	interruption = time.Second
)

func newMeter(size int) *meter {
	n := 1
	for n*ways < size {
		n *= 2
	}
	return &meter{key: maphash.MakeSeed(), places: make([]place, n)}
}

// placeOf returns the place of a source.
func (m *meter) placeOf(of address, family uint8) *place {
	var b [17]byte
	binary.LittleEndian.PutUint64(b[:], of.hi)
	binary.LittleEndian.PutUint64(b[8:], of.lo)
	b[16] = family
	return &m.places[maphash.Bytes(m.key, b[:])&uint64(len(m.places)-1)]
}

// findSource returns the state of a source, which may be new. mu is held.
func (p *place) findSource(of address, family uint8, m *meter, now int64) *source {
	least := &p.sources[0]
	for i := range p.sources {
		s := &p.sources[i]
		if s.of == of && s.family == family {
			return s
		}
		if s.family == 0 && least.family != 0 ||
			(s.family == 0) == (least.family == 0) && s.full < least.full {
			least = s
		}
	}
	if least.family != 0 && least.full > now { // else nothing is forgotten
		m.evicted.Add(1)
	}
	*least = source{of: of, family: family}
	return least
}

// takePacket counts a packet of a source, unless it is over the limit, which it reports. A
// source that is so for long is told to d.
func (m *meter) takePacket(of address, family uint8, c *check, now int64, d *denials) (over bool) {
	l := c.limit
	each := int64(l.per) * int64(time.Second) / int64(l.amount)
	p := m.placeOf(of, family)
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.findSource(of, family, m, now)
	if next := max(s.full, now) + each; next-now <= each*int64(l.burst) {
		s.full = next
		return false
	}
	if s.since == 0 || now-s.last > int64(interruption) {
		s.since = max(now, 1)
	}
	s.last = now
	if by := c.bySource; by.deny > 0 && now-s.since >= int64(sustained) &&
		d.askDenial(denial{of, family, by.bits, by.deny}) {
		s.since = now
	}
	return true
}

// countSources returns how many sources are remembered, those with a full bucket included.
func (m *meter) countSources() (n int) {
	for i := range m.places {
		p := &m.places[i]
		p.mu.Lock()
		for j := range p.sources {
			if p.sources[j].family != 0 {
				n++
			}
		}
		p.mu.Unlock()
	}
	return n
}

// prefixOf returns the address with the bits behind the first ones 0.
func (a address) prefixOf(family uint8, bits int) address {
	switch {
	case family == 4:
		a.hi &= ^uint64(0) << (32 - bits)
	case bits <= 64:
		a.hi, a.lo = a.hi&(^uint64(0)<<(64-bits)), 0
	default:
		a.lo &= ^uint64(0) << (128 - bits)
	}
	return a
}

// prefixFrom returns the prefix of so many bits that begins at a.
func (a address) prefixFrom(family uint8, bits int) netip.Prefix {
	if family == 4 {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], uint32(a.hi))
		return netip.PrefixFrom(netip.AddrFrom4(b), bits)
	}
	var b [16]byte
	binary.BigEndian.PutUint64(b[:], a.hi)
	binary.BigEndian.PutUint64(b[8:], a.lo)
	return netip.PrefixFrom(netip.AddrFrom16(b), bits)
}
