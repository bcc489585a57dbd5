package filter

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// token holds a word, a text in quotes, a sign, or the end of a line.
type token struct {
	text   string
	line   int
	quoted bool
}

const (
	newline = "\n"
	signs   = "{},;="
)

// scan cuts a text into tokens. Comments run from # to the end of the line.
func scan(text string) (all []token, err error) {
	line := 1
	for i := 0; i < len(text); {
		switch c := text[i]; {
		case c == '\n':
			all = append(all, token{text: newline, line: line})
			line++
			i++
		case c == '\\' && i+1 < len(text) && text[i+1] == '\n':
			line++
			i += 2
		case c == ' ' || c == '\t' || c == '\r':
			i++
		case c == '#':
			for i < len(text) && text[i] != '\n' {
				i++
			}
		case c == '"':
			end := strings.IndexAny(text[i+1:], "\"\n")
			if end < 0 || text[i+1+end] == '\n' {
				return nil, fmt.Errorf("line %d: the closing quote is missing", line)
			}
			all = append(all, token{text[i+1 : i+1+end], line, true})
			i += end + 2
		case c == '!' && strings.HasPrefix(text[i:], "!="):
			all = append(all, token{text: "!=", line: line})
			i += 2
		case strings.IndexByte(signs, c) >= 0:
			all = append(all, token{text: string(c), line: line})
			i++
		default:
			end := strings.IndexAny(text[i:], " \t\r\n#\"!"+signs)
			switch {
			case end == 0:
				return nil, fmt.Errorf("line %d: ! stands alone: write != for all but", line)
			case end < 0:
				end = len(text) - i
			}
			all = append(all, token{text: text[i : i+end], line: line})
			i += end
		}
	}
	return all, nil
}

// parser reads tokens.
type parser struct {
	tokens  []token
	at      int
	defined map[string][]token // by name with $ or @: elements
	dynamic map[string]*dynamicSet
	chain   Direction // at hand
	list    *List
}

// Parse reads a list. Its error names the line and says what to write.
func Parse(text string) (*List, error) {
	tokens, err := scan(text)
	if err != nil {
		return nil, err
	}
	p := &parser{tokens: tokens, defined: map[string][]token{},
		dynamic: map[string]*dynamicSet{}, list: &List{Text: text}}
	for p.skipEnds(); p.at < len(p.tokens); p.skipEnds() {
		if err := p.readTop(); err != nil {
			return nil, err
		}
	}
	return p.list, p.checkDynamic()
}

// peek returns the token at hand; past the last one it is empty.
func (p *parser) peek() token {
	if p.at < len(p.tokens) {
		return p.tokens[p.at]
	}
	last := token{line: 1}
	if n := len(p.tokens); n > 0 {
		last.line = p.tokens[n-1].line
	}
	return last
}

// next takes the token at hand.
func (p *parser) next() token {
	t := p.peek()
	p.at++
	return t
}

// is reports whether the token at hand is a word or sign.
func (p *parser) is(word string) bool { t := p.peek(); return !t.quoted && t.text == word }

// take takes the token at hand if it is that word or sign.
func (p *parser) take(word string) bool {
	if p.at < len(p.tokens) && p.is(word) {
		p.at++
		return true
	}
	return false
}

// want does what take does, and fails if that is not there.
func (p *parser) want(word string) error {
	if !p.take(word) {
		return p.wrong(fmt.Sprintf("want %q", word))
	}
	return nil
}

// wrong returns an error about the token at hand.
func (p *parser) wrong(cure string) error {
	t := p.peek()
	switch {
	case p.at >= len(p.tokens):
		return fmt.Errorf("line %d: the text ends here: %s", t.line, cure)
	case t.text == newline:
		return fmt.Errorf("line %d: the line ends too early: %s", t.line, cure)
	}
	return fmt.Errorf("line %d: %q: %s", t.line, t.text, cure)
}

