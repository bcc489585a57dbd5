package firewall

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// fromIPTables says what there is in the output of iptables-save or ip6tables-save; command is
// iptables or ip6tables.
func fromIPTables(command, text string, p Ports) (lines []string) {
	table := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "*"); ok {
			table = name
		}
		words := ruleWords(line)
		if len(words) < 2 || words[0] != "-A" {
			continue
		}
		if l := fromRule(command, table, words, p); l != "" {
			lines = append(lines, l)
		}
	}
	return withoutRepeats(lines)
}

// fromRule says what there is in one rule, "" if nothing.
func fromRule(command, table string, words []string, p Ports) string {
	chain, target := words[1], wordAfter(words, "-j")
	where := command + " -t " + table + " " + chain
	port, ours := p.hitAny(cmp.Or(wordAfter(words, "--dport"), wordAfter(words, "--dports")))
	switch {
	case table == "nat" && (target == "MASQUERADE" || target == "SNAT"):
		if slices.Contains(words, "--random-fully") || slices.Contains(words, "--random") {
			return p.randomPorts(where + " " + target)
		}
	case !ours || chain == "FORWARD" || chain == "OUTPUT" || chain == "POSTROUTING":
	case table == "nat" && target != "RETURN":
		return p.redirects(where+" "+target, port)
	case table == "filter" || table == "mangle" || table == "raw":
		return p.ruleLine(where+" "+target, port)
	}
	return ""
}

// hitAny looks through a list such as 80,443,8000:8080.
func (p Ports) hitAny(list string) (int, bool) {
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, ":")
		if !isRange {
			last = first
		}
		a, err := strconv.Atoi(first)
		b, err2 := strconv.Atoi(last)
		if err != nil || err2 != nil {
			continue
		}
		if port, ok := p.firstInRange(a, b); ok {
			return port, true
		}
	}
	return 0, false
}

// wordAfter returns the word behind an option, "" if that is not there.
func wordAfter(words []string, option string) string {
	if i := slices.Index(words, option); i >= 0 && i+1 < len(words) {
		return words[i+1]
	}
	return ""
}

// ruleWords returns the words of a rule; what is in quotes is one word.
func ruleWords(line string) (words []string) {
	var word strings.Builder
	quoted, begun := false, false
	flush := func() {
		if begun {
			words = append(words, word.String())
		}
		word.Reset()
		begun = false
	}
	for _, c := range line {
		switch {
		case c == '"':
			quoted, begun = !quoted, true
		case c == ' ' && !quoted:
			flush()
		default:
			word.WriteRune(c)
			begun = true
		}
	}
	flush()
	return words
}
