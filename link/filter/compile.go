package filter

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
)

// program holds a chain in the form that packets are judged by. It does not change once made.
type program struct {
	direction Direction
	policy    Verdict
	rules     []check
	v4, v6    sources
	byPort    decisions
	drops     bool              // some packet may be dropped
	why       []string          // by number of the rule, 0: the policy; for captures
	refusals  [firstHits]string // the first of them
	meters    []int             // sizes of those that the rules need
}

// check holds what is left of a rule once the source address is known to match.
type check struct {
	needs   condition
	verdict Verdict
	number  int32 // in the list, from 1
	first   [2]uint16
	last    [2]uint16 // one range of source and of destination ports
	ports   [2]*portSet
	protos  *byteSet
	types   *byteSet
	dst     *addressIndex // value 1: matches
	limit   *rate
	// of a limit by source
	bySource *bySource
	meter    int // its number
	flags    *flagMatch
}

// condition names what a check looks at, or several of them.
type condition uint8

const (
	needPorts condition = 1 << iota // to be in the ranges
	needSets                        // to be in ports, besides
	needType
	needProto
	needDestination
	needLimit
	needFlags
)

// kind groups protocols that different rules are about, so that of rules about ports only those of
// the protocol are looked at.
type kind uint8

const (
	kindTCP kind = iota
	kindUDP
	kindICMP  // of the family
	kindOther // all else, and what is not known
	kinds
)

// proto returns the protocol of a kind; ok is false for kindOther, which has many.
func (k kind) proto(family uint8) (proto uint8, ok bool) {
	switch {
	case k == kindTCP:
		return protoTCP, true
	case k == kindUDP:
		return protoUDP, true
	case k == kindICMP && family == 4:
		return protoICMP, true
	case k == kindICMP:
		return protoICMPv6, true
	}
	return 0, false
}

// mayMatch reports whether the check can match a packet of that kind; always, if it matches all of
// them.
func (c *check) mayMatch(family uint8, k kind) (may, always bool) {
	proto, one := k.proto(family)
	switch {
	case one && c.protos != nil && !c.protos.has(proto),
		!one && c.needs&(needPorts|needType|needFlags) != 0:
		return false, false
	case one:
		return true, c.needs&^needProto == 0
	}
	return true, c.needs == 0
}

// sources holds the rules that may match, by source address of one family.
type sources struct {
	by      addressIndex // values are numbers of sources' classes
	classes []class      // of each class of sources kinds, one after the other
	// rows holds the pages of each class for TCP, and those for UDP behind them; pages shares those
	// of program.byPort. Of classes that rows lacks the rules are asked one by one.
	rows   []uint16
	pages  []portPage
	checks []uint32 // of all classes, one after the other: numbers in program.rules
	// deniedBy holds the number of the rule that drops all TCP and UDP from a class, of the first
	// rules and classes; 0: there is none.
	deniedBy [rest + 1]uint8
}

// class holds the addresses and the kind of packet at which the same rules may match.
type class struct{ first, count uint32 }

// maxChecks bounds sources.checks.
const maxChecks = 1 << 24

// compile makes the program of a chain.
func compile(d Direction, c *chainText) (*program, error) {
	p := &program{direction: d, policy: c.policy, drops: c.policy == Drop,
		why: []string{fmt.Sprintf("the policy of the filter's chain %s drops it", d)}}
	meters, remembered := map[string]int{}, 0
	for i := range c.rules {
		r := &c.rules[i]
		k := newCheck(r, int32(i+1))
		if r.bySource != nil {
			n, known := meters[r.bySource.set]
			if !known {
				n = len(p.meters)
				meters[r.bySource.set] = n
				p.meters = append(p.meters, r.bySource.size)
				if remembered += r.bySource.size; remembered > maxSources {
					return nil, fmt.Errorf("line %d: limits by source would remember more than %d "+
						"sources together: give their sets a smaller size", r.line, maxSources)
				}
			}
			k.meter = n
		}
		p.rules = append(p.rules, k)
		p.drops = p.drops || r.verdict == Drop
		p.why = append(p.why, fmt.Sprintf("rule %d of the filter's chain %s drops it (line %d)",
			i+1, d, r.line))
	}
	copy(p.refusals[:], p.why)
	byPort := newDecisionMaker(&p.byPort, p.rules, c.policy)
	for family, into := range map[uint8]*sources{4: &p.v4, 6: &p.v6} {
		if err := into.compile(family, c.rules, byPort); err != nil {
			return nil, fmt.Errorf("chain %s: %w", d, err)
		}
	}
	p.v4.pages, p.v6.pages = p.byPort.pages, p.byPort.pages
	return p, nil
}