// skipEnds skips ends of lines and statements.
func (p *parser) skipEnds() {
	for p.take(newline) || p.take(";") {
	}
}

// skipLines skips ends of lines.
func (p *parser) skipLines() {
	for p.take(newline) {
	}
}

// atEnd reports whether a statement ends here.
func (p *parser) atEnd() bool {
	return p.at >= len(p.tokens) || p.is(newline) || p.is(";") || p.is("}")
}

// readTop reads what stands outside of chains.
func (p *parser) readTop() error {
	switch {
	case p.take("table"):
		if !p.take("inet") {
			return p.wrong("tables are of family inet here: write table inet NAME")
		}
		p.next()
		return p.readBlock(p.readInTable)
	case p.take("flush") || p.take("delete") || p.take("destroy"): // as lists for nft begin
		for !p.atEnd() {
			p.next()
		}
		return nil
	}
	return p.readInTable()
}

// readBlock reads { ... }.
func (p *parser) readBlock(each func() error) error {
	p.skipLines()
	if err := p.want("{"); err != nil {
		return err
	}
	for p.skipEnds(); !p.take("}"); p.skipEnds() {
		if p.at >= len(p.tokens) {
			return p.wrong("a closing } is missing")
		}
		if err := each(); err != nil {
			return err
		}
	}
	return nil
}

func (p *parser) readInTable() error {
	switch {
	case p.take("chain"):
		return p.readChain()
	case p.take("set"):
		name := "@" + p.next().text
		return p.readBlock(func() error { return p.readSet(name) })
	case p.take("define"):
		name := "$" + p.next().text
		if err := p.want("="); err != nil {
			return err
		}
		all, err := p.readElements()
		p.defined[name] = all
		return err
	}
	return p.wrong("want chain input, chain output, set or define")
}

// readSet reads one line of a named set.
func (p *parser) readSet(name string) error {
	switch {
	case p.take("elements"):
		if err := p.want("="); err != nil {
			return err
		}
		all, err := p.readElements()
		p.defined[name] = append(p.defined[name], all...)
		return err
	case p.take("size"):
		return p.readSize(name)
	case p.is("type"), p.is("flags"), p.is("auto-merge"), p.is("comment"), p.is("timeout"),
		p.is("gc-interval"):
		if p.defined[name] == nil {
			p.defined[name] = []token{}
		}
		if p.take("flags") {
			p.readFlags(name)
		}
		for !p.atEnd() {
			p.next()
		}
		return nil
	}
	return p.wrong("a set has type, flags, size, timeout, auto-merge and elements = { ... }")
}

// readChain reads a chain from its name on.
func (p *parser) readChain() error {
	var d Direction
	switch {
	case p.take("input"):
	case p.take("output"):
		d = Output
	default:
		return p.wrong("chains are input and output here")
	}
	c := &p.list.chains[d]
	if c.given {
		return p.wrong(fmt.Sprintf("there are two chains %s: join them", d))
	}
	c.given, p.chain = true, d
	return p.readBlock(func() error {
		switch {
		case p.take("type"):
			return p.readHook(d)
		case p.take("policy"):
			v, err := p.readVerdict()
			c.policy = v
			return err
		}
		r, err := p.readRule()
		c.rules = append(c.rules, r)
		return err
	})
}

// readHook reads what nft needs to know of a chain: filter hook input priority filter.
func (p *parser) readHook(d Direction) error {
	for _, word := range []string{"filter", "hook", d.String(), "priority"} {
		if err := p.want(word); err != nil {
			return err
		}
	}
	for !p.atEnd() {
		p.next()
	}
	return nil
}

func (p *parser) readVerdict() (Verdict, error) {
	switch {
	case p.take("accept"):
		return Accept, nil
	case p.take("drop"):
		return Drop, nil
	}
	return Drop, p.wrong("want accept or drop")
}

