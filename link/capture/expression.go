package capture

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/net/bpf"
)

// ParseFilter reads a filter. Empty: every frame. Text that begins with a digit, or has several
// lines, is a program as tcpdump -ddd prints it. Else it is an expression of tcpdump's:
//
//	[PROTOCOL] [src|dst] host ADDRESS | net PREFIX | port N | portrange N-M
//	PROTOCOL (ip, ip6, arp, tcp, udp, icmp, icmp6, sctp) | vlan [ID] | broadcast | multicast
//	ether [src|dst] host MAC | ip proto N | less N | greater N
//
// with and (&&), or (||), not (!) and parentheses; and binds as strongly as or. A value alone has
// the words of the one before: "port 80 or 443". What is behind VLAN tags is found in every case.
func ParseFilter(text string) (*Filter, error) {
	text = strings.TrimSpace(text)
	switch {
	case text == "":
		return nil, nil
	case text[0] >= '0' && text[0] <= '9' && strings.ContainsAny(text, "\n,"):
		return parseProgram(text)
	}
	p := &parser{words: splitTokens(text)}
	n, err := p.expression()
	if err == nil && p.at < len(p.words) {
		err = fmt.Errorf("does not know what to do with %q", p.words[p.at])
	}
	if err != nil {
		return nil, fmt.Errorf("filter %q: %w; what this parser lacks, tcpdump -ddd can compile",
			text, err)
	}
	return &Filter{root: n}, nil
}

// splitTokens returns the words and signs of an expression.
func splitTokens(text string) []string {
	for _, sign := range []string{"(", ")", "!", "&&", "||"} {
		text = strings.ReplaceAll(text, sign, " "+sign+" ")
	}
	return strings.Fields(text)
}

// maxDepth of parentheses and negations.
const maxDepth = 100

type parser struct {
	words []string
	at    int
	depth int
	last  func(value string) (node, error) // of the primitive before; nil: there was none
}

// nextToken returns the next word, empty at the end.
func (p *parser) nextToken() string {
	if p.at == len(p.words) {
		return ""
	}
	return p.words[p.at]
}

// acceptWord passes one of the words by and returns it, or nothing.
func (p *parser) acceptWord(words ...string) string {
	for _, w := range words {
		if p.nextToken() == w {
			p.at++
			return w
		}
	}
	return ""
}

func (p *parser) expression() (node, error) {
	n, err := p.parseTerm()
	for err == nil {
		var m node
		switch {
		case p.acceptWord("and", "&&") != "":
			m, err = p.parseTerm()
			n = and{n, m}
		case p.acceptWord("or", "||") != "":
			m, err = p.parseTerm()
			n = or{n, m}
		default:
			return n, nil
		}
	}
	return nil, err
}

func (p *parser) parseTerm() (node, error) {
	if p.depth++; p.depth > maxDepth {
		return nil, fmt.Errorf("has more than %d levels", maxDepth)
	}
	defer func() { p.depth-- }()
	if p.acceptWord("not", "!") != "" {
		n, err := p.parseTerm()
		return not{n}, err
	}
	if p.acceptWord("(") == "" {
		return p.primitive()
	}
	n, err := p.expression()
	if err == nil && p.acceptWord(")") == "" {
		err = fmt.Errorf("lacks a closing parenthesis")
	}
	return n, err
}

// families returns the protocols by their words.
func familyOf(word string) (f family, ok bool) {
	switch word {
	case "ip":
		return family{etherType: typeIPv4}, true
	case "ip6":
		return family{etherType: typeIPv6}, true
	case "arp":
		return family{etherType: typeARP}, true
	case "tcp":
		return family{proto: protoTCP}, true
	case "udp":
		return family{proto: protoUDP}, true
	case "sctp":
		return family{proto: protoSCTP}, true
	case "icmp":
		return family{etherType: typeIPv4, proto: protoICMP}, true
	case "icmp6":
		return family{etherType: typeIPv6, proto: protoICMPv6}, true
	}
	return f, false
}

// primitive is words up to one value.
func (p *parser) primitive() (node, error) {
	switch w := p.acceptWord("broadcast", "multicast", "vlan", "less", "greater", "ether"); w {
	case "broadcast", "multicast":
		return group{w == "broadcast"}, nil
	case "vlan":
		return p.parseVLAN()
	case "less", "greater":
		n, err := p.parseNumber(MaxSnaplen)
		return size{w == "greater", n}, err
	case "ether":
		return p.parseEther()
	}
	f, limited := familyOf(p.nextToken())
	if limited {
		p.at++
	}
	if limited && p.acceptWord("proto") != "" {
		n, err := p.parseNumber(255)
		f.proto = uint8(n)
		return f, err
	}
	d, directed := p.parseSides()
	kind := p.acceptWord("host", "net", "port", "portrange")
	if kind == "" && !directed && limited {
		return f, nil
	}
	value := p.nextToken()
	if value == "" || value == ")" {
		return nil, fmt.Errorf("ends where a value is expected")
	}
	p.at++
	if kind == "" && !directed && p.last != nil {
		return p.last(value)
	}
	p.last = func(value string) (node, error) { return limitedValue(f, limited, d, kind, value) }
	return p.last(value)
}