func newCheck(r *rule, number int32) check {
	c := check{verdict: r.verdict, protos: r.protos, types: r.types, limit: r.limit, number: number,
		bySource: r.bySource, flags: r.flags}
	if r.flags != nil {
		c.needs |= needFlags
	}
	if r.protos != nil {
		c.needs |= needProto
	}
	if r.types != nil {
		c.needs |= needType
	}
	if r.limit != nil {
		c.needs |= needLimit
	}
	if r.dst != nil {
		c.needs |= needDestination
		c.dst = indexOfSet(r.dst)
	}
	for i, s := range [2]*portSet{r.sport, r.dport} {
		c.last[i] = 1<<16 - 1
		if s == nil {
			continue
		}
		c.needs |= needPorts
		if first, last, one := s.only(); one {
			c.first[i], c.last[i] = first, last
		} else {
			c.needs |= needSets
			c.ports[i] = s
		}
	}
	return c
}

// only returns the range that a set is; one is false if it is not one range.
func (s *portSet) only() (first, last uint16, one bool) {
	edges := s.edges()
	if len(edges) != 2 {
		return 0, 0, false
	}
	return uint16(edges[0]), uint16(edges[1] - 1), true
}

// edges returns in turn the ports at which a range of the set begins and those behind its end.
func (s *portSet) edges() (all []int) {
	before := uint64(0) // the port in front
	for i, word := range s {
		for turns := word ^ (word<<1 | before); turns != 0; turns &= turns - 1 {
			all = append(all, i<<6+bits.TrailingZeros64(turns))
		}
		before = word >> 63
	}
	if before != 0 {
		all = append(all, 1<<16)
	}
	return all
}

// indexOfSet makes an index with value 1 for the set's addresses, 0 for others.
func indexOfSet(s *addressSet) *addressIndex {
	all := []boundary{{}}
	add := func(at address, value uint32) {
		if n := len(all) - 1; all[n].at == at {
			all[n].value = value
		} else {
			all = append(all, boundary{at, value})
		}
	}
	for _, r := range s.spans {
		add(r.first, 1)
		if r.last != highest(s.family) {
			add(r.last.next(s.family), 0)
		}
	}
	return newAddressIndex(all, 0)
}

// edge says where a rule's source addresses begin or end.
type edge struct {
	at   address
	rule uint32
	ends bool
}

// compile cuts the addresses of a family into intervals with the same rules, and the intervals with
// the same rules into classes.
func (s *sources) compile(family uint8, rules []rule, byPort *decisionMaker) error {
	var edges []edge
	var active []uint32 // in ascending order
	for i := range rules {
		r := &rules[i]
		switch {
		case r.family != 0 && r.family != family:
		case r.src == nil:
			active = append(active, uint32(i))
		default:
			for _, a := range r.src.spans {
				edges = append(edges, edge{a.first, uint32(i), false})
				if a.last != highest(family) {
					edges = append(edges, edge{a.last.next(family), uint32(i), true})
				}
			}
		}
	}
	slices.SortFunc(edges, func(a, b edge) int { return a.at.compare(b.at) })
	known := map[string]uint32{}
	all := []boundary{}
	for at := (address{}); ; at = edges[0].at {
		for len(edges) > 0 && edges[0].at == at {
			active = edges[0].apply(active)
			edges = edges[1:]
		}
		value, err := s.classesOf(family, active, byPort, known)
		if err != nil {
			return err
		}
		if n := len(all); n == 0 || all[n-1].value != value {
			all = append(all, boundary{at, value})
		}
		if len(edges) == 0 {
			break
		}
	}
	s.putCommonFirst(all)
	s.by = *newAddressIndex(all, sourceCells)
	s.by.high.addRuns()
	s.noteDenied(family, byPort.checks)
	return nil
}

// putCommonFirst gives the least numbers, which an index finds by one look, to the classes of most
// intervals.
func (s *sources) putCommonFirst(all []boundary) {
	classes, withRows := len(s.classes)/int(kinds), len(s.rows)/rowOf(1, 0)
	count, at, of := make([]int, classes), make([]uint32, classes), make([]uint32, classes)
	for _, b := range all {
		count[b.value]++
	}
	for n := range of {
		at[n], of[n] = uint32(n), uint32(n)
	}
	for to := range min(rest, withRows) {
		most := to
		for n := to + 1; n < withRows; n++ {
			if count[of[n]] > count[of[most]] {
				most = n
			}
		}
		s.swapClasses(to, most)
		of[to], of[most] = of[most], of[to]
		at[of[to]], at[of[most]] = uint32(to), uint32(most)
	}
	for i := range all {
		all[i].value = at[all[i].value]
	}
}

// swapClasses exchanges two classes, both of which have rows.
func (s *sources) swapClasses(a, b int) {
	for k := range int(kinds) {
		i, j := a*int(kinds)+k, b*int(kinds)+k
		s.classes[i], s.classes[j] = s.classes[j], s.classes[i]
	}
	for k := range rowOf(1, 0) {
		i, j := rowOf(uint32(a), 0)+k, rowOf(uint32(b), 0)+k
		s.rows[i], s.rows[j] = s.rows[j], s.rows[i]
	}
}