// refused says of words of nft's that are not known here what to write.
var refused = map[string]string{
	"ct": "connections are not tracked: answers to what this host has begun pass by " +
		"themselves, so leave such rules out; new connections are tcp flags syn / " +
		"fin,syn,rst,ack",
	"iif": "there is one interface: leave it out", "oif": "there is one interface: leave it out",
	"iifname": "there is one interface: leave it out",
	"oifname": "there is one interface: leave it out",
	"reject":  "nothing is answered here: write drop",
	"jump":    "there are no further chains: write the rules here",
	"goto":    "there are no further chains: write the rules here",
	"log": "nothing is logged per packet: rules count (rdma-netstack filter show), and captures " +
		"have what is dropped",
}

// readRule reads conditions and a verdict.
func (p *parser) readRule() (rule, error) {
	from := p.at
	r := rule{line: p.peek().line}
	for !p.is("accept") && !p.is("drop") {
		if err := p.readCondition(&r); err != nil {
			return r, err
		}
	}
	v, err := p.readVerdict()
	if err != nil {
		return r, err
	}
	if r.bySource != nil && r.bySource.deny != 0 && v != Drop {
		return r, p.wrong("a rule that denies sources drops their packets")
	}
	r.verdict = v
	if p.take("comment") {
		p.next()
	}
	if !p.atEnd() {
		return r, p.wrong("a rule ends with its verdict: want a new line or ;")
	}
	r.text = joinTokens(p.tokens[from:min(p.at, len(p.tokens))])
	return r, nil
}

// joinTokens writes tokens on one line.
func joinTokens(all []token) string {
	var b strings.Builder
	for i, t := range all {
		switch {
		case t.text == newline && !t.quoted:
			continue
		case i > 0 && (t.quoted || t.text != ","):
			b.WriteByte(' ')
		}
		if t.quoted {
			b.WriteString(`"` + t.text + `"`)
			continue
		}
		b.WriteString(t.text)
	}
	return b.String()
}

const conditions = "want ip saddr, ip daddr, ip6 saddr, ip6 daddr, tcp or udp sport or dport, th " +
	"dport, tcp flags, meta l4proto, meta nfproto, icmp type, icmpv6 type, limit rate, update, " +
	"accept or drop"

// readCondition reads one condition.
func (p *parser) readCondition(r *rule) error {
	if why, known := refused[p.peek().text]; known && !p.peek().quoted {
		return p.wrong(why)
	}
	switch {
	case p.take("counter"): // each rule counts
		return nil
	case p.take("ip"):
		if p.take("protocol") {
			if err := p.setFamily(r, 4); err != nil {
				return err
			}
			return p.readProtocols(r)
		}
		return p.readAddresses(r, 4)
	case p.take("ip6"):
		return p.readAddresses(r, 6)
	case p.take("tcp"):
		if p.take("flags") {
			if err := p.onlyProtocol(r, protoTCP); err != nil {
				return err
			}
			return p.readTCPFlags(r)
		}
		return p.readPorts(r, protoTCP)
	case p.take("udp"):
		return p.readPorts(r, protoUDP)
	case p.take("th"):
		return p.readPorts(r, 0)
	case p.take("icmp"):
		return p.readTypes(r, 4, protoICMP, typesICMP)
	case p.take("icmpv6"):
		return p.readTypes(r, 6, protoICMPv6, typesICMPv6)
	case p.take("meta"):
		switch {
		case p.take("l4proto"):
			return p.readProtocols(r)
		case p.take("nfproto"):
			return p.readFamily(r)
		}
		return p.wrong("of meta there are l4proto and nfproto")
	case p.take("limit"):
		return p.readLimit(r)
	case p.take("update"), p.take("add"):
		return p.readDynamic(r, false)
	case p.take("meter"):
		return p.readDynamic(r, true)
	}
	return p.wrong(conditions)
}

// setFamily narrows a rule to a version of IP.
func (p *parser) setFamily(r *rule, family uint8) error {
	if r.family != 0 && r.family != family {
		p.at--
		return p.wrong("the rule is about IPv4 and IPv6, and never matches: write two rules")
	}
	r.family = family
	return nil
}

