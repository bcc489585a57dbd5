package firewall

import (
	"encoding/json"
	"fmt"
)

// nftRuleset holds what nft -j list ruleset prints (libnftables-json(5)), as far as it matters.
type nftRuleset struct {
	Nftables []struct {
		Chain *nftChain `json:"chain"`
		Rule  *nftRule  `json:"rule"`
	} `json:"nftables"`
}

type nftChain struct{ Family, Table, Name, Hook string }

type nftRule struct {
	Family, Table, Chain string
	Expr                 []map[string]json.RawMessage
}

// iptablesTables are the tables that iptables makes in nftables: iptables-save shows them better.
var iptablesTables = map[string]bool{"filter": true, "nat": true, "mangle": true, "raw": true,
	"security": true}

// fromNftables says what there is in the output of nft -j list ruleset. Tables of iptables are left
// out if that has been asked.
func fromNftables(text []byte, p Ports, askedIPTables bool) (lines []string, err error) {
	var all nftRuleset
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("read what nft -j prints: %w", err)
	}
	away := map[string]bool{} // chains that are not for what comes to us
	for _, o := range all.Nftables {
		if c := o.Chain; c != nil && (c.Hook == "forward" || c.Hook == "output" ||
			c.Hook == "postrouting") {
			away[c.Family+" "+c.Table+" "+c.Name] = true
		}
	}
	for _, o := range all.Nftables {
		r := o.Rule
		if r == nil || askedIPTables && iptablesTables[r.Table] {
			continue
		}
		chain := r.Family + " " + r.Table + " " + r.Chain
		if l := r.conflictIn("nft chain "+chain, p, away[chain]); l != "" {
			lines = append(lines, l)
		}
	}
	return withoutRepeats(lines), nil
}

// conflictIn says what there is in one rule, "" if nothing.
func (r *nftRule) conflictIn(where string, p Ports, away bool) string {
	port, ours, redirects := 0, false, ""
	for _, e := range r.Expr {
		for kind, value := range e {
			switch kind {
			case "masquerade", "snat":
				if hasRandom(value) {
					return p.randomPorts(where + " " + kind)
				}
			case "dnat", "redirect":
				redirects = kind
			case "match":
				if n, ok := p.matchedPort(value); ok {
					port, ours = n, true
				}
			}
		}
	}
	switch {
	case !ours || away:
		return ""
	case redirects != "":
		return p.redirects(where+" "+redirects, port)
	}
	return p.ruleLine(where, port)
}

// hasRandom says whether the flags of a NAT statement are random or fully-random.
func hasRandom(value json.RawMessage) bool {
	var nat struct{ Flags any }
	if json.Unmarshal(value, &nat) != nil {
		return false
	}
	list, ok := nat.Flags.([]any)
	if !ok {
		list = []any{nat.Flags}
	}
	for _, f := range list {
		if f == "random" || f == "fully-random" {
			return true
		}
	}
	return false
}

// matchedPort says whether a match is about a destination port of ours: a number, a range or a set.
func (p Ports) matchedPort(value json.RawMessage) (int, bool) {
	var m struct {
		Left struct {
			Payload struct{ Field string }
		}
		Right any
	}
	if json.Unmarshal(value, &m) != nil || m.Left.Payload.Field != "dport" {
		return 0, false
	}
	return p.portAmong(m.Right)
}

func (p Ports) portAmong(value any) (int, bool) {
	switch v := value.(type) {
	case float64:
		return p.firstInRange(int(v), int(v))
	case []any:
		for _, e := range v {
			if port, ok := p.portAmong(e); ok {
				return port, true
			}
		}
	case map[string]any:
		if set, ok := v["set"]; ok {
			return p.portAmong(set)
		}
		if r, ok := v["range"].([]any); ok && len(r) == 2 {
			first, isA := r[0].(float64)
			last, isB := r[1].(float64)
			if isA && isB {
				return p.firstInRange(int(first), int(last))
			}
		}
	}
	return 0, false
}
