package filter

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
)

// Verdict says what becomes of a packet.
type Verdict uint8

// The verdicts.
const (
	Accept Verdict = iota
	Drop
)

// String returns the word of the language.
func (v Verdict) String() string {
	if v == Drop {
		return "drop"
	}
	return "accept"
}

// Direction says on which way a chain judges packets.
type Direction uint8

// The directions.
const (
	Input Direction = iota
	Output
	directions
)

// String returns the name of the direction's chain.
func (d Direction) String() string {
	if d == Output {
		return "output"
	}
	return "input"
}

// List holds what Parse has read. It is not changed any more.
type List struct {
	// Text holds what was read.
	Text   string
	chains [directions]chainText
}

// chainText holds the rules of one direction; the zero value lets everything through.
type chainText struct {
	policy Verdict
	rules  []rule
	given  bool
}

// rule holds one line of a chain: all conditions that it has must hold.
type rule struct {
	line     int
	text     string
	verdict  Verdict
	family   uint8 // 4 or 6; 0: both
	src, dst *addressSet
	protos   *byteSet
	sport    *portSet
	dport    *portSet
	types    *byteSet // of ICMP
	limit    *rate
	bySource *bySource // of the limit; nil: the rule has one as a whole
	flags    *flagMatch
}

// flagMatch holds a condition on the flags of a TCP segment: those of mask are those of value.
type flagMatch struct{ value, mask uint8 }

// address holds an IP address as two words; those of IPv4 are in the low 32 bits of the first.
type address struct{ hi, lo uint64 }

func (a address) compare(b address) int {
	switch {
	case a.hi != b.hi:
		if a.hi < b.hi {
			return -1
		}
		return 1
	case a.lo < b.lo:
		return -1
	case a.lo > b.lo:
		return 1
	}
	return 0
}

// highest returns the last address of a family.
func highest(family uint8) address {
	if family == 4 {
		return address{hi: math.MaxUint32}
	}
	return address{math.MaxUint64, math.MaxUint64}
}

// next returns the address behind a, which is not the last one.
func (a address) next(family uint8) address {
	if family == 4 {
		return address{hi: a.hi + 1}
	}
	if a.lo++; a.lo == 0 {
		a.hi++
	}
	return a
}

// previous returns the address in front of a, which is not the first one.
func (a address) previous(family uint8) address {
	if family == 4 {
		return address{hi: a.hi - 1}
	}
	if a.lo == 0 {
		a.hi--
	}
	a.lo--
	return a
}

// addressOf returns the words of an address, and its family.
func addressOf(a netip.Addr) (address, uint8) {
	if a.Is4() {
		b := a.As4()
		return address{hi: uint64(b[0])<<24 | uint64(b[1])<<16 | uint64(b[2])<<8 | uint64(b[3])}, 4
	}
	b := a.As16()
	return address{bigEndian64(b[:8]), bigEndian64(b[8:])}, 6
}

// span holds a range of addresses, both ends included.
type span struct{ first, last address }

// spanOf returns the addresses of a prefix.
func spanOf(p netip.Prefix) (span, uint8) {
	first, family := addressOf(p.Masked().Addr())
	last, bits := first, p.Bits()
	switch {
	case family == 4:
		last.hi |= math.MaxUint32 >> bits
	case bits <= 64:
		last = address{first.hi | math.MaxUint64>>bits, math.MaxUint64}
	default:
		last.lo |= math.MaxUint64 >> (bits - 64)
	}
	return span{first, last}, family
}

// addressSet holds addresses of one family, in ascending ranges that do not touch.
type addressSet struct {
	family uint8
	spans  []span
}

// newAddressSet takes ranges in any order, which may overlap, or with not set all others.
func newAddressSet(family uint8, spans []span, not bool) *addressSet {
	s := &addressSet{family: family}
	slices.SortFunc(spans, func(a, b span) int { return a.first.compare(b.first) })
	for _, r := range spans {
		n := len(s.spans)
		if n == 0 || s.spans[n-1].last != highest(family) &&
			s.spans[n-1].last.next(family).compare(r.first) < 0 {
			s.spans = append(s.spans, r)
		} else if s.spans[n-1].last.compare(r.last) < 0 {
			s.spans[n-1].last = r.last
		}
	}
	if not {
		s.spans = s.others()
	}
	return s
}