func (p *parser) readFamily(r *rule) error {
	switch {
	case p.take("ipv4"):
		return p.setFamily(r, 4)
	case p.take("ipv6"):
		return p.setFamily(r, 6)
	}
	return p.wrong("want ipv4 or ipv6")
}

func (p *parser) readAddresses(r *rule, family uint8) error {
	if err := p.setFamily(r, family); err != nil {
		return err
	}
	into := &r.src
	if p.take("daddr") {
		into = &r.dst
	} else if !p.take("saddr") {
		return p.wrong("of addresses there are saddr and daddr")
	}
	if *into != nil {
		return p.wrong("the rule has such a condition already: write one set")
	}
	masked := p.is("and") || p.is("&")
	if masked && into == &r.src { // as sources of dynamic sets have
		if _, err := p.readMask(family, map[uint8]int{4: 32, 6: 128}[family]); err != nil {
			return err
		}
	}
	not := p.take("!=")
	if s := p.dynamic[p.peek().text]; s != nil && s.dynamic && into == &r.src {
		s.used = p.next() // its sources are judged ahead of the list
		*into = newAddressSet(family, nil, not)
		return nil
	}
	if masked {
		return p.wrong("behind a mask want a dynamic set")
	}
	all, err := p.readElements()
	if err != nil {
		return err
	}
	var spans []span
	for _, t := range all {
		s, err := parseSpan(t, family)
		if err != nil {
			return err
		}
		spans = append(spans, s)
	}
	*into = newAddressSet(family, spans, not)
	return nil
}

// parseSpan reads an address, a prefix or a range.
func parseSpan(t token, family uint8) (span, error) {
	example := "192.0.2.1, 192.0.2.0/24 or 192.0.2.1-192.0.2.9"
	if family == 6 {
		example = "2001:db8::1, 2001:db8::/32 or 2001:db8::1-2001:db8::9"
	}
	wrong := fmt.Errorf("line %d: %q: want addresses such as %s", t.line, t.text, example)
	if first, last, isRange := strings.Cut(t.text, "-"); isRange {
		a, err := netip.ParseAddr(first)
		b, err2 := netip.ParseAddr(last)
		if err != nil || err2 != nil || a.Zone() != "" || b.Zone() != "" || a.Is4In6() ||
			b.Is4In6() || a.Is4() != b.Is4() || b.Less(a) {
			return span{}, wrong
		}
		x, f := addressOf(a)
		y, _ := addressOf(b)
		if f != family {
			return span{}, wrong
		}
		return span{x, y}, nil
	}
	p, err := ParsePrefix(t.text)
	if err != nil {
		return span{}, wrong
	}
	s, f := spanOf(p)
	if f != family {
		return span{}, wrong
	}
	return s, nil
}

// ParsePrefix reads a prefix, or an address as the prefix of it alone.
func ParsePrefix(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		a, bad := netip.ParseAddr(text)
		if bad != nil || a.Zone() != "" {
			return p, fmt.Errorf("%q: want an address or a prefix, such as 192.0.2.0/24", text)
		}
		p = netip.PrefixFrom(a, a.BitLen())
	}
	if p.Addr().Is4In6() {
		return p, fmt.Errorf("%q: write the IPv4 address alone, such as 192.0.2.1", text)
	}
	return p.Masked(), nil
}