// noteDenied makes deniedBy.
func (s *sources) noteDenied(family uint8, rules []check) {
	for n := range s.deniedBy[:min(rest, len(s.classes)/int(kinds))] {
		tcp := s.firstDrop(family, rules, n, kindTCP)
		if tcp == s.firstDrop(family, rules, n, kindUDP) && tcp < firstHits {
			s.deniedBy[n] = uint8(tcp)
		}
	}
}

// firstDrop returns the number of the rule that drops all packets of a kind from a class; 0: there
// is none.
func (s *sources) firstDrop(family uint8, rules []check, n int, k kind) int32 {
	c := s.classes[n*int(kinds)+int(k)]
	if c.count == 0 {
		return 0
	}
	r := &rules[s.checks[c.first]]
	if _, always := r.mayMatch(family, k); !always || r.verdict != Drop {
		return 0
	}
	return r.number
}

// rowOf returns where in sources.rows that of a source's class is, TCP's or UDP's.
func rowOf(class uint32, k kind) int { return (int(class)*2 + int(k)) * pagesOfRow }

// outcomeOf returns the outcome for a source of a class and a port, given as two bytes.
func (s *sources) outcomeOf(class uint32, k kind, high, low uint8) outcome {
	i := uint(rowOf(class, k)) + uint(high)
	if i >= uint(len(s.rows)) {
		return asked
	}
	page := uint(s.rows[i])
	if page >= uint(len(s.pages)) {
		return asked
	}
	return s.pages[page][low]
}

// apply adds the edge's rule to those that are active, or removes it.
func (e edge) apply(active []uint32) []uint32 {
	i, found := slices.BinarySearch(active, e.rule)
	switch {
	case e.ends && found:
		return slices.Delete(active, i, i+1)
	case !e.ends && !found:
		return slices.Insert(active, i, e.rule)
	}
	return active
}

// classesOf returns the number of the class of sources with these rules, which has one in classes
// for each kind of packet, as far as they can be reached.
func (s *sources) classesOf(family uint8, active []uint32, byPort *decisionMaker,
	known map[string]uint32) (uint32, error) {
	var reached [kinds][]uint32
	var key []byte
	for k := range kinds {
		for _, r := range active {
			may, always := byPort.checks[r].mayMatch(family, k)
			if may {
				reached[k] = append(reached[k], r)
				key = binary.LittleEndian.AppendUint32(key, r)
			}
			if always {
				break
			}
		}
		key = append(key, ';')
	}
	if n, ok := known[string(key)]; ok {
		return n, nil
	}
	n := uint32(len(s.classes)) / uint32(kinds)
	for k, rules := range reached {
		if len(s.checks)+len(rules) > maxChecks {
			return 0, fmt.Errorf("more than %d combinations of source addresses and rules: write "+
				"one rule with a set of prefixes in place of many rules", maxChecks)
		}
		s.classes = append(s.classes, class{uint32(len(s.checks)), uint32(len(rules))})
		s.checks = append(s.checks, rules...)
		if at := len(s.rows); kind(k) <= kindUDP && at == rowOf(n, kind(k)) && at < maxRows {
			s.rows = append(s.rows, byPort.rowOf(kind(k), rules)...)
		}
	}
	known[string(key)] = n
	return n, nil
}

// judge returns the rule that decides, by its number from 1, or 0 for the policy. limits is asked
// about rules with a limit; nil: they do not match.
func (p *program) judge(k *Packet, limits func(*check) bool) (Verdict, int32) {
	s := &p.v4
	if k.family == 6 {
		s = &p.v6
	}
	c := s.classes[s.by.find(k.src)*uint32(kinds)+uint32(k.group)]
	for _, i := range s.checks[c.first : c.first+c.count] {
		r := &p.rules[i]
		if r.needs != 0 && !r.matches(k, limits) {
			continue
		}
		return r.verdict, r.number
	}
	return p.policy, 0
}

// matches reports whether what is left of a rule matches.
func (r *check) matches(k *Packet, limits func(*check) bool) bool {
	if r.needs&needPorts != 0 && (!k.ports || k.dport < r.first[1] || k.dport > r.last[1] ||
		k.sport < r.first[0] || k.sport > r.last[0]) {
		return false
	}
	if r.needs&needSets != 0 && (r.ports[0] != nil && !r.ports[0].has(k.sport) ||
		r.ports[1] != nil && !r.ports[1].has(k.dport)) {
		return false
	}
	if r.needs&^(needPorts|needSets|needProto) == 0 && k.group != kindOther {
		return true // mayMatch has seen the protocol
	}
	switch {
	case r.needs&needFlags != 0 && (!k.hasFlags || k.flags&r.flags.mask != r.flags.value),
		r.needs&needProto != 0 && k.group == kindOther && (!k.known || !r.protos.has(k.proto)),
		r.needs&needType != 0 && (!k.typed || !r.types.has(k.kind)),
		r.needs&needDestination != 0 && r.dst.find(k.dst) != 1,
		r.needs&needLimit != 0 && (limits == nil || !limits(r)):
		return false
	}
	return true
}