// others returns the ranges of what is not in the set.
func (s *addressSet) others() (all []span) {
	from := address{}
	for _, r := range s.spans {
		if from.compare(r.first) < 0 {
			all = append(all, span{from, r.first.previous(s.family)})
		}
		if r.last == highest(s.family) {
			return all
		}
		from = r.last.next(s.family)
	}
	return append(all, span{from, highest(s.family)})
}

// has reports whether an address of the set's family is in it.
func (s *addressSet) has(a address) bool {
	i, found := slices.BinarySearchFunc(s.spans, a, func(r span, a address) int {
		return r.first.compare(a)
	})
	return found || i > 0 && a.compare(s.spans[i-1].last) <= 0
}

// overlaps reports whether an address of a range, which is of the set's family, is in it.
func (s *addressSet) overlaps(of span) bool {
	i, found := slices.BinarySearchFunc(s.spans, of.last, func(r span, a address) int {
		return r.first.compare(a)
	})
	return found || i > 0 && of.first.compare(s.spans[i-1].last) <= 0
}

// byteSet holds a set of numbers from 0 to 255.
type byteSet [4]uint64

func (s *byteSet) add(first, last uint8) {
	for i := int(first); i <= int(last); i++ {
		s[i>>6] |= 1 << (i & 63)
	}
}

func (s *byteSet) has(n uint8) bool { return s[n>>6]>>(n&63)&1 != 0 }

func (s *byteSet) invert() {
	for i := range s {
		s[i] = ^s[i]
	}
}

// both returns what is in s and in o.
func (s *byteSet) both(o *byteSet) *byteSet {
	var b byteSet
	for i := range b {
		b[i] = s[i] & o[i]
	}
	return &b
}

// portSet holds a set of ports.
type portSet [1024]uint64

func (s *portSet) add(first, last uint16) {
	for i := int(first); i <= int(last); i++ {
		s[i>>6] |= 1 << (i & 63)
	}
}

func (s *portSet) has(n uint16) bool { return s[n>>6]>>(n&63)&1 != 0 }

func (s *portSet) invert() {
	for i := range s {
		s[i] = ^s[i]
	}
}

// rate holds what limit says.
type rate struct {
	over   bool    // matches what is more, in place of what is not
	amount uint64  // per unit
	per    seconds // the unit
	burst  uint64
}

// seconds counts a unit of time.
type seconds uint32

// Protocol numbers.
const (
	protoICMP   = 1
	protoIGMP   = 2
	protoTCP    = 6
	protoUDP    = 17
	protoICMPv6 = 58
)

// matches reports whether all conditions of a rule hold, but for its limit.
func (r *rule) matches(p *Packet) bool {
	switch {
	case r.family != 0 && r.family != p.family,
		r.src != nil && !r.src.has(p.src), r.dst != nil && !r.dst.has(p.dst),
		r.protos != nil && (!p.known || !r.protos.has(p.proto)),
		r.sport != nil && (!p.ports || !r.sport.has(p.sport)),
		r.dport != nil && (!p.ports || !r.dport.has(p.dport)),
		r.types != nil && (!p.typed || !r.types.has(p.kind)),
		r.flags != nil && (!p.hasFlags || p.flags&r.flags.mask != r.flags.value):
		return false
	}
	return true
}

// Judge returns the verdict of the list on a packet by its text alone: rule by rule, without what
// flows add and without limits, which never match. number is the rule's, from 1; 0: the policy
// decided. It is what the compiled form is compared with.
func (l *List) Judge(d Direction, p *Packet) (v Verdict, number int) {
	c := &l.chains[d]
	for i := range c.rules {
		if r := &c.rules[i]; r.limit == nil && r.matches(p) {
			return r.verdict, i + 1
		}
	}
	return c.policy, 0
}

// Rules counts the rules of both chains.
func (l *List) Rules() int {
	if l == nil {
		return 0
	}
	return len(l.chains[Input].rules) + len(l.chains[Output].rules)
}

// String implements fmt.Stringer.
func (l *List) String() string {
	if l == nil {
		return "no rules"
	}
	return fmt.Sprintf("%d rules of input, policy %s; %d of output, policy %s",
		len(l.chains[Input].rules), l.chains[Input].policy,
		len(l.chains[Output].rules), l.chains[Output].policy)
}