// readElements reads one element, or { ... }; names stand for what they were given.
func (p *parser) readElements() (all []token, err error) {
	p.skipLinesIf("{")
	if !p.take("{") {
		if p.atEnd() || p.is(",") || p.is("=") || p.is("!=") || p.peek().quoted {
			return nil, p.wrong("want a value or { ... }")
		}
		return p.expand(p.next())
	}
	for {
		p.skipLines()
		if p.take("}") {
			break
		}
		if p.atEnd() || p.is(",") || p.is("=") || p.is("{") || p.peek().quoted {
			return nil, p.wrong("want an element, or a closing }")
		}
		some, err := p.expand(p.next())
		if err != nil {
			return nil, err
		}
		if all = append(all, some...); len(all) > maxElements {
			return nil, p.wrong(fmt.Sprintf("a set has at most %d elements", maxElements))
		}
		p.skipLines()
		if !p.take(",") && !p.is("}") {
			return nil, p.wrong("want , or } after an element")
		}
	}
	if len(all) == 0 {
		return nil, p.wrong("the set in front of this has no elements: leave the rule out")
	}
	return all, nil
}

// skipLinesIf skips ends of lines in front of a sign.
func (p *parser) skipLinesIf(sign string) {
	at := p.at
	if p.skipLines(); !p.is(sign) {
		p.at = at
	}
}

// maxElements bounds what the names in a set stand for.
const maxElements = 1 << 20

// expand returns what an element stands for.
func (p *parser) expand(t token) ([]token, error) {
	if t.text[0] != '$' && t.text[0] != '@' {
		return []token{t}, nil
	}
	all, known := p.defined[t.text]
	switch {
	case !known:
		return nil, fmt.Errorf("line %d: %q is not defined above", t.line, t.text)
	case len(all) == 0:
		return nil, fmt.Errorf("line %d: %q has no elements: leave the rule out", t.line, t.text)
	}
	return all, nil
}

func (p *parser) readPorts(r *rule, proto uint8) error {
	switch {
	case proto != 0:
		if err := p.onlyProtocol(r, proto); err != nil {
			return err
		}
	case r.protos == nil || !onlyPorts(r.protos):
		return p.wrong("th has ports of tcp and udp: write meta l4proto { tcp, udp } before it")
	}
	into := &r.sport
	if p.take("dport") {
		into = &r.dport
	} else if !p.take("sport") {
		return p.wrong("of ports there are sport and dport")
	}
	if *into != nil {
		return p.wrong("the rule has such a condition already: write one set")
	}
	not, set := p.take("!="), new(portSet)
	err := p.readNumbers(namedPorts, 1<<16-1, func(first, last int) {
		set.add(uint16(first), uint16(last))
	})
	if not {
		set.invert()
	}
	*into = set
	return err
}

// onlyPorts reports whether a set has no protocols but those with ports.
func onlyPorts(s *byteSet) bool {
	rest := *s
	rest[0] &^= 1<<protoTCP | 1<<protoUDP
	return rest == byteSet{}
}

func (p *parser) readTypes(r *rule, family, proto uint8, names map[string]int) error {
	if err := p.setFamily(r, family); err != nil {
		return err
	}
	if err := p.onlyProtocol(r, proto); err != nil {
		return err
	}
	if !p.take("type") {
		return p.wrong("of icmp there is type")
	}
	if r.types != nil {
		return p.wrong("the rule has such a condition already: write one set")
	}
	set, err := p.readBytes(names)
	r.types = set
	return err
}

// onlyProtocol narrows a rule to one protocol.
func (p *parser) onlyProtocol(r *rule, proto uint8) error {
	only := new(byteSet)
	only.add(proto, proto)
	return p.setProtocols(r, only)
}

func (p *parser) readProtocols(r *rule) error {
	set, err := p.readBytes(namedProtocols)
	if err != nil {
		return err
	}
	return p.setProtocols(r, set)
}

// setProtocols narrows a rule to protocols.
func (p *parser) setProtocols(r *rule, set *byteSet) error {
	if r.protos != nil {
		set = set.both(r.protos)
	}
	if *set == (byteSet{}) {
		p.at--
		return p.wrong("no protocol is left, so that the rule never matches: write two rules")
	}
	r.protos = set
	return nil
}

