package filter

import (
	"fmt"
	"math/bits"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// dynamicSet holds what is known of a set that rules add sources to, while packets are judged.
type dynamicSet struct {
	size    int
	dynamic bool  // by its flags
	limits  bool  // rules have it hold a limit for each source
	denies  bool  // rules have it hold sources that are denied
	used    token // looked up here, if it has a text
}

// readFlags reads the flags of a set; those of a dynamic one have no elements here.
func (p *parser) readFlags(name string) {
	for !p.atEnd() {
		if p.next().text == "dynamic" {
			p.dynamicOf(name).dynamic = true
		}
	}
}

// dynamicOf returns what is known of a set.
func (p *parser) dynamicOf(name string) *dynamicSet {
	if p.dynamic[name] == nil {
		p.dynamic[name] = &dynamicSet{size: defaultSources}
	}
	return p.dynamic[name]
}

// readSize reads how many elements a set has room for.
func (p *parser) readSize(name string) error {
	n, err := strconv.Atoi(p.peek().text)
	if err != nil || n < 1 || n > maxSources {
		return p.wrong(fmt.Sprintf("want a number of elements from 1 to %d", maxSources))
	}
	p.next()
	p.dynamicOf(name).size = n
	return nil
}

// readDynamic reads what adds the source of a packet to a set, behind update, add or meter:
//
//	@NAME { ip saddr [and MASK] limit rate [over] ... }
//	@NAME { ip saddr [and MASK] timeout TIME }
func (p *parser) readDynamic(r *rule, meter bool) error {
	name := p.peek().text
	if !meter && !strings.HasPrefix(name, "@") || meter && p.atEnd() || p.peek().quoted {
		return p.wrong("want the name of a set, such as @flood")
	}
	set := p.dynamic[name]
	switch {
	case meter:
		name = "meter " + name
		set = p.dynamicOf(name)
		p.next()
		if p.take("size") {
			if err := p.readSize(name); err != nil {
				return err
			}
		}
	case set == nil || !set.dynamic:
		return p.wrong("want a set that is declared above with flags dynamic")
	default:
		p.next()
	}
	if p.chain != Input {
		return p.wrong("sources are counted in chain input only")
	}
	if err := p.want("{"); err != nil {
		return err
	}
	n, err := p.readSource(r)
	if err != nil {
		return err
	}
	switch {
	case p.take("limit"):
		if set.denies {
			return p.wrong("the set has sources that are denied: write another one for limits")
		}
		set.limits = true
		r.bySource = &bySource{set: name, size: set.size, bits: n}
		err = p.readLimit(r)
	case p.take("timeout"):
		err = p.readDenial(r, set, n)
	default:
		err = p.wrong("want limit rate, or timeout")
	}
	if err != nil {
		return err
	}
	return p.want("}")
}

// readSource reads ip saddr or ip6 saddr, perhaps with a mask, and returns how many bits count.
func (p *parser) readSource(r *rule) (n int, err error) {
	family, length := uint8(4), 32
	if p.take("ip6") {
		family, length = 6, 128
	} else if !p.take("ip") {
		return 0, p.wrong("want ip saddr or ip6 saddr")
	}
	if err := p.setFamily(r, family); err != nil {
		return 0, err
	}
	if err := p.want("saddr"); err != nil {
		return 0, err
	}
	return p.readMask(family, length)
}

// readMask reads the mask of an address of so many bits, if there is one, and returns how many bits
// it has.
func (p *parser) readMask(family uint8, length int) (n int, err error) {
	if !p.take("and") && !p.take("&") {
		return length, nil
	}
	a, err := netip.ParseAddr(p.peek().text)
	if err == nil && a.BitLen() == length && a.Zone() == "" && !a.Is4In6() {
		w, _ := addressOf(a)
		if family == 4 {
			n = bits.LeadingZeros32(^uint32(w.hi))
		} else if n = bits.LeadingZeros64(^w.hi); n == 64 {
			n += bits.LeadingZeros64(^w.lo)
		}
		if n > 0 && w == highest(family).prefixOf(family, n) {
			p.next()
			return n, nil
		}
	}
	return 0, p.wrong("want the mask of a prefix, such as 255.255.255.0 or ffff:ffff:ffff:ffff::")
}

// readDenial reads for how long a source that stays over the rule's limit is denied.
func (p *parser) readDenial(r *rule, set *dynamicSet, n int) error {
	switch {
	case set.limits:
		return p.wrong("the set holds limits: write another one for sources that are denied")
	case r.bySource == nil || !r.limit.over || r.bySource.bits != n:
		return p.wrong("sources are denied behind their limit: write update @NAME { ip saddr " +
			"limit rate over ... } before it, with the same mask")
	case r.bySource.deny != 0:
		return p.wrong("the rule denies already")
	}
	d, ok := parseDuration(p.peek().text)
	if !ok || d < time.Second || d > 24*time.Hour {
		return p.wrong("want a time from 1s to 24h, such as 1m or 1h30m")
	}
	p.next()
	set.denies, r.bySource.deny = true, d
	return nil
}

// parseDuration reads a time as nft writes it: days, hours, minutes and seconds in this order.
func parseDuration(s string) (d time.Duration, ok bool) {
	if days, rest, has := strings.Cut(s, "d"); has {
		n, err := strconv.ParseUint(days, 10, 16)
		if err != nil {
			return 0, false
		}
		if d = time.Duration(n) * 24 * time.Hour; rest == "" {
			return d, true
		}
		s = rest
	}
	for _, c := range s {
		if c < '0' || c > '9' && c != 'h' && c != 'm' && c != 's' {
			return 0, false
		}
	}
	rest, err := time.ParseDuration(s)
	return d + rest, err == nil
}

// checkDynamic says what is wrong with how the rules use dynamic sets.
func (p *parser) checkDynamic() error {
	for name, s := range p.dynamic {
		if s.dynamic && len(p.defined[name]) > 0 {
			return fmt.Errorf("line %d: %q: a dynamic set has no elements at first",
				p.defined[name][0].line, name)
		}
		if s.used.text != "" && !s.denies {
			return fmt.Errorf("line %d: %q: of dynamic sets those can be looked up that a rule "+
				"adds to with a timeout", s.used.line, name)
		}
	}
	return nil
}

// readTCPFlags reads a condition on the flags of a segment: NAMES / NAMES, those that are set among
// those that count.
func (p *parser) readTCPFlags(r *rule) error {
	if r.flags != nil {
		return p.wrong("the rule has such a condition already")
	}
	value, err := p.readFlagNames()
	if err != nil {
		return err
	}
	if err := p.want("/"); err != nil {
		return err
	}
	mask, err := p.readFlagNames()
	if err != nil {
		return err
	}
	if value&^mask != 0 {
		return p.wrong("the flags in front of / are not all behind it: the rule never matches")
	}
	r.flags = &flagMatch{value, mask}
	return nil
}

// readFlagNames reads names of flags with commas between them.
func (p *parser) readFlagNames() (all uint8, err error) {
	for {
		bit, known := namedFlags[p.peek().text]
		if !known {
			return 0, p.wrong("want flags such as syn / fin,syn,rst,ack")
		}
		p.next()
		all |= bit
		if !p.take(",") {
			return all, nil
		}
	}
}

var namedFlags = map[string]uint8{"fin": flagFIN, "syn": flagSYN, "rst": flagRST, "psh": 8,
	"ack": flagACK, "urg": 32, "ecn": 64, "cwr": 128}
