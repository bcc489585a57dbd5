package metrics

import (
	"strconv"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// maxRules bounds the rules of a chain that have samples of their own: labels are bounded whatever
// a list has.
const maxRules = 64

// filterRules writes what the rules of the packet filter have decided.
func (p *page) filterRules(s stack.FilterStatus) {
	var rules []sample
	for _, c := range s.Chains {
		rest := uint64(0)
		for i, r := range c.Rules {
			if i >= maxRules {
				rest += r.Packets
				continue
			}
			rules = append(rules, of(r.Packets, "chain", c.Name, "rule",
				strconv.Itoa(r.Number), "verdict", verdictOf(r.Drops)))
		}
		if len(c.Rules) > maxRules {
			rules = append(rules, of(rest, "chain", c.Name, "rule", "others", "verdict", ""))
		}
		rules = append(rules, of(c.Packets, "chain", c.Name, "rule", "policy", "verdict",
			c.Policy))
	}
	p.family(counter, "filter_packets_total",
		"Packets that a rule of the filter has decided, since its list was loaded.", rules...)
}

// filter writes what the packet filter has decided.
func (p *page) filter(s stack.FilterStatus) {
	p.filterRules(s)
	count, packets, automatic := map[string]uint64{}, map[string]uint64{}, uint64(0)
	for _, e := range s.Entries {
		count[e.Verdict]++
		packets[e.Verdict] += e.Packets
		if e.Automatic {
			automatic += uint64(max(e.Sources, 1))
		}
	}
	p.family(gauge, "filter_prefixes", "Prefixes that are denied or allowed ahead of the list.",
		of(count["deny"], "verdict", "deny"), of(count["allow"], "verdict", "allow"))
	p.family(gauge, "filter_prefix_packets", "Packets from these prefixes.",
		of(packets["deny"], "verdict", "deny"), of(packets["allow"], "verdict", "allow"))
	p.family(gauge, "filter_flows",
		"Flows begun by this host whose answers the list would drop.", of(uint64(s.Flows)))
	p.family(counter, "filter_loads_total", "Times that a list was loaded.", of(s.Loads))
	p.family(gauge, "filter_sources", "Sources that limits by source remember.",
		of(uint64(s.Sources)))
	p.family(counter, "filter_sources_evicted_total", "Sources forgotten for want of room while "+
		"they had used some of their limit, since the list was loaded.", of(s.Evicted))
	p.family(gauge, "filter_denied_sources", "Sources that are denied for a flood.", of(automatic))
	p.family(counter, "filter_denials_total", "Sources that were denied for a flood.",
		of(s.Denials))
	p.family(counter, "filter_denials_joined_total", "Prefixes that were denied in place of many "+
		"of their sources.", of(s.Joined))
	p.family(gauge, "filter_offloaded_rules",
		"Rules that drop ahead of the filter, in the NIC, in the XDP program or in packet sockets.",
		of(uint64(s.Offloaded)))
	p.family(gauge, "filter_offload_waiting", "Rules that found no room there: the filter drops "+
		"their packets.", of(uint64(s.Waiting)))
	p.family(counter, "filter_offload_dropped_total", "Packets that the NIC or the XDP program "+
		"has dropped by these rules; packet sockets do not count.", of(s.OffloadDropped))
	p.family(counter, "filter_offload_refused_total", "Rules that a device, the XDP program or "+
		"packet sockets refused.", of(s.OffloadRefused))
	p.family(counter, "filter_denials_refused_total",
		"Sources that kept up a flood and were not denied.",
		of(s.Spared, "reason", "spared"), of(s.Full, "reason", "full"))
}

func verdictOf(drops bool) string {
	if drops {
		return "drop"
	}
	return "accept"
}