// readBytes reads a set of numbers up to 255.
func (p *parser) readBytes(names map[string]int) (*byteSet, error) {
	not, set := p.take("!="), new(byteSet)
	err := p.readNumbers(names, 255, func(first, last int) { set.add(uint8(first), uint8(last)) })
	if not {
		set.invert()
	}
	return set, err
}

// readNumbers reads numbers, names of some, and ranges.
func (p *parser) readNumbers(names map[string]int, most int, add func(first, last int)) error {
	all, err := p.readElements()
	if err != nil {
		return err
	}
	number := func(s string) (int, bool) {
		if n, ok := names[s]; ok {
			return n, true
		}
		n, err := strconv.ParseUint(s, 10, 16)
		return int(n), err == nil && int(n) <= most
	}
	for _, t := range all {
		if n, ok := number(t.text); ok {
			add(n, n)
			continue
		}
		first, last, isRange := strings.Cut(t.text, "-")
		a, ok := number(first)
		b, ok2 := number(last)
		if !isRange || !ok || !ok2 || a > b {
			return fmt.Errorf("line %d: %q: want a number from 0 to %d, a range such as 1-9, or "+
				"one of its names", t.line, t.text, most)
		}
		add(a, b)
	}
	return nil
}

// readLimit reads rate [over] N/UNIT [burst N packets].
func (p *parser) readLimit(r *rule) error {
	if err := p.want("rate"); err != nil {
		return err
	}
	if r.limit != nil {
		return p.wrong("the rule has a limit already")
	}
	l := &rate{over: p.take("over"), burst: 5}
	const want = "want a rate such as 10/second, /minute, /hour or /day"
	number, unit, ok := strings.Cut(p.peek().text, "/")
	n, err := strconv.ParseUint(number, 10, 32)
	if l.per = units[unit]; !ok || err != nil || n == 0 || l.per == 0 {
		return p.wrong(want)
	}
	l.amount = n
	p.next()
	if p.take("burst") {
		n, err := strconv.ParseUint(p.peek().text, 10, 32)
		if err != nil || n == 0 {
			return p.wrong("want a number of packets")
		}
		l.burst = n
		p.next()
		if err := p.want("packets"); err != nil {
			return err
		}
	}
	r.limit = l
	return nil
}

var units = map[string]seconds{"second": 1, "minute": 60, "hour": 3600, "day": 86400}

var namedPorts = map[string]int{"ssh": 22, "smtp": 25, "domain": 53, "http": 80, "ntp": 123,
	"https": 443}

var namedProtocols = map[string]int{"icmp": protoICMP, "igmp": protoIGMP, "tcp": protoTCP,
	"udp": protoUDP, "gre": 47, "esp": 50, "ah": 51, "icmpv6": protoICMPv6,
	"ipv6-icmp": protoICMPv6, "sctp": 132, "udplite": 136}

// Names of types, as nft has them (nft describe icmp type).
var typesICMP = map[string]int{"echo-reply": 0, "destination-unreachable": 3, "source-quench": 4,
	"redirect": 5, "echo-request": 8, "router-advertisement": 9, "router-solicitation": 10,
	"time-exceeded": 11, "parameter-problem": 12, "timestamp-request": 13, "timestamp-reply": 14,
	"info-request": 15, "info-reply": 16, "address-mask-request": 17, "address-mask-reply": 18}

var typesICMPv6 = map[string]int{"destination-unreachable": 1, "packet-too-big": 2,
	"time-exceeded": 3, "parameter-problem": 4, "echo-request": 128, "echo-reply": 129,
	"mld-listener-query": 130, "mld-listener-report": 131, "mld-listener-done": 132,
	"mld-listener-reduction": 132, "nd-router-solicit": 133, "nd-router-advert": 134,
	"nd-neighbor-solicit": 135, "nd-neighbor-advert": 136, "nd-redirect": 137,
	"router-renumbering": 138, "ind-neighbor-solicit": 141, "ind-neighbor-advert": 142,
	"mld2-listener-report": 143}