// limitedValue returns a value of frames of a family only, if that is limited.
func limitedValue(f family, limited bool, d sides, kind, value string) (node, error) {
	n, err := valueNode(d, kind, value)
	if limited && err == nil {
		n = and{f, n}
	}
	return n, err
}

// parseSides reads src, dst, src or dst, src and dst.
func (p *parser) parseSides() (d sides, given bool) {
	w := p.acceptWord("src", "dst")
	if w == "" {
		return either, false
	}
	if rest := p.words[p.at:]; len(rest) >= 2 && rest[1] != w &&
		(rest[1] == "src" || rest[1] == "dst") {
		switch rest[0] {
		case "or", "||":
			p.at += 2
			return either, true
		case "and", "&&":
			p.at += 2
			return bothEnds, true
		}
	}
	if w == "src" {
		return source, true
	}
	return destination, true
}

func valueNode(d sides, kind, value string) (node, error) {
	switch kind {
	case "port":
		n, err := strconv.ParseUint(value, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("%q is no port: want 0 to 65535", value)
		}
		return ports{d, uint16(n), uint16(n)}, nil
	case "portrange":
		a, b, _ := strings.Cut(value, "-")
		first, err1 := strconv.ParseUint(a, 10, 16)
		last, err2 := strconv.ParseUint(b, 10, 16)
		if err1 != nil || err2 != nil || first > last {
			return nil, fmt.Errorf("%q is no range of ports: want it as 8000-8999", value)
		}
		return ports{d, uint16(first), uint16(last)}, nil
	case "net":
		prefix, err := netip.ParsePrefix(value)
		if err != nil {
			return nil, fmt.Errorf("%q is no network: want it as 192.0.2.0/24", value)
		}
		return network{d, prefix.Masked()}, nil
	}
	a, err := netip.ParseAddr(value)
	if err != nil || a.Zone() != "" {
		return nil, fmt.Errorf("does not know %q: neither a word of the language nor an IP address",
			value)
	}
	return network{d, netip.PrefixFrom(a, a.BitLen())}, nil
}

// parseVLAN reads the identifier, which may be missing.
func (p *parser) parseVLAN() (node, error) {
	if w := p.nextToken(); w == "" || w[0] < '0' || w[0] > '9' {
		return tagged{-1}, nil
	}
	n, err := p.parseNumber(4095)
	return tagged{n}, err
}

func (p *parser) parseNumber(most int) (int, error) {
	n, err := strconv.Atoi(p.nextToken())
	if err != nil || n < 0 || n > most {
		return 0, fmt.Errorf("%q is no number of 0 to %d", p.nextToken(), most)
	}
	p.at++
	return n, nil
}

func (p *parser) parseEther() (node, error) {
	d, _ := p.parseSides()
	p.acceptWord("host")
	mac, err := net.ParseMAC(p.nextToken())
	if err != nil || len(mac) != 6 {
		return nil, fmt.Errorf("%q is no Ethernet address: want it as 02:00:00:00:00:01",
			p.nextToken())
	}
	p.at++
	return station{d, [6]byte(mac)}, nil
}

// maxProgram repeats BPF_MAXINSNS of linux include/uapi/linux/bpf_common.h.
const maxProgram = 4096

// parseProgram reads a classic BPF program as tcpdump -ddd prints it: the number of instructions,
// then code, jt, jf and k of each, in decimal, a line each. Commas in the place of the line ends
// are accepted, as iptables -m bpf has them.
func parseProgram(text string) (*Filter, error) {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == ',' })
	count, err := strconv.Atoi(strings.TrimSpace(lines[0]))
	if err != nil || count < 1 || count > maxProgram || count != len(lines)-1 {
		return nil, fmt.Errorf("filter program of %d lines says that it has %q instructions: want "+
			"the output of tcpdump -ddd, at most %d", len(lines)-1, lines[0], maxProgram)
	}
	var program []bpf.Instruction
	for _, line := range lines[1:] {
		var raw bpf.RawInstruction
		if _, err := fmt.Sscanf(line, "%d %d %d %d", &raw.Op, &raw.Jt,
			&raw.Jf, &raw.K); err != nil {
			return nil, fmt.Errorf("filter program: %q is no instruction: want code, jt, jf and k",
				line)
		}
		program = append(program, raw.Disassemble())
	}
	vm, err := bpf.NewVM(program)
	if err != nil {
		return nil, fmt.Errorf("filter program: %w", err)
	}
	return &Filter{program: vm}, nil
}
